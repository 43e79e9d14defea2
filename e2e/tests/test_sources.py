"""Sources of recipes, from real repositories."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from preflight_e2e.sources import PinnedSource, SourceError, checkout


def git(at: Path, *words: str) -> str:
    who = ["-c", "user.name=Tester", "-c", "user.email=tester@example.com"]
    return subprocess.run(
        ["git", *who, *words], cwd=at, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "upstream"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "Makefile").write_text("all:\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    git(folder, "tag", "v1")
    return folder


@pytest.fixture
def source(repository: Path) -> PinnedSource:
    return PinnedSource("tool", str(repository), "v1", git(repository, "rev-parse", "v1"), "MIT")


def test_a_tag_is_fetched_and_its_commits_files_are_kept(
    source: PinnedSource, tmp_path: Path
) -> None:
    folder = checkout(source, None, tmp_path / "kept")
    assert [path.name for path in folder.iterdir()] == ["Makefile"]
    gone = replace(source, repository="/nowhere")
    assert checkout(gone, None, tmp_path / "kept") == folder  # kept: no network is asked again
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [folder.name]


def test_a_clone_on_this_machine_serves_as_well(
    source: PinnedSource, repository: Path, tmp_path: Path
) -> None:
    offline = replace(source, repository="/nowhere")
    assert (checkout(offline, repository, tmp_path / "kept") / "Makefile").exists()
    assert (checkout(offline, repository / ".git", tmp_path / "again") / "Makefile").exists()


def test_a_tag_that_was_moved_to_another_commit_is_refused(
    source: PinnedSource, repository: Path, tmp_path: Path
) -> None:
    (repository / "Makefile").write_text("all: mischief\n")
    git(repository, "commit", "-qam", "second")
    git(repository, "tag", "-f", "v1")
    with pytest.raises(
        SourceError,
        match=rf"^tool v1 \(commit {source.commit[:12]}\) is not to be had .*--source tool=REPOSITORY",
    ):
        checkout(source, None, tmp_path / "kept")


@pytest.mark.parametrize("given", [None, Path("/nowhere")])
def test_a_source_that_is_not_to_be_had_is_one_sentence(
    given: Path | None, source: PinnedSource, tmp_path: Path
) -> None:
    with pytest.raises(SourceError) as raised:
        checkout(replace(source, repository="/nowhere"), given, tmp_path / "kept")
    assert "\n" not in str(raised.value)
    assert "--source tool=REPOSITORY" in str(raised.value)
