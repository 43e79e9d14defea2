"""What is to be looked at: each thing once, however often it changed, and never by two workers at a time."""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import anyio

from .kube.client import Fenced, KubeError
from .kube.clock import Clock

__all__ = ["Queue"]

K = TypeVar("K", bound=Hashable)

log = logging.getLogger(__name__)


class Queue(Generic[K]):
    """Add from anywhere in the event loop; any number of :meth:`work` loops take.

    ``what`` is how the log calls them. ``rest``: seconds from one look at a thing to the next, however often it changes.
    """

    def __init__(self, what: str, rest: Callable[[K], float] = lambda _: 0.0, clock: Clock | None = None) -> None:
        self._what, self._rest, self._clock = what, rest, clock or Clock()
        self._ready: dict[K, None] = {}  # a set in the order of coming
        self._busy: set[K] = set()
        self._later: list[tuple[float, int, K]] = []
        self._serial = 0
        self._idle: deque[anyio.Event] = deque()  # a bell for each loop that has nothing to do

    def add(self, key: K) -> None:
        """Have ``key`` looked at, soon; once more if that is being done just now."""
        self._ready[key] = None
        self._ring()

    def add_after(self, key: K, seconds: float) -> None:
        """Have ``key`` looked at in ``seconds``."""
        self._serial += 1
        heapq.heappush(self._later, (self._clock() + seconds, self._serial, key))
        self._ring()

    def _ring(self) -> None:
        """Wake one loop: all of them would be a herd at each change."""
        if self._idle:
            self._idle.popleft().set()

    async def work(self, look: Callable[[K], Awaitable[float | None]], retry: float) -> None:
        """Look at one thing after another until cancelled.

        ``look`` returns the seconds after which to look again, or None; when the cluster refuses or does not answer, it is
        looked at again after ``retry`` seconds.
        """
        while True:
            key = await self._take()
            try:
                again = await look(key)
            except Fenced:
                again = None  # the next leader looks at everything
            except KubeError as error:
                name = "/".join(key) if isinstance(key, tuple) else str(key)
                log.warning("will be tried again", extra={"about": {self._what: name, "error": str(error)}})
                again = retry
            finally:
                try:
                    if rest := self._rest(key):
                        await anyio.sleep(rest)
                finally:
                    self._busy.discard(key)
            if again is not None:
                self.add_after(key, again)

    async def _take(self) -> K:
        while True:
            now = self._clock()
            while self._later and self._later[0][0] <= now:
                self._ready[heapq.heappop(self._later)[2]] = None
            for key in self._ready:
                if key not in self._busy:
                    del self._ready[key]
                    self._busy.add(key)
                    if self._ready or self._later:
                        self._ring()  # who takes on the rest, or the watch over what is due later
                    return key
            bell = anyio.Event()
            self._idle.append(bell)
            try:
                with anyio.move_on_after(max(0.0, self._later[0][0] - now) if self._later else None):
                    await bell.wait()
            finally:
                if not bell.is_set():
                    self._idle.remove(bell)
