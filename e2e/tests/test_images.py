"""Building images, with a recording stand-in for the engine: what is built when, and what is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from preflight_e2e import images
from preflight_e2e.images import COMPONENTS, ROOT, ImageError, build_all, find_engine

RECORDER = """#!/bin/sh
echo "$(basename "$0") $*" >> "{log}"
case "$1" in
  info) exit {info} ;;
  image|inspect) [ -s "{base}" ] && cat "{base}" && exit 0; exit 1 ;;
  save) echo archive > "$3" ;;
  push) target="${{4#docker-archive:}}"; echo archive > "${{target%%:*}}" ;;
esac
"""


EVERY = [f"{component.image}:dev" for component in COMPONENTS]


class Here:
    """A small repository, a cache, and engines that only write down how they were called."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.cache, self.bin = folder / "repo", folder / "cache", folder / "bin"
        self.log, self.base = folder / "log", folder / "base-id"
        self.bin.mkdir()
        self.base.write_text("base-1")
        for tool in ("sh", "basename", "cat"):
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)
        monkeypatch.setenv("PATH", str(self.bin))
        for path in ("pyproject.toml", "uv.lock", ".dockerignore", "e2e/fakes.Dockerfile", "e2e/fakes/bin/dcgmi"):
            self.write(path, path)
        for component in COMPONENTS:
            self.write(f"{component.package}/Dockerfile", "FROM x")
            self.write(f"{component.package}/src/module.py", "a = 1")
            self.write(f"{component.package}/tests/test_module.py", "")
        self.write("packages/preflight-proto/src/names.py", "")

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def engine(self, name: str, *, answers: bool = True) -> None:
        path = self.bin / name
        path.write_text(RECORDER.format(log=self.log, base=self.base, info=0 if answers else 1))
        path.chmod(0o755)

    def build(self, *, e2e: bool = False) -> dict[str, bool]:
        """What was asked for, and whether it was there already."""
        made = build_all(find_engine(), root=self.root, cache=self.cache, e2e=e2e)
        assert all(image.archive.read_text() == "archive\n" for image in made)
        return {image.reference: image.cached for image in made}

    def calls(self, verb: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.split()[1] == verb]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    made = Here(tmp_path, monkeypatch)
    made.engine("docker")
    return made


def test_every_package_with_a_dockerfile_is_a_component() -> None:
    assert {c.package for c in COMPONENTS} >= {
        str(p.parent.relative_to(ROOT)) for p in ROOT.glob("packages/*/Dockerfile")
    }


def test_the_first_engine_that_answers_is_taken(here: Here) -> None:
    here.engine("docker", answers=False)
    here.engine("podman", answers=False)
    here.engine("buildah")
    assert find_engine().name == "buildah"


def test_without_any_engine_all_that_was_tried_is_said(here: Here) -> None:
    here.engine("docker", answers=False)
    with pytest.raises(ImageError, match=r"docker has no engine that answers; podman is not installed; buildah is not"):
        find_engine()


def test_unchanged_inputs_are_not_built_again(here: Here) -> None:
    assert here.build() == dict.fromkeys(EVERY, False)
    assert here.build() == dict.fromkeys(EVERY, True)
    assert len(here.calls("build")) == len(COMPONENTS)


@pytest.mark.parametrize(
    ("path", "rebuilt"),
    [
        ("packages/preflight-webhook/src/module.py", {"preflight-webhook:dev"}),
        ("packages/check-dcgm/Dockerfile", {"preflight-dcgm-diag:dev"}),
        ("packages/preflight-proto/src/names.py", set(EVERY)),
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
    here.base.write_text("base-2")
    assert not any(here.build().values())


def test_only_the_newest_archive_of_an_image_is_kept(here: Here) -> None:
    here.build()
    here.write("uv.lock", "changed")
    here.build()
    assert len(list(here.cache.iterdir())) == len(COMPONENTS)


def test_fakes_go_on_top_of_checks_and_of_nothing_else(here: Here) -> None:
    expected = {f"{c.image}:{'e2e' if c.is_check else 'dev'}": not c.is_check for c in COMPONENTS}
    assert set(here.build(e2e=True)) == set(expected)
    assert any("IMAGE=preflight-dcgm-diag:dev" in call for call in here.calls("build"))
    here.write("e2e/fakes/bin/dcgmi", "another fake")
    assert here.build(e2e=True) == expected


def test_buildah_needs_neither_a_daemon_nor_a_registry(here: Here) -> None:
    (here.bin / "docker").unlink()
    here.engine("buildah")
    here.build()
    assert all("--isolation chroot" in call and "--pull-never" in call for call in here.calls("bud"))


def test_a_failing_build_is_one_sentence(here: Here) -> None:
    (here.bin / "docker").write_text('#!/bin/sh\n[ "$1" != build ]\n')
    with pytest.raises(ImageError, match=r"^docker build ended with status 1; its last lines say why\.$"):
        build_all(find_engine(), root=here.root, cache=here.cache)


def test_the_command_ends_with_1_where_nothing_builds_images(here: Here, capsys: pytest.CaptureFixture[str]) -> None:
    here.engine("docker", answers=False)
    assert images.main([]) == 1
    assert capsys.readouterr().err.startswith("images: nothing here builds images")
