"""What is to be looked at: each thing once, however often it changed, and never by two workers at a
time.

Things belong to namespaces, and namespaces take turns: whoever has 3,000 of them changed does not
hold up who has one. Nothing rests while workers do: a namespace alone has all of them but those
that are kept for the next one to come.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import anyio

from preflight_kube.client.client import Fenced, KubeError
from preflight_kube.clock import Clock
from preflight_kube.logs import get_logger
from preflight_kube.runtime.retry import Refusals

Key = tuple[str, str]
"""A thing: its namespace, and what tells it from others there."""

RESERVED: Final = 3
"""One in so many workers is kept for namespaces that have few: a look may wait for the API server
for long, and nobody ends it.
"""
AT_ONCE: Final = 4
"""Looks of one namespace that may take half of the kept workers, too; the other half is for
namespaces that have none.
"""

_SAME: Final = 0.01
"""Seconds between two times that are one: what is due at one moment is asked for by two clocks."""

log = get_logger(__name__)


@dataclass(frozen=True)
class Backoff:
    """Pauses between tries that fail in a row: ``first`` seconds, each twice the one before,
    ``longest`` at most; ``jitter`` is the share that is added at random, so that what failed
    together is not tried again together."""

    first: float = 0.1
    longest: float = 60.0
    jitter: float = 0.25

    def pause(self, failures: int) -> float:
        """Seconds after so many failures in a row, 1 or more."""
        pause = min(self.longest, self.first * 2.0 ** min(failures - 1, 32))
        return pause * (1 + self.jitter * random.random())  # noqa: S311 - spread, not a secret


class Queue:
    """Add from anywhere in the event loop; any number of :meth:`work` loops take. Each operation
    costs the same, however many wait.

    ``what`` is how the log calls them. ``rest``: seconds from one look at a thing to the next,
    however often it changes. ``everything``: all keys that there are, where the queue outlives a
    leadership. Work begins with them, and nothing is queued while nobody works: on a replica that
    does not lead it would be names of what has gone.
    """

    def __init__(
        self,
        what: str,
        rest: Callable[[Key], float] = lambda _: 0.0,
        clock: Clock | None = None,
        everything: Callable[[], Iterable[Key]] | None = None,
    ) -> None:
        self.adds = 0
        """How often something was added."""
        self.everything = everything
        self._what, self._rest, self._clock = what, rest, clock or Clock()
        self._workers = self._serial = 0
        self._idle: deque[anyio.Event] = deque()  # a bell for each loop that has nothing to do
        self._clear()

    def _clear(self) -> None:
        self._ready: dict[str, OrderedDict[Key, None]] = {}
        """By namespace, each a set in the order of coming."""
        self._turns: OrderedDict[str, None] = OrderedDict()  # namespaces that have something ready
        self._looks: Counter[str] = Counter()  # under way, by namespace
        self._busy: set[Key] = set()  # being looked at, or resting
        self._resting: dict[Key, int] = {}
        self._again: set[Key] = set()  # changed while busy
        self._later: list[tuple[float, int, Key]] = []
        self._asked: dict[Key, tuple[float, int]] = {}  # of those, which a look has asked for
        self._late: set[int] = set()  # of those, which another one came before
        self._refusals: Refusals[Key] = Refusals(random.random)

    @property
    def depth(self) -> int:
        """How many wait for a worker."""
        return sum(map(len, list(self._ready.values())))  # metrics are read by another thread

    def add(self, key: Key) -> None:
        """Have ``key`` looked at, soon; once more if that is being done just now."""
        if not self._takes():
            return
        self.adds += 1
        if key in self._busy:
            self._again.add(key)
            return
        self._ready.setdefault(key[0], OrderedDict())[key] = None
        self._give_turn(key[0])

    def adding(
        self, keys: Callable[[Any], Iterable[Key]] = lambda item: [item.metadata.key]
    ) -> Callable[[Any], None]:
        """An ``on_change`` of a cache: adds the ``keys`` of an object as it was and as it is."""

        def changed(change: Any) -> None:
            for item in (change.before, change.object):
                for key in keys(item) if item is not None else ():
                    self.add(key)

        return changed

    def add_after(self, key: Key, seconds: float) -> None:
        """Have ``key`` looked at in ``seconds``."""
        if self._takes():
            self._push(key, seconds)
            self._ring()

    def _takes(self) -> bool:
        return self.everything is None or self._workers > 0

    def _again_in(self, key: Key, seconds: float) -> None:
        """Have ``key`` looked at as its last look has asked, unless it will be by then anyway: each
        look asks, and one more for each change would never end.
        """
        at, serial = self._asked.get(key, (math.inf, 0))
        if at <= self._clock() + seconds + _SAME:
            return
        self._late.add(serial)
        self._asked[key] = self._clock() + seconds, self._push(key, seconds)
        self._ring()

    def _push(self, key: Key, seconds: float) -> int:
        self._serial += 1
        heapq.heappush(self._later, (self._clock() + seconds, self._serial, key))
        return self._serial

    def _give_turn(self, namespace: str) -> None:
        if namespace in self._ready:
            self._turns[namespace] = None
            self._ring()

    def _may(self, namespace: str) -> bool:
        """Whether one of the free workers is for this namespace."""
        kept = self._workers // RESERVED
        under_way = self._looks.get(namespace, 0)
        free = self._workers - self._looks.total()
        return not under_way or free > ((kept + 1) // 2 if under_way < AT_ONCE else kept)

    def _ring(self) -> None:
        """Wake one loop: all of them would be a herd at each change."""
        if self._idle:
            self._idle.popleft().set()

    async def work(self, look: Callable[[Key], Awaitable[float | None]]) -> None:
        """Look at one thing after another until cancelled.

        ``look`` returns the seconds after which to look again, or None; when the cluster refuses or
        does not answer, it is looked at again ever later.
        """
        self._workers += 1
        if self._workers == 1 and self.everything is not None:
            for key in self.everything():
                self.add(key)
        try:
            while True:
                key = await self._take()
                again: float | None = None
                try:
                    again = await look(key)
                    self._refusals.done(key)
                except Fenced:
                    pass  # the next leader looks at everything
                except KubeError as error:
                    again = self._refusals.refused(key, error, self._clock())
                    if self._refusals.first(key):
                        about = {self._what: "/".join(filter(None, key))}
                        log.warning("work failed, requeued", error=str(error), **about)
                finally:
                    if rest := self._rest(key):
                        self._resting[key] = self._push(key, rest)
                    else:
                        self._free(key)
                    self._looks[key[0]] -= 1
                    if not self._looks[key[0]]:
                        del self._looks[key[0]]
                    self._give_turn(key[0])
                if again is not None:
                    self._again_in(key, again)
        finally:
            self._workers -= 1
            if not self._workers:
                self._clear()

    def _free(self, key: Key) -> None:
        self._resting.pop(key, None)
        self._busy.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    async def _take(self) -> Key:
        while True:
            now = self._clock()
            while self._later and self._later[0][0] <= now:
                _, serial, key = heapq.heappop(self._later)
                if self._asked.get(key, (0.0, 0))[1] == serial:
                    del self._asked[key]
                if self._resting.get(key) == serial:
                    self._free(key)
                elif serial in self._late:
                    self._late.discard(serial)
                else:
                    self.add(key)
            # Those who may not have a look under way already, so there are never more of them than
            # workers.
            namespace = next((namespace for namespace in self._turns if self._may(namespace)), None)
            if namespace is not None:
                del self._turns[namespace]
                key, _ = self._ready[namespace].popitem(last=False)
                if not self._ready[namespace]:
                    del self._ready[namespace]
                self._busy.add(key)
                self._looks[namespace] += 1
                self._give_turn(namespace)
                if self._turns or self._later:
                    self._ring()  # who takes on the rest, or the watch over what is due later
                return key
            bell = anyio.Event()
            self._idle.append(bell)
            try:
                with anyio.move_on_after(
                    max(0.0, self._later[0][0] - now) if self._later else None
                ):
                    await bell.wait()
            finally:
                if not bell.is_set():
                    self._idle.remove(bell)
