"""Nothing is sent while the API server has asked for a pause (429 or 503 with Retry-After).

The pause is for all that this client has to say: priority and fairness turns away a flow, not a
request, and a thousand writes that each find it out by themselves would be a thousand requests
more.
"""

from __future__ import annotations

import math
import random
from typing import Final

import anyio

from .clock import Clock

__all__ = ["Door"]

_SPREAD: Final = 1.5
"""Whom it held up goes within half as long again: all at once would be turned away once more."""


class Door:
    """Open until it is :meth:`shut`; copies of a client share it."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._shut_until = clock, -math.inf

    def shut(self, seconds: float) -> None:
        """Let nobody through for ``seconds``; a pause that is asked for earlier and ends later
        stays.
        """
        self._shut_until = max(self._shut_until, self._clock() + seconds)

    async def open(self) -> None:
        """Wait until it is open."""
        left = self._shut_until - self._clock()
        while left > 0:
            await anyio.sleep(left * random.uniform(1.0, _SPREAD))  # noqa: S311 - never earlier than asked
            left = self._shut_until - self._clock()  # it may have been shut anew
