"""Writes under way, shared out between namespaces: whoever has many waiting does not hold up those
who have few, and whoever is alone has all of them."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import anyio

__all__ = ["FairLimiter"]

RESERVED: Final = 4
"""To so many places there is one more, for namespaces that have none: writes of one namespace that
take long leave room for the next one's, though nothing is kept from it while it is alone."""


class FairLimiter:
    """At most ``total`` at once, and one for each of a few namespaces more. Who waits is let in
    namespace by namespace, in turn; within one, in the order of coming."""

    def __init__(self, total: int) -> None:
        self._reserved = total // RESERVED
        self._free = total + self._reserved
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[anyio.Event]] = OrderedDict()

    @asynccontextmanager
    async def of(self, namespace: str) -> AsyncGenerator[None]:
        """Within it one of the places is the namespace's."""
        if namespace in self._waiting or not self._may(namespace):
            await self._turn(namespace)
        else:
            self._take(namespace)
        try:
            yield
        finally:
            self._give(namespace)

    def _may(self, namespace: str) -> bool:
        return self._free > (self._reserved if namespace in self._held else 0)

    def _take(self, namespace: str) -> None:
        self._free -= 1
        self._held[namespace] += 1

    def _give(self, namespace: str) -> None:
        self._free += 1
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]
        self._let_in()

    async def _turn(self, namespace: str) -> None:
        mine = anyio.Event()
        self._waiting.setdefault(namespace, deque()).append(mine)
        try:
            await mine.wait()
        except BaseException:
            if mine.is_set():
                self._give(namespace)
            else:
                queue = self._waiting[namespace]
                queue.remove(mine)
                if not queue:
                    del self._waiting[namespace]
            raise

    def _let_in(self) -> None:
        """Whose turn it is and who may. Those who may not hold some place already, so there are
        never more of them than places.
        """
        while self._free:
            namespace = next((one for one in self._waiting if self._may(one)), None)
            if namespace is None:
                return
            queue = self._waiting[namespace]
            queue.popleft().set()
            self._take(namespace)
            if queue:
                self._waiting.move_to_end(namespace)
            else:
                del self._waiting[namespace]
