"""A worker's or an agent's life: it ends with its parent, and speaks to it over a socket in a
folder of its own. And how an agent ends what it has forked, and sees who does not go.

SIGKILL ends a process only when each of its threads has left the kernel: its first thread may be a
zombie while another one sits in a driver. And torchrun's own end says nothing of its workers, so
all of an agent's process group are waited for.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

LINK: Final = "PREFLIGHT_WORKER_LINK"
"""Variable: path of the parent's socket."""
AGENT: Final = "PREFLIGHT_WORKER_AGENT"
"""Variable: process id of the torchrun that a worker was forked from."""

BEAT: Final = 1.0
EVERY: Final = 0.05
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_ENDED: Final = frozenset("ZX")


def end_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent (whose process id is ``parent``) ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)


class ParentPipe:
    """One line of JSON after another, to the check and from it. When the check ends, so does this
    process, whatever it waits in.
    """

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._sending = threading.Lock()
        self._orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def send(self, **what: Any) -> None:
        """Send one line to the check; threads may call this at the same time."""
        with self._sending:
            self._socket.sendall(json.dumps(what).encode() + b"\n")

    def order(self) -> dict[str, Any]:
        """The check's next order; waiting holds connections open, for a peer may not be done."""
        return self._orders.get()

    def _read(self) -> None:
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    self._orders.put(json.loads(line))
        except (OSError, ValueError):
            pass
        os._exit(0)

    def _beat(self) -> None:
        """A sign of life each second, also while torch waits; who is stopped gives none."""
        while True:
            time.sleep(BEAT)
            try:
                self.send(beat=True)
            except OSError:
                return


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
    """Tell whether a thread of one of these sits in a sleep that no signal ends."""
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
