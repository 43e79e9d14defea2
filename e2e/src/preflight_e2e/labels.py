"""What an image says of itself: OCI's labels, and the id by which any registry and any node knows
it.
"""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

PREFIX = "org.opencontainers.image."


def version(root: Path, package: str) -> str:
    """The version of the member in the folder ``package``: that of its image, and of its chart."""
    read = tomllib.loads((root / package / "pyproject.toml").read_text())
    return str(read["project"]["version"])


def labels(
    root: Path, package: str, inputs: Iterable[Path], base: str, base_digest: str | None
) -> dict[str, str]:
    """Version, source and revision, and the base; what is not known, as outside a clone, is left
    out.

    The revision is the last commit that changed one of ``inputs``, so that the same inputs give the
    same image, with ``-dirty`` where they differ from it.
    """
    paths = sorted({str(path.relative_to(root)) for path in inputs})
    revision = _git(root, "log", "-1", "--format=%H", "--", *paths)
    if revision and _git(root, "status", "--porcelain", "--", *paths):
        revision += "-dirty"
    origin = _git(root, "remote", "get-url", "origin")
    known = {
        "version": version(root, package),
        "revision": revision,
        "source": re.sub(r"//[^/@]*@", "//", origin) if origin.startswith("https://") else "",
        "base.name": base.partition("@")[0],
        "base.digest": base.partition("@")[2] or base_digest,
    }
    return {PREFIX + key: value for key, value in known.items() if value}


def changed(root: Path, inputs: Iterable[Path]) -> int:
    """When a commit last changed one of ``inputs``, in seconds; 0 where that is not known."""
    paths = sorted({str(path.relative_to(root)) for path in inputs})
    return int(_git(root, "log", "-1", "--format=%ct", "--", *paths) or 0)


def image_id(archive: Path) -> str:
    """The id of the one image in a docker archive: the hash of its configuration, and so of all its
    layers.
    """
    with tarfile.open(archive) as tar:
        manifest = tar.extractfile("manifest.json")
        assert manifest is not None
        [image] = json.load(manifest)
    return "sha256:" + Path(image["Config"]).name.removesuffix(".json")


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
