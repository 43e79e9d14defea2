"""The processes that a check's tools leave behind, by /proc: those that hold a pipe, and all that
descend from us.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h
_PAUSE: Final = 0.01
_PROC: Final = Path("/proc")


def adopt_orphans() -> None:
    """Become the parent of every process that a tool leaves behind, as process 1 is without asking.

    A tool that daemonises leaves our session and process group; that it stays our descendant is
    what makes it findable where the pod shares its process namespace.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def holders(pipes: Collection[int]) -> set[int]:
    """Processes, without this one, that have one of these pipes open (by inode number)."""
    wanted = {f"pipe:[{inode}]" for inode in pipes}
    pids = set()
    for folder in _numbers():
        with suppress(OSError):
            if int(folder.name) != os.getpid() and any(
                _target(link) in wanted for link in (folder / "fd").iterdir()
            ):
                pids.add(int(folder.name))
    return pids


def descendants(ancestor: int) -> set[int]:
    """The living processes below ``ancestor``; zombies and what another user owns aside."""
    children = defaultdict(list)
    for folder in _numbers():
        with suppress(OSError, ValueError, IndexError):
            state, parent = (
                (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            )
            children[int(parent)].append((int(folder.name), state))
    pids, look = set(), [ancestor]
    while look:
        for pid, state in children[look.pop()]:
            look.append(pid)
            if state not in "ZX":
                pids.add(pid)
    return pids


def kill(pids: Collection[int]) -> None:
    """SIGKILL to each that is there and ours to kill."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def end_all(within: float) -> set[int]:
    """Kill every descendant of this process; returns what is there after ``within`` seconds (in the
    kernel, or not ours to kill).
    """
    end = time.monotonic() + within
    while left := descendants(os.getpid()):
        if time.monotonic() >= end:
            return left
        kill(left)
        time.sleep(_PAUSE)
    return set()


def _numbers() -> list[Path]:
    try:
        return [folder for folder in _PROC.iterdir() if folder.name.isdecimal()]
    except OSError:
        return []


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
