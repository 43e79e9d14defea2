"""A check's stdout and stderr: lines for people, which never decide anything.

Whether a line can be written changes no verdict: a full disk, a reader that is gone, a closed or a
stalled pipe lose lines and nothing else. Lines go to the descriptor itself, so nothing is left to
flush when the process ends.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from typing import Final

from ..printable import printable

MAX_LINE: Final = 256 * 1024
"""Characters of a line; the table of the largest gang stays far below."""
PATIENCE: Final = 1.0
"""Seconds that all lines of a run together wait for a reader that does not read."""
_CHUNK: Final = 4096
"""A pipe that polls as writable takes so many bytes at once (PIPE_BUF)."""


class _State:
    """Of the process, as its descriptors are."""

    left = PATIENCE


def echo(text: str) -> None:
    """One line of ``text`` to stdout, printable whatever a tool wrote."""
    write(1, printable(text, MAX_LINE) + "\n")


def complain(text: str) -> None:
    """Lines of ``text`` to stderr, each printable (its indentation stays)."""
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip(" "))]
        write(2, indent + printable(line, MAX_LINE) + "\n")


def write(descriptor: int, text: str) -> None:
    """As much of ``text`` as the descriptor takes. Raises nothing for what it does not."""
    data = memoryview(text.encode(errors="backslashreplace"))
    with suppress(OSError):
        while data:
            if not _writable(descriptor):
                return
            with suppress(BlockingIOError):
                data = data[os.write(descriptor, data[:_CHUNK]) :]


def open_closed() -> None:
    """Give stdin, stdout and stderr that are closed to /dev/null: the next file opened would get
    their number, and our lines.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one


def _writable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if poll.poll(0):
        return True
    started = time.monotonic()
    ready = poll.poll(max(0.0, _State.left) * 1000)
    _State.left -= time.monotonic() - started
    return bool(ready)
