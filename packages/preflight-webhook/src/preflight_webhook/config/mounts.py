"""Mounts of the workload that a check of the fabric may inherit: shared memory, a topology file,
and data of the operator's choice.

What is mounted must never stand in for the check's own code, settings or files, so a mount comes to
one of three places: /dev/shm from memory alone, a topology file at a path of ours, and folders that
the operator names and that no image has anything in.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from posixpath import basename, normpath, relpath
from typing import Any, Final

from preflight_proto import names

__all__ = ["Mounts", "moved", "normal"]

_SYSTEM: Final = frozenset(
    [
        "app",
        "bin",
        "boot",
        "conda",
        "dev",
        "etc",
        "home",
        "init",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "nix",
        "opt",
        "proc",
        "root",
        "run",
        "sbin",
        "snap",
        "sys",
        "tmp",
        "usr",
        "var",
        "venv",
        "workspace",
    ]
)
"""Folders of an image that hold programs, libraries, settings, state or whatever
it is started in.
"""
_LITERAL: Final = re.compile(r"^/+([^/*?\[]+)(?:/|$|\*$)")
"""The first folder of a pattern, where it is written out; `/data*` names it well enough."""


class Mounts:
    """What one check inherits, in the making. ``memory``: names of volumes that are memory;
    ``warnings`` grows.
    """

    def __init__(
        self, patterns: Iterable[str], memory: Collection[str], warnings: list[str]
    ) -> None:
        self.taken: dict[str, dict[str, Any]] = {}
        self._patterns = [normal(one) for one in patterns]
        self._memory, self._warnings = memory, warnings

    def offer(self, mount: dict[str, Any], where: str) -> None:
        """Take ``mount``, of the container at ``where``, if a pattern asks for it and nothing
        speaks against it.
        """
        path = normal(str(mount.get("mountPath")))
        if not any(fnmatchcase(path, pattern) for pattern in self._patterns):
            return
        if why := self._refused(path, mount):
            self._warnings.append(
                f"{where}: the mount at {mount.get('mountPath')} is not passed on to the checks, as {why}"
            )
        elif path not in self.taken:
            # Bidirectional takes a privileged container.
            self.taken[path] = {
                key: value for key, value in mount.items() if key != "mountPropagation"
            }

    def _refused(self, path: str, mount: dict[str, Any]) -> str:
        there = self.taken.get(path)
        if there is not None:
            same = there.get("name") == mount.get("name") and there.get("subPath") == mount.get(
                "subPath"
            )
            return "" if same else "another one is at that path"
        if mount.get("subPathExpr"):
            return "its subPathExpr is the container's own"
        if path == names.SHM_DIR:
            return (
                ""
                if mount.get("name") in self._memory
                else "its volume is not an emptyDir of medium Memory"
            )
        top = path.split("/")[1]
        if not top:
            return "it would cover the whole image"
        if top in _SYSTEM:
            return (
                f"programs and settings are looked for in /{top}, and the pod's author says what is mounted; "
                "have the operator mount it (checks[].extraVolumeMounts)"
            )
        if not any(_LITERAL.match(one) and fnmatchcase(path, one) for one in self._patterns):
            return f"no pattern of mountPatterns names the folder /{top}"
        return ""


def moved(file: str, mounted: Iterable[dict[str, Any]]) -> tuple[str, dict[str, Any]] | str:
    """(where a check finds the topology file that the workload has at ``file``, the mount that
    brings it there), or why it cannot.

    ``mounted``: the mounts of the container. NCCL stops at a file that is not there, so one of the
    workload's image cannot be named.
    """
    if "$(" in file:
        return "refers to other variables"
    path = normal(file)
    holding = [m for m in mounted if _under(path, normal(str(m.get("mountPath"))))]
    if not holding:
        return "lies in no volume, so the checks run without it; mount the file to have it used"
    innermost = max(holding, key=lambda m: len(normal(str(m.get("mountPath")))))
    if innermost.get("subPathExpr"):
        return "lies in a mount whose subPathExpr is the container's own"
    folder = normal(str(innermost.get("mountPath")))
    if folder == path:  # the file itself is mounted
        there = at = f"{names.USER_TOPOLOGY_DIR}/{basename(path)}"
    else:
        there, at = f"{names.USER_TOPOLOGY_DIR}/{relpath(path, folder)}", names.USER_TOPOLOGY_DIR
    mount = {"name": innermost.get("name"), "mountPath": at, "readOnly": True}
    if innermost.get("subPath"):
        mount["subPath"] = innermost["subPath"]
    return there, mount


def normal(path: str) -> str:
    """An absolute path without `.`, `..` and doubled slashes."""
    return normpath("/" + path.lstrip("/"))


def _under(path: str, folder: str) -> bool:
    return folder in {path, "/"} or path.startswith(folder + "/")
