"""The numbers that are reduced: integers whose sum is exact in any order, and different wherever
something goes wrong.

Rank r's element i in iteration t is ``f((i P + r Q + t) mod M)`` with M prime, so that neither the
power-of-two chunks of a collective nor its ranks fall on the period. ``|f| <= bound(world)``: the
sum of all ranks stays below 2^24, where every integer is a float32 and so no order of adding
rounds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

M: Final = 65521
"""The largest prime below 2^16: the period of every rank's data, in elements."""
P: Final = 7919
Q: Final = 40503

_MIX: Final = 2654435761  # Knuth's multiplicative hash, 2^32 divided by the golden ratio
_MASK: Final = (1 << 32) - 1


def bound(world: int) -> int:
    """The largest magnitude of one element. Raises ValueError for a world beyond float32."""
    if not 1 <= world < 1 << 24:
        raise ValueError(f"a world of {world} ranks; 1 to {(1 << 24) - 1} can be summed exactly")
    return min(1023, ((1 << 24) - 1) // world)


@lru_cache(maxsize=1)
def values(world: int) -> list[int]:
    """f(0) … f(M-1): well mixed integers of at most ``bound(world)``; nobody changes them."""
    b = bound(world)
    mixed = ((((k * _MIX) & _MASK) ^ (k * 40503 >> 3)) * _MIX & _MASK for k in range(M))
    return [(m >> 12) % (2 * b + 1) - b for m in mixed]


def sums(world: int) -> list[int]:
    """S(k) = f(k) + f(k + Q) + … + f(k + (world - 1) Q), all mod M, for each k.

    Ordered by multiples of Q this is a window of ``world`` values that slides, so it costs M steps,
    whatever the world.
    """
    f = values(world)
    walk = [f[j * Q % M] for j in range(M)]
    turns, rest = divmod(world, M)
    window = turns * sum(walk) + sum(walk[:rest])
    table = [0] * M
    for j in range(M):
        table[j * Q % M] = window
        window += walk[(j + rest) % M] - walk[j]
    return table
