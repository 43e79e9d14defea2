"""One mutation at a time, of this process and of another plugin of the node."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

_POLL: Final = 0.05
"""Seconds between two attempts; a waiting flock would hold a thread, and could not be cancelled."""


class LockHeld(Exception):
    """Somebody else has had the lock for all the time that was waited; one sentence."""


class Lock:
    """``patience``: seconds in all. Use within one event loop."""

    def __init__(self, path: Path, patience: float = 10.0) -> None:
        self._path, self._patience = path, patience
        self._own = asyncio.Lock()

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """Raises :class:`LockHeld`, and OSError where the file cannot be opened."""
        who = "this process"
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._patience):
                    await stack.enter_async_context(self._own)
                    who = "another process"
                    number = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                    stack.callback(os.close, number)  # which gives the lock back
                    while not _taken(number):  # noqa: ASYNC110 - nobody tells of a lock
                        await asyncio.sleep(_POLL)
            except TimeoutError:
                late = f"{self._path}: {who} has held the lock for {self._patience:g} s"
                raise LockHeld(late) from None
            yield


def _taken(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
