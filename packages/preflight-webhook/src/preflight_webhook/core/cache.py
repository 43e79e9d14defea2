"""Results of pure functions, kept for those who ask the same again and bounded by bytes.

A count alone is not a bound: what a pod is decided by is as large as its environment, and a
thousand odd pods must not fill the memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

CONTAINER: Final = 384
"""Bytes of the objects that a container is read into, whose text may have three."""
ENTRY: Final = 128
"""Bytes of those of a volume, a pull secret, or an amount or claim that a container asks for."""
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SizedCache(Generic[K, V]):
    """Up to ``room`` bytes, as those who put something in weigh it; the oldest goes first.

    The oldest, not the one longest unused: being found then changes nothing, so it costs next to
    nothing, and what is in use is simply made once more.
    """

    def __init__(self, room: int) -> None:
        self._room, self._used = room, 0
        self._kept: OrderedDict[K, tuple[V, int]] = (
            OrderedDict()
        )  # a plain dict looks for its oldest among all that were deleted

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """What was put in under ``key``, while it is there."""
        kept = self._kept.get(key)
        return kept[0] if kept is not None else None

    def put(self, key: K, value: V, weight: int) -> V:
        """Keep ``value``, of ``weight`` bytes with its key, unless it alone takes a quarter of the
        room.
        """
        if weight * 4 <= self._room:
            self._used += weight - self._kept.pop(key, (value, 0))[1]
            self._kept[key] = value, weight
            while self._used > self._room:
                _, (_, gone) = self._kept.popitem(last=False)
                self._used -= gone
        return value
