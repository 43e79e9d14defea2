"""A worker's or an agent's life: it ends with its parent, and speaks to it over a socket in a
folder of its own.
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
from typing import Any, Final

LINK: Final = "PREFLIGHT_WORKER_LINK"
"""Variable: path of the parent's socket."""
AGENT: Final = "PREFLIGHT_WORKER_AGENT"
"""Variable: process id of the torchrun that a worker was forked from."""

BEAT: Final = 1.0

_PR_SET_PDEATHSIG: Final = 1


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
