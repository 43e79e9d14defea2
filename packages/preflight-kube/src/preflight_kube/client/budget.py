"""How many requests to the API server whatever is under way may still send, and when.

:class:`~.client.Client` counts for whoever set a budget: what it started counts with it. Nothing is
sent while the API server has asked for a pause (429 or 503 with Retry-After). That is for all that
a client has to say: priority and fairness turns away a flow, not a request, and a thousand writes
that each find it out by themselves would be a thousand requests more.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

import anyio

from preflight_kube.clock import Clock

_SPREAD: Final = 1.5
"""Who has waited goes on within 1.5 times the pause: all at once would be turned away once more."""
_left: Final[ContextVar[_Budget | None]] = ContextVar("requests_left", default=None)


class BudgetSpent(Exception):
    """One request more than there may be was about to be sent; the message is one sentence."""


class Callers:
    """How many requests have been sent on behalf of each address: ``a_second`` are forgotten, and
    beyond ``at_once`` no more should be. The ``most`` addresses that were heard of last are kept.
    """

    def __init__(
        self, a_second: float, at_once: int, *, most: int = 1024, clock: Clock | None = None
    ) -> None:
        self.a_second, self._at_once, self._most = a_second, at_once, most
        self._clock = clock or Clock()
        self._sent: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def beyond(self, address: str) -> bool:
        """Whether for this address nothing more should be sent just now."""
        return self._now(address) >= self._at_once

    def count(self, address: str) -> None:
        """One request is about to be sent for it."""
        self._sent[address] = self._now(address) + 1, self._clock()
        self._sent.move_to_end(address)
        if len(self._sent) > self._most:
            self._sent.popitem(last=False)

    def _now(self, address: str) -> float:
        sent, then = self._sent.get(address, (0.0, 0.0))
        return max(0.0, sent - (self._clock() - then) * self.a_second)


@dataclass
class _Budget:
    left: int
    most: int
    callers: Callers | None
    address: str


@contextmanager
def requests(most: int, callers: Callers | None = None, address: str = "") -> Iterator[None]:
    """Let what runs within send ``most`` requests, and count them with ``callers``."""
    before = _left.set(_Budget(most, most, callers, address))
    try:
        yield
    finally:
        _left.reset(before)


def spend(what: str) -> None:
    """One request is about to be sent. Raises :class:`BudgetSpent`."""
    if (left := _left.get()) is None:
        return
    if left.left <= 0:
        raise BudgetSpent(
            f"{what} would be more than the {left.most} requests that are sent for it"
        )
    left.left -= 1
    if left.callers is not None:
        left.callers.count(left.address)


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
