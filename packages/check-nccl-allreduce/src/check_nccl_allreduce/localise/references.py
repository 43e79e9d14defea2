"""What healthy edges reach: endpoints in comparable classes, and the reference of
each class. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from .model import Grade, Phase, Played, Probe, Result, Role, State, Status
from .places import read

__all__ = [
    "BAD",
    "FEW",
    "GOOD",
    "JUDGED",
    "MANY",
    "NVLINK",
    "EdgeClass",
    "EdgeMap",
    "Pair",
    "Reference",
    "References",
]

GOOD = 0.88
"""An edge at or above this share of its reference clears both its ends."""
BAD = 0.80
"""An edge below this share of its reference accuses. Wide noise lowers it, see
:func:`_accusing_share`.
"""
MANY = 32
"""From so many values on, their own spread says how far below the reference noise
alone can reach.
"""
MIXED = 3.0
"""How much wider values may lie below their upper quartile than above it before they are of two
sorts.
"""
FEW = 3
"""Fewer values make no reference."""

SAME, OTHER, UNKNOWN, NVLINK = range(4)
JUDGED = frozenset({Status.OK, Status.WRONG, Status.HANG, Status.ERROR})

EdgeClass = tuple[int, int, int]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Reference:
    """What a healthy edge of one class reaches (GB/s), and the share of it below which an edge is
    bad.
    """

    gbps: float
    bad: float

    def grade(self, gbps: float) -> Grade:
        """The grade of a value in GB/s of this class of edges."""
        if gbps >= GOOD * self.gbps:
            return Grade.GOOD
        return Grade.BAD if gbps < self.bad * self.gbps else Grade.GRAY


class EdgeMap:
    """The gang's shape: numbers for kinds and domains in order of first appearance, never by their
    names.
    """

    def __init__(self, state: State) -> None:
        kinds: dict[tuple[str, str], int] = {}
        domains: dict[str, int] = {}
        racks: dict[str, int] = {}
        self.kind = [kinds.setdefault((e.kind, e.nic), len(kinds)) for e in state.endpoints]
        labels = read(state.endpoints, state.rounds)
        self.believed, self.apart = labels
        self.domain = [
            -1
            if e.domain is None or not self.believed
            else domains.setdefault(e.domain, len(domains))
            for e in state.endpoints
        ]
        self.rack = [
            -1 if e.nvlink is None else racks.setdefault(e.nvlink, len(racks))
            for e in state.endpoints
        ]
        if len(set(self.rack)) == 1:  # one NVLink domain, or none: all paths are of one sort
            self.rack = [-1] * len(self.rack)
        # Where no latency bears labels out, nobody is cleared of having slowed another one by a
        # label.
        self.seen = self.domain if labels.apart else [-1] * len(self.domain)
        self.domain_names = tuple(domains)
        self.size = len(state.endpoints)
        self.labeled = all(d >= 0 for d in self.domain)

    def edge_class(self, a: int, b: int) -> EdgeClass:
        """``NVLINK`` where what these two exchange stays inside an NVLink domain."""
        kind_a, kind_b, rack = self.kind[a], self.kind[b], self.rack[a]
        if rack >= 0 and rack == self.rack[b]:
            relation = NVLINK
        else:
            domain_a, domain_b = self.domain[a], self.domain[b]
            relation = (
                UNKNOWN if domain_a < 0 or domain_b < 0 else SAME if domain_a == domain_b else OTHER
            )
        return (kind_a, kind_b, relation) if kind_a <= kind_b else (kind_b, kind_a, relation)


class References:
    """The reference of each edge class, from the matching rounds: an upper quantile, because faults
    only slow things.
    """

    def __init__(self, shape: EdgeMap, rounds: tuple[Played, ...]) -> None:
        again = _remeasured(rounds)
        by_class: dict[EdgeClass, list[float]] = defaultdict(list)
        for probe, result in _matching(rounds):
            if result.status in JUDGED:
                a, b = probe.members
                value = result.gbps if result.status is Status.OK else 0.0
                if again:
                    value = max(value, again.get((a, b), 0.0))
                by_class[shape.edge_class(a, b)].append(value)
        by_kind: dict[int, list[float]] = defaultdict(list)
        for (kind, other, _), values in by_class.items():
            if kind == other:
                by_kind[kind] += values
        self._own = {key: made for key, values in by_class.items() if (made := _reference(values))}
        self._kind = {key: made for key, values in by_kind.items() if (made := _reference(values))}
        self.depressed = frozenset(key for key, share in self._crossings() if share < BAD)
        self._cache: dict[EdgeClass, Reference | None] = {}

    def of(self, key: EdgeClass) -> Reference | None:
        """What an edge of this class should reach; None where nothing comparable was measured."""
        if key not in self._cache:
            self._cache[key] = self._own.get(key) or self._lesser(key)
        return self._cache[key]

    def of_kind(self, kind: int) -> Reference | None:
        """What edges between two nodes of this kind reach, wherever they are."""
        return self._kind.get(kind)

    def bad(self) -> float:
        """The share of normal below which this gang's noise does not reach."""
        return min((one.bad for one in self._own.values()), default=BAD)

    def crossing(self) -> float:
        """What paths between domains reach as a share of those inside, where that is least; 1 where
        it is not known.
        """
        return min((share for _, share in self._crossings()), default=1.0)

    def _crossings(self) -> Iterator[tuple[EdgeClass, float]]:
        for (a, b, relation), reference in self._own.items():
            if relation == OTHER and (inside := self._own.get((a, b, SAME))):
                yield (a, b, relation), reference.gbps / inside.gbps

    def _lesser(self, key: EdgeClass) -> Reference | None:
        kind_a, kind_b, relation = key
        ends = [
            self._own.get((kind, kind, relation)) or self._kind.get(kind)
            for kind in (kind_a, kind_b)
        ]
        return min((end for end in ends if end), key=lambda r: r.gbps) if all(ends) else None


def _reference(values: list[float]) -> Reference | None:
    """From the values of one class, a probe that broke counting as 0. None when too few, or when
    all of them broke.
    """
    if len(values) < FEW:
        return None
    ranked = sorted(values, reverse=True)
    alive = sum(1 for v in ranked if v > 0)
    if not alive:
        return None
    # Of four or five the largest is not a reference: it may be the one path that is too fast.
    rank = max(ceil(len(ranked) / 4), 2 if len(ranked) > FEW else 1)
    return Reference(ranked[min(rank, alive) - 1], _accusing_share(ranked))


def _accusing_share(ranked: list[float]) -> float:
    n = len(ranked)
    if n < MANY:
        return BAD
    top, upper, middle = (ranked[ceil(n / k) - 1] for k in (8, 4, 2))
    if middle <= 0:
        return BAD
    spread, above = (upper - middle) / middle / 0.674, (top - upper) / upper / 0.476
    # The upper quarter is of one piece, and the next one is not: a good part of the gang is slow,
    # which is no noise.
    return min(BAD, 1 - 5 * (above if spread > MIXED * above else spread))


def _matching(rounds: tuple[Played, ...]) -> Iterator[tuple[Probe, Result]]:
    for played in rounds:
        if played.round.phase is Phase.MATCH:
            yield from zip(played.round.probes, played.results, strict=True)


def _remeasured(rounds: tuple[Played, ...]) -> dict[Pair, float]:
    """Edges of the matching rounds measured again because only they looked bad: the better value is
    the edge's own.
    """
    best: dict[Pair, float] = {}
    for played in rounds:
        if played.round.phase in {Phase.CONFIRM, Phase.SILENCE}:
            for probe, result in zip(played.round.probes, played.results, strict=True):
                if probe.role is Role.EDGE and result.status is Status.OK:
                    pair = (probe.members[0], probe.members[1])
                    best[pair] = max(best.get(pair, 0.0), result.gbps)
    return best
