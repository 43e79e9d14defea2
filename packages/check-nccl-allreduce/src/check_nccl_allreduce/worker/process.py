"""A worker's or an agent's life: it ends with its parent, and speaks to it over a socket in a folder of its own."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import threading
from typing import Any, Final

__all__ = ["AGENT", "LINK", "Link", "end_with_parent"]

LINK: Final = "PREFLIGHT_WORKER_LINK"
"""Variable: path of the parent's socket."""
AGENT: Final = "PREFLIGHT_WORKER_AGENT"
"""Variable: process id of the torchrun that a worker was forked from."""

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent (whose process id is ``parent``) ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)


class Link:
    """One line of JSON after another to the check. When the check ends, so does this process, whatever it waits in."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        threading.Thread(target=self._end_with_check, daemon=True).start()

    def say(self, **what: Any) -> None:
        self._socket.sendall(json.dumps(what).encode() + b"\n")

    def stay(self) -> None:
        """Hold every connection open until the check ends this process: a peer may not have finished yet."""
        threading.Event().wait()

    def _end_with_check(self) -> None:
        try:
            while self._socket.recv(64):
                pass
        except OSError:
            pass
        os._exit(0)
