"""Building images, with a recording stand-in for the engine: what is built when,
and what is not.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from preflight_e2e import engine, images, labels
from preflight_e2e.engine import Engine, ImageError, find_engine
from preflight_e2e.images import COMPONENTS, ROOT, build_all

VERSION = "3.2.1"
EVERY = [f"{component.image}:{VERSION}" for component in COMPONENTS]
CONFIG = b'{"architecture": "amd64"}'
ID = f"sha256:{hashlib.sha256(CONFIG).hexdigest()}"


def docker_archive(path: Path, config: bytes = CONFIG) -> None:
    """As `docker save` writes one image: its configuration under its hash, and a manifest that
    names it.
    """
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    files = {name: config, "manifest.json": json.dumps([{"Config": name}]).encode()}
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))


class Here:
    """A small repository, a cache, and engines that only note how they were called."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.cache, self.bin = folder / "repo", folder / "cache", folder / "bin"
        self.log: list[str] = []
        self.base, self.answers, self.fails = "base-1", dict[str, bool](), ""
        self.bin.mkdir()
        self.saved = folder / "saved.tar"
        docker_archive(self.saved)
        self._git = shutil.which("git") or "git"
        monkeypatch.setenv("PATH", str(self.bin))
        monkeypatch.setattr(engine, "subprocess", SimpleNamespace(run=self.run))
        for path in ("pyproject.toml", "uv.lock", "builder.txt", ".dockerignore"):
            self.write(path, path)
        for path in ("e2e/fakes.Dockerfile", "e2e/fakes/bin/dcgmi"):
            self.write(path, path)
        for component in COMPONENTS:
            self.write(str(component.dockerfile(Path())), "FROM x")
            name = Path(component.package).name
            self.write(
                f"{component.package}/pyproject.toml",
                f'[project]\nname = "{name}"\nversion = "{VERSION}"\ndescription = "what {name} does"\n',
            )
            self.write(f"{component.package}/src/module.py", "a = 1")
            self.write(f"{component.package}/tests/test_module.py", "")
            for recipe in filter(None, (component.recipe, component.test_recipe)):
                self.write(
                    recipe,
                    "FROM x\nARG NCCL_TESTS_VERSION\nCOPY uv.lock /tmp/\nCOPY --from=compiler /opt/tool /opt/tool\n",
                )
            for source in component.sources:  # as a checkout leaves it
                (folder / "sources" / f"{source.name}-{source.commit}").mkdir(parents=True)
        self.write("packages/preflight-proto/src/names.py", "")
        self.write("packages/preflight-kube/src/client.py", "")

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def engine(self, name: str, *, answers: bool = True) -> None:
        self.answers[name] = answers
        (self.bin / name).touch(0o755)

    def run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        """What an engine does: its base is there, and it saves one image; ``fails``: a verb."""
        name, verb, *words = command
        self.log.append(" ".join(command))
        output, failed = "", verb == self.fails
        if verb == "info":
            failed = not self.answers[name]
        elif verb in {"image", "inspect"}:
            built = any(f" -t {words[-1]} " in call for call in self.log)
            output = self.base if built or "-base:" not in words[-1] else ""
            failed = not output
        elif verb in {"save", "push"}:
            [archive] = [word for word in words if ".part" in word]
            shutil.copy(self.saved, archive.removeprefix("docker-archive:").partition(":")[0])
        return subprocess.CompletedProcess(command, int(failed), output)

    def git(self, *words: str, at: int = 0) -> str:
        """Run git in the repository, of which the builds know from then on."""
        if not (self.bin / "git").exists():
            (self.bin / "git").symlink_to(self._git)
        dated = {"GIT_AUTHOR_DATE": f"@{at} +0000", "GIT_COMMITTER_DATE": f"@{at} +0000"}
        who = ["-c", "user.name=Tester", "-c", "user.email=tester@example.com"]
        command = ["git", "-C", str(self.root), *who, *words]
        environ = {**os.environ, **dated}
        return subprocess.check_output(command, env=environ, text=True, stderr=subprocess.DEVNULL)

    def build(self, *, e2e: bool = False) -> dict[str, bool]:
        """What was asked for, and whether it was there already."""
        made = build_all(find_engine(), root=self.root, cache=self.cache, e2e=e2e)
        assert {image.id for image in made} == {ID}
        return {image.reference: image.cached for image in made}

    def calls(self, verb: str) -> list[str]:
        """What the engine was called with; a recipe's bases are :meth:`bases`."""
        return [
            line
            for line in self._calls(verb)
            if "-base:" not in line.partition(" -t ")[2].split()[0]
        ]

    def bases(self) -> list[str]:
        return [
            line
            for verb in ("build", "bud")
            for line in self._calls(verb)
            if line not in self.calls(verb)
        ]

    def _calls(self, verb: str) -> list[str]:
        return [line for line in self.log if line.split()[1] == verb]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    made = Here(tmp_path, monkeypatch)
    made.engine("docker")
    return made


def test_services_are_built_before_checks_and_the_largest_check_last() -> None:
    assert [c.image for c in COMPONENTS if c.is_check] == [c.image for c in COMPONENTS[-3:]]
    assert COMPONENTS[-1].image == "preflight-nccl-allreduce"


def test_every_package_with_a_dockerfile_is_a_component() -> None:
    assert {c.package for c in COMPONENTS} >= {
        str(p.parent.relative_to(ROOT)) for p in ROOT.glob("packages/*/Dockerfile")
    }


def test_the_one_dockerfile_of_the_services_is_told_whose_image_it_makes(here: Here) -> None:
    here.build()
    services = [component for component in COMPONENTS if component.shared]
    assert {component.image for component in services} >= {"preflight-webhook", "preflight-gang"}
    for component in services:
        [call] = [call for call in here.calls("build") if f" -t {component.image}:" in call]
        assert f"-f {here.root}/service.Dockerfile " in call
        assert (
            f"--build-arg MEMBER={component.image} --build-arg DESCRIPTION=what {component.image} does "
            in call
        )


def test_the_one_dockerfile_of_the_services_copies_what_each_of_them_builds_on_and_no_other_package() -> (
    None
):
    text = (ROOT / "service.Dockerfile").read_text()
    copied = set(re.findall(r"^COPY packages/(\S+) packages/\1$", text, re.MULTILINE)) - {
        "${MEMBER}"
    }
    for component in COMPONENTS:
        if component.shared is None:
            continue
        about = tomllib.loads((ROOT / component.package / "pyproject.toml").read_text())
        ours = {
            name
            for name, source in about["tool"]["uv"]["sources"].items()
            if source == {"workspace": True}
        }
        needs = {re.split(r"[\[<>=~ ]", need)[0] for need in about["project"]["dependencies"]}
        assert ours & needs == copied, component.image
        assert component.image in about["project"]["scripts"], component.image


def test_what_is_built_has_the_time_of_the_last_commit_that_changed_it(here: Here) -> None:
    here.git("init")
    here.git("add", ".")
    here.git("commit", "-m", "a", at=1_700_000_000)
    here.write("packages/preflight-gang/src/module.py", "a = 2")
    here.git("commit", "-am", "b", at=1_800_000_000)
    here.build()
    times = {
        call.partition(" -t ")[2].partition(":")[0]: re.findall(r"SOURCE_DATE_EPOCH=(\d+)", call)
        for call in here.calls("build")
    }
    assert times.pop("preflight-gang") == ["1800000000"]
    assert set(map(tuple, times.values())) == {("1700000000",)}
    (here.bin / "docker").unlink()
    here.engine("buildah")
    here.write("packages/preflight-gang/src/module.py", "a = 3")
    here.build()
    assert any("--timestamp 1800000000" in call for call in here.calls("bud"))


def test_an_image_that_has_another_id_when_it_is_built_once_more_is_named(
    here: Here, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(images, "ROOT", here.root)
    monkeypatch.setenv("XDG_CACHE_HOME", str(here.cache))
    only = ["--only", "preflight-gang", "--twice"]
    assert images.main(only) == 0
    assert [" --no-cache " in call for call in here.calls("build")] == [True, True]
    docker_archive(here.saved, b"{}")
    assert images.main(only) == 1
    assert "preflight-gang:" in capsys.readouterr().err


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: component.image)
def test_bytecode_holds_no_time_and_what_uv_notes_of_times_is_removed(
    component: images.ImageTable,
) -> None:
    text = component.dockerfile(ROOT).read_text()
    assert "UV_COMPILE_BYTECODE" not in text  # side by side, in any order
    assert "PYTHONHASHSEED=0 /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash" in text  # fmt: skip
    assert "find /opt/venv -name uv_cache.json -delete" in text


def test_the_first_engine_that_answers_is_taken(here: Here) -> None:
    here.engine("docker", answers=False)
    here.engine("podman", answers=False)
    here.engine("buildah")
    assert find_engine().name == "buildah"


def test_without_any_engine_all_that_was_tried_is_said(here: Here) -> None:
    here.engine("docker", answers=False)
    with pytest.raises(
        ImageError,
        match=r"docker has no engine that answers; podman is not installed; buildah is not",
    ):
        find_engine()


def test_unchanged_inputs_are_not_built_again(here: Here) -> None:
    assert here.build() == dict.fromkeys(EVERY, False)
    assert here.build() == dict.fromkeys(EVERY, True)
    assert len(here.calls("build")) == len(COMPONENTS)


@pytest.mark.parametrize(
    ("path", "rebuilt"),
    [
        ("packages/preflight-webhook/src/module.py", {f"preflight-webhook:{VERSION}"}),
        ("packages/check-dcgm/Dockerfile", {f"preflight-dcgm-diag:{VERSION}"}),
        ("service.Dockerfile", {f"{c.image}:{VERSION}" for c in COMPONENTS if c.shared}),
        ("packages/preflight-proto/src/names.py", set(EVERY)),
        (
            "packages/preflight-kube/src/client.py",
            {f"{c.image}:{VERSION}" for c in COMPONENTS if not c.is_check},
        ),
        ("uv.lock", set(EVERY)),
        ("packages/check-dcgm/tests/test_module.py", set()),
        ("e2e/fakes/bin/dcgmi", set()),
    ],
)
def test_a_change_rebuilds_what_it_reaches(here: Here, path: str, rebuilt: set[str]) -> None:
    here.build()
    here.write(path, "changed")
    assert {name for name, cached in here.build().items() if not cached} == rebuilt


def test_another_base_image_of_the_same_name_rebuilds_all(here: Here) -> None:
    here.build()
    here.base = "base-2"
    assert not any(here.build().values())


def test_only_the_newest_archive_of_an_image_is_kept(here: Here) -> None:
    here.build()
    here.write("uv.lock", "changed")
    here.build()
    assert len(list(here.cache.iterdir())) == len(COMPONENTS)


def test_fakes_go_on_top_of_checks_and_of_nothing_else(here: Here) -> None:
    expected = {f"{c.image}:{'e2e' if c.is_check else 'dev'}": not c.is_check for c in COMPONENTS}
    assert set(here.build(e2e=True)) == set(expected)
    assert any("IMAGE=preflight-dcgm-diag:bare" in call for call in here.calls("build"))
    here.write("e2e/fakes/bin/dcgmi", "another fake")
    assert here.build(e2e=True) == expected


def test_buildah_needs_neither_a_daemon_nor_a_registry(here: Here) -> None:
    (here.bin / "docker").unlink()
    here.engine("buildah")
    here.build()
    assert all(
        "--isolation chroot" in call and "--pull-never" in call for call in here.calls("bud")
    )


def test_a_failing_build_is_one_sentence(here: Here) -> None:
    here.fails = "build"
    with pytest.raises(
        ImageError, match=r"^docker build ended with status 1; its last lines say why\.$"
    ):
        build_all(find_engine(), root=here.root, cache=here.cache)


def test_the_command_ends_with_1_where_nothing_builds_images(
    here: Here, capsys: pytest.CaptureFixture[str]
) -> None:
    here.engine("docker", answers=False)
    assert images.main([]) == 1
    assert capsys.readouterr().err.startswith("images: nothing here builds images")


RECIPES = [component for component in COMPONENTS if component.recipe]


def test_a_recipe_makes_the_base_from_its_sources_once(here: Here) -> None:
    here.build()
    made = here.bases()
    assert len(made) == len(RECIPES) == 3
    [call] = [call for call in made if "packages/check-nccl-loopback/base.Dockerfile" in call]
    assert "--build-context nccl-tests=" in call
    assert "--build-arg NCCL_TESTS_VERSION=2.19.6" in call
    assert "NCCL_TESTS_COMMIT" not in call  # its recipe does not ask
    assert any(
        "BASE=localhost/preflight-nccl-loopback-base:" in call for call in here.calls("build")
    )
    here.write("packages/preflight-proto/src/names.py", "changed")
    here.build()
    assert len(here.bases()) == 3


def test_a_base_is_made_anew_where_its_recipe_or_what_that_copies_changed(here: Here) -> None:
    here.build()
    here.write("uv.lock", "changed")
    here.build()
    before, after = (
        re.findall(r" -t (\S+)", " ".join(calls)) for calls in (here.bases()[:3], here.bases()[3:])
    )
    assert len(after) == 3
    assert not set(before) & set(after)


def test_the_e2e_makes_its_own_base_where_stand_ins_need_more_than_python(here: Here) -> None:
    here.build(e2e=True)
    [call] = here.bases()
    assert "e2e/torch-cpu.Dockerfile" in call
    assert "BASE=debian:bookworm-slim" in call
    assert any(
        "BASE=localhost/preflight-nccl-allreduce-test-base:" in call for call in here.calls("build")
    )


def test_an_image_may_have_a_base_of_the_operators(here: Here) -> None:
    build_all(
        find_engine(),
        root=here.root,
        cache=here.cache,
        bases={"preflight-nccl-loopback": "registry.example/mine:1"},
    )
    assert not any("preflight-nccl-loopback-base" in call for call in here.bases())
    assert sum("BASE=registry.example/mine:1" in call for call in here.calls("build")) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--base", "nonsense=x"],
            "--base nonsense: in no package's pyproject.toml; known there: preflight-appwrapper",
        ),
        (["--base", "preflight-gang"], '"preflight-gang" is not NAME=VALUE'),
        (
            ["--source", "nccl=x"],
            "--source nccl: in no package's pyproject.toml; known there: dcgm-4, dcgm-3, plog, tclap, fmt, nccl-tests.",
        ),
    ],
)
def test_a_wrong_option_is_named(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        images.main(words)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_an_image_says_which_version_and_revision_it_is_and_what_it_is_built_on(here: Here) -> None:
    digest = f"sha256:{'a' * 64}"
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        here.git(*words)
    here.git("remote", "add", "origin", "https://me:secret@code.example/preflight")
    head = here.git("rev-parse", "HEAD").strip()
    here.write("packages/preflight-gang/src/module.py", "changed")
    build_all(
        find_engine(),
        root=here.root,
        cache=here.cache,
        bases={"preflight-gang": f"python:3@{digest}"},
    )
    told = {
        image: dict(re.findall(r"--label org\.opencontainers\.image\.(\S+)=(\S+)", call))
        for call in here.calls("build")
        for image in re.findall(r" -t (\S+):", call)
    }
    assert told["preflight-webhook"] == {
        "version": VERSION,
        "revision": head,
        "source": "https://code.example/preflight",
        "base.name": "python:3.11-slim-bookworm",
    }
    assert (
        told["preflight-nccl-loopback"]["base.name"] == "python:3.11-slim-bookworm"
    )  # not what the recipe made here
    assert told["preflight-gang"]["revision"] == f"{head}-dirty"
    assert (told["preflight-gang"]["base.name"], told["preflight-gang"]["base.digest"]) == (
        "python:3",
        digest,
    )


def test_the_digest_of_a_base_that_is_here_is_told_too(here: Here) -> None:
    here.base = f"python@sha256:{'b' * 64}"
    here.build()
    assert f"base.digest=sha256:{'b' * 64}" in here.calls("build")[0]


def test_another_architecture_is_passed_on_and_built_beside_this_ones(
    here: Here, tmp_path: Path
) -> None:
    here.build()
    foreign = Engine("docker", "arm64")
    made = build_all(foreign, root=here.root, cache=here.cache, only=["preflight-webhook"])
    assert not made[0].cached
    assert "--platform linux/arm64" in here.calls("build")[-1]
    with pytest.raises(
        ImageError,
        match=rf"^{COMPONENTS[0].image}: there is no base of it for s390x, only for amd64 and arm64\.$",
    ):
        build_all(Engine("docker", "s390x"), root=here.root, cache=here.cache)


def test_the_command_prints_what_each_image_is_known_by(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    only = ["--only", "preflight-webhook", "--json", str(tmp_path / "made.json")]
    assert images.main([*only, "--platform", "linux/amd64", "--output", str(tmp_path / "out")]) == 0
    reference = f"preflight-webhook:{labels.version(ROOT, 'packages/preflight-webhook')}"
    assert re.search(
        rf"^{reference} .* {ID}  {tmp_path}/out/preflight-webhook\.tar$", capsys.readouterr().out
    )
    [written] = json.loads((tmp_path / "made.json").read_text())
    assert (written["reference"], written["id"]) == (reference, ID)


# --- the tables of the members against the charts, the lock and the Dockerfiles

LOCK = {one["name"]: one for one in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
TABLES: dict[str, dict[str, Any]] = {
    component.image: tomllib.loads((ROOT / component.package / "pyproject.toml").read_text())[
        "tool"
    ]["preflight"]["image"]
    for component in COMPONENTS
}


def test_an_image_is_tagged_with_the_version_of_its_member() -> None:
    for component in COMPONENTS:
        about = tomllib.loads((ROOT / component.package / "pyproject.toml").read_text())
        assert component.reference(e2e=False) == f"{component.image}:{about['project']['version']}"


def test_the_base_of_a_dockerfile_is_that_of_the_table() -> None:
    for component in COMPONENTS:
        files = {component.dockerfile(ROOT): component.base}
        files |= {ROOT / component.recipe: component.base} if component.recipe else {}
        files |= (
            {ROOT / component.test_recipe: component.test_base or ""}
            if component.test_recipe
            else {}
        )
        for path, base in files.items():
            assert f"ARG BASE={base}" in path.read_text().splitlines(), path


def test_every_check_has_a_recipe_for_its_tool_of_the_versions_that_the_table_names() -> None:
    checks = {component.image: component for component in COMPONENTS if component.is_check}
    assert all(component.recipe for component in checks.values())
    dcgm, loopback, allreduce = (
        checks[f"preflight-{name}"] for name in ("dcgm-diag", "nccl-loopback", "nccl-allreduce")
    )
    told = {image: dict(component.versions) for image, component in checks.items()}
    source = {
        one.name: one.version.removeprefix("v")
        for component in checks.values()
        for one in component.sources
    }
    assert told[dcgm.image] == {"dcgmi": source["dcgm-4"], "dcgmi3": source["dcgm-3"]}
    runs = {
        "nccl": LOCK["nvidia-nccl-cu13"]["version"],
        "cuda": ".".join(LOCK["cuda-toolkit"]["version"].split(".")[:2]),
    }
    assert told[loopback.image] == {"nccl-tests": source["nccl-tests"], **runs}
    assert told[allreduce.image] == {"torch": LOCK["torch"]["version"], **runs}
    loopbacks = tomllib.loads((ROOT / loopback.package / "pyproject.toml").read_text())
    assert {f"nvidia-nccl-cu13=={runs['nccl']}"} <= {*loopbacks["dependency-groups"]["tool"]}


def test_a_recipe_copies_every_source_that_the_table_names_and_no_other() -> None:
    for component in RECIPES:
        text = (ROOT / str(component.recipe)).read_text()
        stages = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE))
        copied = set(re.findall(r"^COPY --from=(\S+)", text, re.MULTILINE)) - stages
        assert copied == {source.name for source in component.sources}, component.image


def test_the_lock_has_the_torch_of_the_image_for_both_architectures() -> None:
    urls = [wheel["url"] for wheel in LOCK["torch"]["wheels"]]
    for machine in ("x86_64", "aarch64"):
        assert [url for url in urls if f"cp311-cp311-manylinux_2_28_{machine}.whl" in url]


def test_the_e2es_base_goes_on_trusting_the_authorities_of_what_it_is_built_on() -> None:
    """Its upgrade installs Debian's package of authorities, which writes the file anew: a place's
    own would be lost to pip.
    """
    lines = (ROOT / "e2e/torch-cpu.Dockerfile").read_text().splitlines()
    upgrade = next(number for number, line in enumerate(lines) if "dist-upgrade" in line)
    kept = lines.index("COPY --from=base /authorities /authorities")
    assert upgrade < kept
    assert lines[kept + 1].endswith(">> /etc/ssl/certs/ca-certificates.crt")


def test_the_table_knows_no_word_that_is_not_read() -> None:
    known = {
        *("name", "dockerfile", "base", "recipe", "tool", "versions", "test-base", "test-recipe"),
        *("architectures", "sources", "debian"),
    }
    assert {key for table in TABLES.values() for key in table} <= known


# --- the smoke test of each check's image, as its Dockerfile runs it

SMOKE = {c.image: ROOT / c.package / "smoke.sh" for c in COMPONENTS if c.is_check}


def smoke(script: Path, folder: Path, **tools: str) -> subprocess.CompletedProcess[str]:
    """Run it where ``tools``, shell scripts, are all that is on PATH beside the system's own."""
    for name, text in tools.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    environ = {"PATH": f"{folder}:/usr/bin:/bin"}
    return subprocess.run(
        ["/bin/sh", script], capture_output=True, text=True, env=environ, check=False
    )


def test_every_checks_dockerfile_runs_its_smoke_test() -> None:
    assert len(SMOKE) == 3
    for image, script in SMOKE.items():
        lines = (script.parent / "Dockerfile").read_text().splitlines()
        assert 'RUN [ "${TOOL}" = later ] || sh /opt/venv/smoke.sh' in lines, image


@pytest.mark.parametrize(
    ("image", "tools", "says"),
    [
        (
            "preflight-dcgm-diag",
            {},
            "preflight-dcgm-diag: dcgmi is not on PATH of the base image; build it on one",
        ),
        (
            "preflight-dcgm-diag",
            {"dcgmi": "echo no libdcgm.so.4; exit 127"},
            "dcgmi does not start: no libdcgm.so.4",
        ),
        ("preflight-dcgm-diag", {"dcgmi": "exit 0", "dcgmi3": "exit 9"}, "dcgmi3 does not start"),
        (
            "preflight-nccl-loopback",
            {},
            "all_reduce_perf is not on PATH of the base image; build it on one",
        ),
        (
            "preflight-nccl-loopback",
            {"all_reduce_perf": "", "ldd": "echo 'libnccl.so.2 => not found'"},
            "does not find its libraries",
        ),
        (
            "preflight-nccl-loopback",
            {"all_reduce_perf": "echo Illegal instruction; exit 132", "ldd": ""},
            "does not start: Illegal instruction",
        ),
        (
            "preflight-nccl-allreduce",
            {"python": "echo 'No module named torch'; exit 1"},
            "torch does not load in this",
        ),
    ],
)
def test_an_image_without_its_tool_is_not_built(
    image: str, tools: dict[str, str], says: str, tmp_path: Path
) -> None:
    done = smoke(SMOKE[image], tmp_path, **tools)
    assert done.returncode == 1
    [sentence] = done.stderr.splitlines()
    assert says in sentence


@pytest.mark.parametrize(
    ("image", "tools"),
    [
        ("preflight-dcgm-diag", {"dcgmi": "echo version: 4.4.2"}),
        (
            "preflight-nccl-loopback",
            {
                "all_reduce_perf": "echo CUDA driver version is insufficient for it; exit 2",
                "ldd": "",
            },
        ),
        (
            "preflight-nccl-loopback",
            {"all_reduce_perf": "exit 0", "ldd": "echo 'libcuda.so.1 => not found'"},
        ),
        ("preflight-nccl-allreduce", {"python": "exit 0"}),
    ],
)
def test_an_image_with_its_tool_is_built(image: str, tools: dict[str, str], tmp_path: Path) -> None:
    done = smoke(SMOKE[image], tmp_path, **tools)
    assert (done.returncode, done.stderr) == (0, "")
