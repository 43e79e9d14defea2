"""Sources that an image's recipe compiles: one commit of a public repository, checked out once and
kept by its id.

A commit's id is a hash over all of its content, so it does not matter where a clone comes from.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
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


def kept_at(rig: str) -> Path:
    """Where what a session compiles stays."""
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "preflight" / rig


def compile_go(name: str, package: Path, binary: Path, *options: str) -> None:
    """Compile the Go program ``package`` to ``binary`` by ``options`` of ``go build``, as slowly as
    other work wants; what the compiler says stands beside it. Raises RigError.
    """
    if shutil.which("go") is None:
        raise RigError(f"{name} cannot be compiled here: there is no go; install Go 1.26 or newer.")
    words = ["nice", "-n", "19", "go", "build", "-p", "1", "-trimpath", *options]
    log = binary.with_suffix(".log")
    static = {**os.environ, "CGO_ENABLED": "0"}
    with log.open("w") as out:
        words += ["-o", str(binary), "."]
        done = subprocess.run(words, cwd=package, env=static, stdout=out, stderr=out, check=False)
    if done.returncode != 0:
        raise RigError(f"{name} does not compile here; the first error is in {log}.")


def rig(
    argv: Sequence[str] | None,
    session: str,
    about: str | None,
    names: Sequence[str],
    build: Callable[[Mapping[str, Path]], Path],
) -> int:
    """The command line of a session that compiles what others' sources make: prints the folder, or
    exits 1 with one sentence. ``names``: of sources that may be given.
    """
    parser = argparse.ArgumentParser(prog=f"nox -s {session} --", description=about)
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="NAME=REPOSITORY",
        help=f"a clone of {' or '.join(names)} on this machine, instead of the public one",
    )
    given = {}
    for pair in parser.parse_args(argv).source:
        name, _, where = pair.partition("=")
        if name not in names or not where:
            parser.error(f"--source {pair}: not NAME=REPOSITORY with {' or '.join(names)}.")
        given[name] = Path(where).resolve()
    try:
        print(build(given))
    except (RigError, SourceError) as error:
        print(f"{session}: {error}", file=sys.stderr)
        return 1
    return 0


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
