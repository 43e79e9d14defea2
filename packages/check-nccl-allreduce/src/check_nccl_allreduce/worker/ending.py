"""Killing what an agent has forked, and seeing who does not go.

SIGKILL ends a process only when each of its threads has left the kernel: its first thread may be a
zombie while another one sits in a driver. And torchrun's own end says nothing of its workers, so
all of this process's group are waited for.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

EVERY: Final = 0.05
_PR_SET_CHILD_SUBREAPER: Final = 36
_ENDED: Final = frozenset("ZX")


def adopt_orphans() -> None:
    """Have the kernel make this process the parent of its children's children whose own parent has
    ended: it is to see them go.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end(
    children: Sequence[int], within: float, *, kill: Callable[[int], None], proc: str = "/proc"
) -> list[int]:
    """Kill these processes and all of our group; those left after ``within`` seconds."""
    give_up = time.monotonic() + within
    killed: set[int] = set()
    while True:
        left = [pid for pid in {*children, *_group(proc)} if set(threads(pid, proc)) - _ENDED]
        if not left or time.monotonic() > give_up:
            _reap()
            return sorted(left)
        for pid in left:
            if pid not in killed:
                killed.add(pid)
                kill(pid)
        time.sleep(EVERY if killed else 0)
        _reap()


def kill(pid: int) -> None:
    """Send SIGKILL; no error where the process is gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def threads(pid: int, proc: str = "/proc") -> list[str]:
    """The kernel's letter for each thread of a process: D is a sleep that no signal ends, in a
    driver or on a disk. Empty where it is gone.
    """
    try:
        # pathlib would be one import more in every worker.
        names = os.listdir(f"{proc}/{pid}/task")  # noqa: PTH208
    except OSError:
        return []
    return [fields[0] for name in names if (fields := _stat(f"{proc}/{pid}/task/{name}/stat"))]


def asleep(pids: Sequence[int], proc: str = "/proc") -> bool:
    """Whether a thread of one of these sits in a sleep that no signal ends."""
    return any("D" in threads(pid, proc) for pid in pids)


def _group(proc: str) -> list[int]:
    """All other processes of our group, which is ours alone where we lead it."""
    own = os.getpid()
    if os.getpgrp() != own:
        return []
    pids = []
    for name in os.listdir(proc):  # noqa: PTH208
        if name.isdecimal() and int(name) != own:
            fields = _stat(f"{proc}/{name}/stat")
            if len(fields) > 2 and fields[2] == str(own):
                pids.append(int(name))
    return pids


def _stat(path: str) -> list[str]:
    """What the kernel says of a process or thread, from its state on: state, parent, group …"""
    try:
        with open(path, "rb") as stat:  # noqa: PTH123
            return stat.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
