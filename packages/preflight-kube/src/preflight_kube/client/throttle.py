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

from preflight_kube.clock import Clock

__all__ = ["Throttle"]

_SPREAD: Final = 1.5
"""Who has waited goes on within 1.5 times the pause: all at once would be turned away once more."""


class Throttle:
    """Lets requests pass until a :meth:`pause`; copies of a client share it."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._until = clock, -math.inf

    def pause(self, seconds: float) -> None:
        """Let no request pass for ``seconds``; a pause that is asked for earlier and ends later
        stays.
        """
        self._until = max(self._until, self._clock() + seconds)

    async def wait(self) -> None:
        """Wait until requests may pass."""
        left = self._until - self._clock()
        while left > 0:
            # Never earlier than asked.
            await anyio.sleep(left * random.uniform(1.0, _SPREAD))  # noqa: S311
            left = self._until - self._clock()  # it may have been paused again
