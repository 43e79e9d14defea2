"""Whose part of a sum is wrong, from what one collective left behind. Pure.

Every rank's data are a code that only this rank has (:mod:`.worker.pattern`): its value at each
position of the period is its weight there. What all ranks' sum differs by from what it must be (the
*residual*) is then a syndrome: where one rank's part was lost, counted twice, scaled, old or had
one bit flipped, the residuals follow that rank's values and nobody else's. What does not follow any
single rank's (several culprits, exchanged chunks, an addend that has nothing to do with the data)
is said of nobody.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final, NamedTuple

from .control.messages import Hello, RankReport
from .worker import pattern

LEAST_ODDS: Final = 1e6
"""A rank is named where residuals that have nothing to do with its data would follow them at most
once in so many times.
"""
BITS: Final = 32
HYPOTHESES: Final = BITS + 2
"""What may have become of a rank's part: one of its bits, its scale, its age."""
COPIES: Final = 4
"""Different wrong sums at most: of one rank's wrong part there is one, or one for each way that a
collective takes at once.
"""


class ResidualSample(NamedTuple):
    """One wrong element: what one rank held, less what it had to hold. A residual of 0 stands for
    one that is not an exact number.
    """

    iteration: int
    element: int
    residual: float


@dataclass(frozen=True)
class Decoded:
    """The rank whose part is wrong, what became of it, and the odds against any rank's data being
    followed by chance.
    """

    rank: int
    what: str
    odds: float
    samples: int


@dataclass(frozen=True)
class Culprit:
    """What the syndrome shows: the worker's ``rank`` or -1, its ``member`` and ``gpu`` (UUID, empty
    where it has none), and it in words.
    """

    rank: int
    member: int
    gpu: str
    sentence: str
    holders: str
    odds: float = 0.0
    """Against chance."""


def decode(world: int, samples: Sequence[ResidualSample]) -> Decoded | None:
    """The one rank of ``world`` whose data all these residuals follow; None where there is none, or
    chance could do it.

    Nor in a world of more ranks than the period: there some have the same data.
    """
    # Where in the table of values rank 0's element stands, and its residual.
    residuals = [((s.element * pattern.P + s.iteration) % pattern.M, s.residual) for s in samples]
    if len(dict(residuals)) < 2 or world > pattern.M or any(r == 0.0 for _, r in residuals):
        return None
    candidates = list(_matches(world, residuals))
    likely = [candidate for candidate in candidates if candidate.odds >= LEAST_ODDS]
    if not likely or len({candidate.rank for candidate in candidates}) > 1:
        return None
    return max(likely, key=lambda candidate: candidate.odds)


_decoded = lru_cache(maxsize=16)(decode)  # who decides asks again after each round of probes


def _matches(world: int, residuals: Sequence[tuple[int, float]]) -> Iterator[Decoded]:
    f, known = pattern.values(world), _Chances(world)
    once = dict(residuals)  # one that repeats within a period shows nothing more
    distinct = len(once)
    for rank in range(world):
        shift = rank * pattern.Q
        (first, residual), own = residuals[0], f[(residuals[0][0] + shift) % pattern.M]
        if own and all(own * d == residual * f[(o + shift) % pattern.M] for o, d in residuals):
            factor = residual / own
            chances = [known.share(f[(o + shift) % pattern.M]) for o in once if o != first]
            yield Decoded(rank, _scaled(factor), _odds(world, chances), distinct)
        if all(
            f[(o - 1 + shift) % pattern.M] - f[(o + shift) % pattern.M] == d for o, d in residuals
        ):
            least = 1 / (2 * pattern.bound(world) + 1)
            yield Decoded(
                rank, "that of the iteration before", _odds(world, [least] * distinct), distinct
            )
        bit = known.bit(own, residual)
        if bit is not None and all(
            known.bit(f[(o + shift) % pattern.M], d) == bit for o, d in residuals
        ):
            chances = [known.chance(bit, d) for d in once.values()]
            yield Decoded(rank, f"given with bit {bit} flipped", _odds(world, chances), distinct)


def _odds(world: int, chances: Sequence[float]) -> float:
    """Against all of them happening by chance for some rank and some hypothesis."""
    chance = world * HYPOTHESES * prod(chances)
    return 1 / chance if chance > 0 else float("inf")


def _scaled(factor: float) -> str:
    known = {-1.0: "lost", 1.0: "counted twice"}
    return known.get(factor, f"multiplied by {factor + 1:g}")


class _Chances:
    """Of this world's float32 values: how often there is one, and a flipped bit changes one so."""

    def __init__(self, world: int) -> None:
        self._values = pattern.values(world)
        self._count = Counter(self._values)
        self._deltas: dict[int, Counter[float]] = {}

    def share(self, value: int) -> float:
        """How often a rank's element has this value."""
        return self._count[value] / pattern.M

    def bit(self, value: int, residual: float) -> int | None:
        """The bit whose flipping changes ``value`` by ``residual``."""
        first, other = array("f", [value, value + residual])
        if other != value + residual:
            return None
        low, high = memoryview(array("f", [first, other])).cast("B").cast("I")
        differs = int(low ^ high)
        return differs.bit_length() - 1 if differs.bit_count() == 1 else None

    def chance(self, bit: int, residual: float) -> float:
        """How often flipping it changes an element by just so much."""
        if bit not in self._deltas:
            whole = memoryview(array("f", self._values)).cast("B").cast("I")
            failed = array("I", [word ^ (1 << bit) for word in whole])
            after = memoryview(failed).cast("B").cast("f")
            self._deltas[bit] = Counter(b - a for a, b in zip(self._values, after, strict=True))
        return self._deltas[bit][residual] / pattern.M


def holding(ranks: Sequence[int], world: int) -> str:
    """Which ranks hold a wrong copy; where in a ring it went wrong, if that shows it."""
    held = sorted(set(ranks))
    if len(held) == world:
        return "every rank holds it: it went wrong before the sum was complete"
    if len(held) == 1:
        return f"rank {held[0]} alone holds it: it went wrong on the way to it, or in it"
    inside = set(held)
    firsts = [rank for rank in held if (rank - 1) % world not in inside]
    if len(firsts) == 1:
        last = (firsts[0] + len(held) - 1) % world
        return (
            f"ranks {firsts[0]} to {last} hold it, one after another: in a ring by rank it went wrong between "
            f"rank {(firsts[0] - 1) % world} and rank {firsts[0]}"
        )
    return f"{len(held)} of {world} ranks hold it"


def gang(
    world: int, hellos: Mapping[int, Hello], results: Mapping[int, RankReport]
) -> Culprit | None:
    """What the gang's own sum shows; None where no residuals came."""
    reports = [
        (member, residual)
        for member, result in sorted(results.items())
        for residual in result.residuals
    ]
    if not reports:
        return None
    holders = [rank for _, residual in reports for rank in residual.ranks]
    where = holding(holders, world)
    copies = {
        tuple(ResidualSample(*sample) for sample in residual.samples) for _, residual in reports
    }
    decoded = [_decoded(world, copy) for copy in copies] if len(copies) <= COPIES else [None]
    culprits = [culprit for culprit in decoded if culprit is not None]
    best = min(culprits, key=lambda culprit: culprit.odds, default=None)
    if best is None or len(culprits) < len(decoded) or {c.rank for c in culprits} != {best.rank}:
        why = f"the residuals follow no single rank's data; {where}"
        return Culprit(-1, -1, "", f"not decided by the syndrome: {why}", where)
    if set(holders) not in ({best.rank}, set(range(world))):
        why = f"the residuals follow the data of rank {best.rank}, but {where}"
        return Culprit(-1, -1, "", f"not decided by the syndrome: {why}", where)
    member, report = next(
        (member, residual) for member, residual in reports if best.rank in residual.ranks
    )
    gpu = dict(zip(report.ranks, report.gpus, strict=False)).get(best.rank, "")
    told_by = (
        f"what is wrong in the sum is the part of worker rank {best.rank} ({f'GPU {gpu}, ' if gpu else ''}"
        f"{hellos[member].pod} on {hellos[member].node}): it was {best.what}, as {best.samples} residuals show; {where}"
    )
    return Culprit(best.rank, member, gpu, told_by, where, min(best.odds, 1e12))
