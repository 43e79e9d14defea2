"""A release: which texts have a component's version, and what agrees with what."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from preflight_e2e import release
from preflight_e2e.images import ROOT
from preflight_e2e.rehearsal import NOX, WORKFLOW, RehearsalError, Workflow
from preflight_e2e.release import ReleaseError, components, plan, problems

DAY = "2026-11-26"
CHARTS = {
    "charts/CHANGELOG.md": "# Changelog\n\n## 0.1.0\n\n- Charts.\n",
    release.UMBRELLA: (
        'name: preflight\nversion: 0.1.0\nappVersion: "0.1.0"\ndependencies:\n'
        "  - name: preflight-injector\n    version: 0.3.1\n  - name: preflight-gang\n    version: 1.0.0\n"
    ),
    release.LIBRARY: "name: preflight-common\ntype: library\nversion: 0.1.0\n",
    release.INJECTOR: (
        'name: preflight-injector\nversion: 0.3.1\nappVersion: "0.3.1"\ndependencies:\n'
        "  - name: preflight-common\n    version: 0.1.0\n"
        'annotations:\n  preflight-dcgm-diag: "0.2.9"\n'
    ),
    f"{release.PARTS}/preflight-injector/charts/preflight-common/Chart.yaml": "version: 0.1.0\n",
    f"{release.PARTS}/preflight-gang/Chart.yaml": (
        'name: preflight-gang\nversion: 1.0.0\nappVersion: "1.0.0"\ndependencies:\n'
        "  - name: preflight-common\n    version: 0.1.0\n"
    ),
    "packages/a/examples/Chart.yaml": "dependencies: [{name: preflight-common, version: 0.1.0}]\n",
    "charts/README.md": "docker push registry.example/preflight/preflight-dcgm-diag:0.2.9\n",
}


def member(name: str, version: str, kind: str, image: str = "", needs: str = "") -> dict[str, str]:
    table = f'[tool.preflight.image]\nname = "{image}"\n' if image else ""
    return {
        f"packages/{name}/pyproject.toml": (
            f'[project]\nname = "{name}"\nversion = "{version}"\ndependencies = [{needs}]\n'
            f'[tool.preflight]\nkind = "{kind}"\n{table}'
        ),
        f"packages/{name}/CHANGELOG.md": f"# Changelog\n\n## Unreleased\n\n- New.\n\n## {version} (2026-01-02)\n\n- Old.\n",
    }


def tree() -> dict[str, str]:
    """A small repository in which everything agrees."""
    files = {
        **CHARTS,
        **member("preflight-proto", "0.4.2", "library"),
        **member("preflight-webhook", "0.3.1", "service", "preflight-webhook"),
        **member("preflight-gang", "1.0.0", "service", "preflight-gang"),
        **member("check-dcgm", "0.2.9", "check", "preflight-dcgm-diag", '"preflight-proto[check]~=0.4.0"'),
        "docs/versions.md": "<!-- [[[cog import tables; tables.versions() ]]] -->\n<!-- [[[end]]] -->\n",
        "images.txt": "",
    }  # fmt: skip
    locked = [(one.name, one.version) for one in components(files).values() if one.name != "charts"]
    files["uv.lock"] = "".join(f'[[package]]\nname = "{n}"\nversion = "{v}"\n' for n, v in locked)
    return files | release.generated(files)


def test_what_is_committed_agrees() -> None:
    assert problems(release.read(ROOT)) == []


def test_every_component_can_be_released_at_once() -> None:
    files = release.read(ROOT)
    names = [name for name, one in components(files).items() if release.unreleased(files, one)]
    made = {**files, **plan(files, names, "major", DAY)}
    assert {one.version.split(".")[1] for one in components(made).values() if one.name in names} <= {"0"}  # fmt: skip


def test_a_check_takes_its_version_to_whoever_names_its_image_and_to_no_other() -> None:
    files = tree()
    changed = plan(files, ["check-dcgm"], "minor", DAY)
    assert sorted(changed) == [
        "charts/README.md",
        release.INJECTOR,
        "docs/versions.md",
        "images.txt",
        "packages/check-dcgm/CHANGELOG.md",
        "packages/check-dcgm/pyproject.toml",
        "uv.lock",
    ]
    assert 'preflight-dcgm-diag: "0.3.0"' in changed[release.INJECTOR]
    assert "version: 0.3.1" in changed[release.INJECTOR]  # the injector is what it was
    assert "preflight-dcgm-diag:0.3.0\n" in changed["images.txt"]
    assert changed["packages/check-dcgm/CHANGELOG.md"].startswith(
        f"# Changelog\n\n## 0.3.0 ({DAY})\n\n- New.\n\n## 0.2.9 (2026-01-02)\n"
    )
    assert "| `check-dcgm/v0.3.0` |" in changed["docs/versions.md"]


def test_a_service_takes_it_to_its_chart_and_to_the_umbrella_that_asks_for_it() -> None:
    changed = plan(tree(), ["preflight-webhook"], "patch", DAY)
    assert 'version: 0.3.2\nappVersion: "0.3.2"\n' in changed[release.INJECTOR]
    assert "- name: preflight-injector\n    version: 0.3.2\n" in changed[release.UMBRELLA]
    assert "- name: preflight-gang\n    version: 1.0.0\n" in changed[release.UMBRELLA]
    assert changed[release.UMBRELLA].startswith("name: preflight\nversion: 0.1.0\n")


def test_the_charts_have_a_version_of_their_own_and_all_stand_on_its_library() -> None:
    changed = plan(tree(), ["charts"], "minor", DAY)
    library = "- name: preflight-common\n    version: 0.2.0\n"
    assert library in changed[release.INJECTOR]
    assert library in changed[f"{release.PARTS}/preflight-gang/Chart.yaml"]
    assert "version: 0.3.1" in changed[release.INJECTOR]
    assert "preflight-common, version: 0.2.0}" in changed["packages/a/examples/Chart.yaml"]
    copy = f"{release.PARTS}/preflight-injector/charts/preflight-common/Chart.yaml"
    assert changed[copy] == "version: 0.2.0\n"
    assert changed[release.LIBRARY].endswith("version: 0.2.0\n")


def test_who_depends_on_a_library_follows_its_minor_versions_and_no_patch() -> None:
    place = "packages/check-dcgm/pyproject.toml"
    assert '"preflight-proto[check]~=0.5.0"' in plan(tree(), ["preflight-proto"], "minor", DAY)[place]  # fmt: skip
    assert place not in plan(tree(), ["preflight-proto"], "patch", DAY)


def test_nothing_is_released_that_no_changelog_speaks_of() -> None:
    files = tree()
    files |= plan(files, ["check-dcgm"], "minor", DAY)
    with pytest.raises(ReleaseError, match=r"check-dcgm/CHANGELOG.md: begins with what is released"):  # fmt: skip
        plan(files, ["check-dcgm"], "minor", DAY)
    with pytest.raises(ReleaseError, match=r"check-dcmg: no component of that name"):
        plan(files, ["check-dcmg"], "minor", DAY)


@pytest.mark.parametrize(
    ("path", "before", "after", "said"),
    [
        ("charts/README.md", ":0.2.9", ":0.2.8", "check-dcgm is 0.2.9, but here it is 0.2.8"),
        (release.UMBRELLA, "version: 1.0.0", "version: 0.9.0", "preflight-gang is 1.0.0, but"),
        (release.INJECTOR, 'appVersion: "0.3.1"', "", "has no version after"),
        ("uv.lock", 'version = "0.4.2"', 'version = "0.4.1"', "preflight-proto is 0.4.2, but"),
        ("packages/check-dcgm/CHANGELOG.md", "0.2.9 (", "0.2.8 (", "the last release is 0.2.8"),
        ("packages/check-dcgm/pyproject.toml", "~=0.4.0", "~=0.3.0", "here it is 0.3.0"),
        ("images.txt", "preflight-gang:", "preflight-gong:", "is not what its generator makes"),
    ],
)
def test_what_does_not_agree_is_named(path: str, before: str, after: str, said: str) -> None:
    files = tree()
    assert problems(files) == []
    assert before in files[path]
    found = problems(files | {path: files[path].replace(before, after, 1)})
    assert [one for one in found if one.startswith(path) and said in one], found


def test_a_tag_says_what_is_made_for_it() -> None:
    assert release.described(tree(), "preflight-webhook/v0.3.1") == {
        "version": "0.3.1",
        "image": "preflight-webhook",
        "chart": f"{release.PARTS}/preflight-injector",
        "package": "preflight-webhook",
    }
    umbrella = release.described(tree(), "charts/v0.1.0")
    assert (umbrella["image"], umbrella["package"]) == ("", "")
    with pytest.raises(ReleaseError, match=r"check-dcgm/v0\.3\.0: no tag of these files"):
        release.described(tree(), "check-dcgm/v0.3.0")


def test_the_workflow_asks_for_nothing_that_a_tag_does_not_say() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yaml").read_text())
    outputs = workflow["jobs"]["agrees"]["outputs"]
    assert set(outputs) == set(release.described(tree(), "check-dcgm/v0.2.9"))
    asked = set(re.findall(r"needs\.agrees\.outputs\.(\w+)", yaml.safe_dump(workflow)))
    assert asked == set(outputs)
    sessions = set(re.findall(r"nox -s ([\w-]+)", yaml.safe_dump(workflow)))
    noxfile = (ROOT / "noxfile.py").read_text()
    assert sessions == {one for one in sessions if f"\ndef {one}(session" in noxfile}


# --- rehearsed

JOBS = """
jobs:
  first:
    outputs: {digest: "${{ steps.push.outputs.digest }}"}
    env: {NAME: "${{ vars.REGISTRY }}/a"}
    steps:
      - uses: actions/checkout@v4
      - run: python -m pip install nox
      - id: push
        run: |
          echo "$NAME of ${{ env.NAME }}, $OTHER" > said
          echo "digest=sha256:1" >> "$GITHUB_OUTPUT"
        env: {OTHER: "${{ runner.arch }}"}
  second: {steps: [{run: "echo ${{ needs.first.outputs.digest }} > said"}]}
  third: {steps: [{run: "false"}]}
  fourth: {steps: [{run: "echo ${{ github.token }}"}]}
"""


def test_a_jobs_commands_are_run_with_what_its_expressions_stand_for(tmp_path: Path) -> None:
    workflow = Workflow(JOBS, {"vars.REGISTRY": "here", "runner.arch": "X64"})
    left = workflow.run("first", tmp_path, os.environ)
    assert left == ["actions/checkout@v4", "python -m pip install nox"]
    assert (tmp_path / "said").read_text() == "here/a of here/a, X64\n"
    assert workflow.run("second", tmp_path, os.environ) == []
    assert (tmp_path / "said").read_text() == "sha256:1\n"
    with pytest.raises(RehearsalError, match=r"^job third: false: ended with status 1\.$"):
        workflow.run("third", tmp_path, os.environ)
    with pytest.raises(RehearsalError, match=r"github\.token }}: stands for nothing here"):
        workflow.run("fourth", tmp_path, os.environ)


def test_the_workflows_sessions_run_the_same_programs_rehearsed(tmp_path: Path) -> None:
    (tmp_path / "nox").write_text(NOX)
    (tmp_path / "nox").chmod(0o755)
    sessions = set(re.findall(r"\bnox -s (\w+)", WORKFLOW.read_text()))
    for session in sessions:
        command = [tmp_path / "nox", "-s", session, "--", "--help"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("usage: "), session
    assert sessions >= {"images", "sbom", "release"}


def pinning(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the workflow's step that sets digests, over a copy of the umbrella."""
    [step] = [one for one in yaml.safe_load(WORKFLOW.read_text())["jobs"]["chart"]["steps"] if "asks for exactly" in one.get("name", "")]  # fmt: skip
    shutil.copytree(ROOT / "charts/preflight", folder / "preflight")
    environ = {"PATH": f"{folder}:{os.environ['PATH']}", "CHART": "preflight", "IMAGE_REGISTRY": "registry.example/ours"}  # fmt: skip
    command = ["bash", "-e", "-c", step["run"]]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)  # fmt: skip


def test_the_umbrella_asks_for_the_digest_of_the_image_of_each_of_its_parts(tmp_path: Path) -> None:
    crane = tmp_path / "crane"
    crane.write_text('#!/bin/sh\necho "sha256:$(printf %s "$2" | sha256sum | cut -d" " -f1)"\n')
    crane.chmod(0o755)
    assert pinning(tmp_path).returncode == 0
    values = dict.fromkeys(path.name for path in (ROOT / release.PARTS).iterdir())
    for part in values:
        made = yaml.safe_load((tmp_path / "preflight/charts" / part / "values.yaml").read_text())
        name = f"registry.example/ours/{part.replace('preflight-injector', 'preflight-webhook')}"
        version = components(release.read(ROOT))[name.rpartition("/")[2]].version
        digest = hashlib.sha256(f"{name}:{version}".encode()).hexdigest()
        assert made["image"] == {"repository": name, "tag": "", "digest": f"sha256:{digest}"}


def test_a_chart_is_not_released_before_its_image(tmp_path: Path) -> None:
    (tmp_path / "crane").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "crane").chmod(0o755)
    done = pinning(tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(r"registry\.example/ours/\S+: is not pushed; release \S+ before this chart\.\n", done.stderr)  # fmt: skip


@pytest.mark.parametrize("name", ["preflight-proto", "preflight-kube", "preflight-cli"])
def test_the_page_of_a_package_reads_the_same_on_an_index(name: str) -> None:
    folder = ROOT / "packages" / name
    assert re.findall(r"\]\((?!https://)[^)]*\)", (folder / "README.md").read_text()) == []
    about = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert about["authors"] and about["keywords"] and about["classifiers"]  # noqa: PT018
    assert about["readme"] == "README.md"


def test_a_dry_run_prints_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    before = subprocess.check_output(["git", "status", "--porcelain"], cwd=ROOT)
    assert release.main(["charts", "major", "--dry-run", "--output", "/nowhere"]) in {0, 2}
    out = capsys.readouterr()
    assert "git tag charts/v" in out.out or "begins with what is released" in out.err
    assert subprocess.check_output(["git", "status", "--porcelain"], cwd=ROOT) == before
    assert not Path("/nowhere").exists()
