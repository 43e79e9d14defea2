"""Seconds in which this process was there to listen: what it has slept through says nothing of
others.
"""

from __future__ import annotations

from typing import Final

import anyio

__all__ = ["Awake"]

LATE: Final = 0.05
"""Seconds by which any process on a busy machine is late."""


class Awake:
    """A clock that stands still while this process is stopped, or has no processor."""

    def __init__(self) -> None:
        self._missed = 0.0

    def now(self) -> float:
        """Seconds of the event loop's clock without those in which this process did not run."""
        return anyio.current_time() - self._missed

    async def sleep(self, seconds: float) -> None:
        """As :func:`anyio.sleep`; by how much later it returns has been missed."""
        due = anyio.current_time() + seconds
        await anyio.sleep(seconds)
        late = anyio.current_time() - due
        if late > LATE:
            self._missed += late
