"""Sources that an image's recipe compiles: one commit of a public repository, checked out once and
kept by its id.

A commit's id is a hash over all of its content, so it does not matter where a clone comes from.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PinnedSource:
    """``version``: the repository's tag for ``commit`` (its whole id), or that id again where it
    has none. ``paths``: all that is wanted of it. ``license``: by its SPDX id.
    """

    name: str
    repository: str
    version: str
    commit: str
    license: str
    paths: tuple[str, ...] = ()

    def arguments(self) -> tuple[tuple[str, str], ...]:
        """What a recipe may ask to be told: ``<NAME>_VERSION``, without a ``v``, and
        ``<NAME>_COMMIT``.
        """
        name = self.name.upper().replace("-", "_")
        return (
            (f"{name}_VERSION", self.version.removeprefix("v")),
            (f"{name}_COMMIT", self.commit),
        )


class SourceError(Exception):
    """The source is not to be had; the message is one sentence."""


class RigError(Exception):
    """What is compiled of sources is not to be had here; the message is one sentence."""


def checkout(source: PinnedSource, given: Path | None, kept: Path) -> Path:
    """The folder with the source's files, below ``kept``. ``given``: a repository on this machine
    to take it from.

    Raises SourceError.
    """
    folder = kept / f"{source.name}-{source.commit}"
    if folder.exists():
        return folder
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept) as scratch:
        work = Path(scratch)
        if given is None:
            _git(source, work, "init", "-q", "clone")
            repository = work / "clone" / ".git"
            wanted = (
                source.commit if source.version == source.commit else f"refs/tags/{source.version}"
            )
            _git(source, repository, "fetch", "-q", "--depth", "1", source.repository, wanted)
        else:
            repository = given / ".git" if (given / ".git").exists() else given
        # The archive's name is the commit's id: what another hash names is not found.
        _git(
            source,
            repository,
            "archive",
            "-o",
            str(work / "source.tar"),
            source.commit,
            "--",
            *source.paths,
        )
        (work / "files").mkdir()
        subprocess.run(
            ["tar", "-x", "-f", str(work / "source.tar"), "-C", str(work / "files")], check=True
        )
        (work / "files").rename(folder)
    return folder


def _git(source: PinnedSource, at: Path, *words: str) -> None:
    done = (
        subprocess.run(["git", *words], cwd=at, capture_output=True, text=True, check=False)
        if at.is_dir()
        else None
    )
    if done is None or done.returncode != 0:
        reason = (
            (done.stderr.strip() or "nothing").splitlines()[-1]
            if done is not None
            else "there is no such folder"
        )
        raise SourceError(
            f"{source.name} {source.version} (commit {source.commit[:12]}) is not to be had from {at if 'archive' in words else source.repository}: "
            f"{reason}; give a clone of it with --source {source.name}=REPOSITORY."
        )
