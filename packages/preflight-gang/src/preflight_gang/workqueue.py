"""What is to be looked at: each thing once, however often it changed, and never by two workers at a time."""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import anyio

from .kube.client import Fenced, KubeError

__all__ = ["Queue"]

K = TypeVar("K", bound=Hashable)

log = logging.getLogger(__name__)


class Queue(Generic[K]):
    """Add from anywhere in the event loop; any number of :meth:`work` loops take.

    ``rest``: seconds from one look at a thing to the next, however often it changes meanwhile.
    """

    def __init__(self, rest: Callable[[K], float] = lambda _: 0.0) -> None:
        self._rest = rest
        self._ready: dict[K, None] = {}  # a set in the order of coming
        self._busy: set[K] = set()  # being looked at, or resting
        self._resting: list[tuple[float, int, K]] = []
        self._later: list[tuple[float, int, K]] = []
        self._serial = 0
        self._bell = anyio.Event()

    def add(self, key: K) -> None:
        """Have ``key`` looked at, soon; once more if that is being done just now."""
        self._ready[key] = None
        self._bell.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Have ``key`` looked at in ``seconds``."""
        self._serial += 1
        heapq.heappush(self._later, (time.monotonic() + seconds, self._serial, key))
        self._bell.set()

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
                log.warning("will be tried again", extra={"about": {"gang": str(key), "error": str(error)}})
                again = retry
            finally:
                self._serial += 1
                heapq.heappush(self._resting, (time.monotonic() + self._rest(key), self._serial, key))
                self._bell.set()
            if again is not None:
                self.add_after(key, again)

    async def _take(self) -> K:
        while True:
            now = time.monotonic()
            while self._resting and self._resting[0][0] <= now:
                self._busy.discard(heapq.heappop(self._resting)[2])
            while self._later and self._later[0][0] <= now:
                self._ready[heapq.heappop(self._later)[2]] = None
            for key in self._ready:
                if key not in self._busy:
                    del self._ready[key]
                    self._busy.add(key)
                    return key
            self._bell = anyio.Event() if self._bell.is_set() else self._bell
            due = [heap[0][0] - now for heap in (self._later, self._resting) if heap]
            with anyio.move_on_after(max(0.0, min(due)) if due else None):
                await self._bell.wait()
