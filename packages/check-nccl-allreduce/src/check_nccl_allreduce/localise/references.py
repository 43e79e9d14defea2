"""What healthy edges reach: endpoints in comparable classes by kind and place, and the reference of
each class. Pure.

Latencies only add doubt to labels. What is measured is a small all-reduce of 14 to 70 µs, of which
a further switch is 0.3 to 1 µs: many pairs may show that labels lie, and no single one does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf
from statistics import fmean, pvariance

from .model import Endpoint, Grade, Phase, Played, Role, State, Status

GOOD = 0.88
"""An edge at or above this share of its reference clears both its ends."""
BAD = 0.80
"""An edge below this share of its reference accuses; wide noise lowers it."""
MANY = 32
"""From so many values on, their own spread says how far below the reference noise can reach."""
MIXED = 3.0
"""Times as wide as above their upper quartile, values below it are of two sorts."""
FEW = 3
"""Fewer values make no reference."""
LABELED = 0.8
"""The least share of endpoints that must have a label."""
GROUPED = 0.5
"""The least share that labels must put together with others, to be a switch's."""
PORTS = 32
"""Nodes behind one leaf at most: a label that puts more together is no leaf's."""
HOP = 0.3e-6
"""Seconds that the way over another switch adds, at least."""
DOUBT, BORNE_OUT = 2.0, 3.0
"""Standard errors: labels lie where paths between them are not slower by a hop and so many of them,
and are borne out where those are slower by so many."""
LEAST = 4
"""Pairs on either side, fewer of which show nothing."""

SAME, OTHER, UNKNOWN, NVLINK = range(4)
JUDGED = frozenset({Status.OK, Status.WRONG, Status.HANG, Status.ERROR})

EdgeClass = tuple[int, int, int]
Pair = tuple[int, int]


def read(endpoints: Sequence[Endpoint], rounds: Sequence[Played]) -> tuple[bool, bool]:
    """Whether labels are believed to say where endpoints stand: they group most of them as leaves
    would, and latencies do not contradict. And whether latencies bear that out.
    """
    sizes = Counter(e.domain for e in endpoints if e.domain is not None)
    grouped = sum(count for count in sizes.values() if count > 1)
    if (
        sum(sizes.values()) < LABELED * len(endpoints)
        or grouped < GROUPED * len(endpoints)
        or max(sizes.values(), default=0) > PORTS
    ):
        return False, False
    sides: dict[bool, list[float]] = {True: [], False: []}  # inside labels, and between them
    for (a, b), seconds in _latencies(rounds).items():
        here, there = endpoints[a].domain, endpoints[b].domain
        if here is not None and there is not None:
            sides[here == there].append(seconds)
    if min(map(len, sides.values())) < LEAST:
        return True, False
    inside, between = _trimmed(sides[True]), _trimmed(sides[False])
    more = fmean(between) - fmean(inside)
    error = (pvariance(inside) / len(inside) + pvariance(between) / len(between)) ** 0.5
    return more + DOUBT * error >= HOP, more > BORNE_OUT * error


def _latencies(rounds: Sequence[Played]) -> dict[Pair, float]:
    """Seconds of each pair's fastest small message."""
    best: dict[Pair, float] = {}
    for played in rounds:
        for probe, result in zip(played.round.probes, played.results, strict=True):
            if result.latency > 0 and len(probe.members) == 2 and result.status is Status.OK:
                pair = (probe.members[0], probe.members[1])
                best[pair] = min(result.latency, best.get(pair, inf))
    return best


def _trimmed(values: list[float]) -> list[float]:
    """Without the slowest and the fastest eighth: one pair that stands out shows nothing."""
    cut = len(values) // 8
    return sorted(values)[cut : len(values) - cut]


def _numbers(names: Iterable[object]) -> list[int]:
    """The number of each name in order of first appearance, -1 for None."""
    known: dict[object, int] = {None: -1}
    return [known.setdefault(name, len(known) - 1) for name in names]


class EdgeMap:
    """The gang's shape: numbers for kinds and domains in order of first appearance, never by their
    names; -1 for no domain.
    """

    def __init__(self, state: State) -> None:
        ends = state.endpoints
        self.size = len(ends)
        self.kind = _numbers((e.kind, e.nic) for e in ends)
        self.believed, self.apart = read(ends, state.rounds)
        domains = [e.domain if self.believed else None for e in ends]
        self.domain = _numbers(domains)
        self.domain_names = tuple(name for name in dict.fromkeys(domains) if name is not None)
        self.rack = _numbers(e.nvlink for e in ends)
        unknown = [-1] * self.size
        if len(set(self.rack)) == 1:  # one NVLink domain, or none: all paths are of one sort
            self.rack = unknown
        # Where no latency bears labels out, nobody is cleared of having slowed another one by a
        # label.
        self.seen = self.domain if self.apart else unknown

    def edge_class(self, a: int, b: int) -> EdgeClass:
        """``NVLINK`` where what these two exchange stays inside an NVLink domain."""
        if self.kind[a] > self.kind[b]:
            a, b = b, a
        kind_a, kind_b, here, there = self.kind[a], self.kind[b], self.domain[a], self.domain[b]
        if self.rack[a] == self.rack[b] >= 0:
            return kind_a, kind_b, NVLINK
        if min(here, there) < 0:
            return kind_a, kind_b, UNKNOWN
        return kind_a, kind_b, SAME if here == there else OTHER


@dataclass(frozen=True, slots=True)
class Reference:
    """What a healthy edge of one class reaches (GB/s), and below which share of it one is bad."""

    gbps: float
    bad: float

    def grade(self, gbps: float) -> Grade:
        """The grade of a value in GB/s of this class of edges."""
        if gbps >= GOOD * self.gbps:
            return Grade.GOOD
        return Grade.BAD if gbps < self.bad * self.gbps else Grade.GRAY


class References:
    """The reference of each class: an upper quantile of matchings, for faults only slow things."""

    def __init__(self, shape: EdgeMap, rounds: Sequence[Played]) -> None:
        by_class: dict[EdgeClass, list[float]] = defaultdict(list)
        for (a, b), value in _matched(rounds):
            by_class[shape.edge_class(a, b)].append(value)
        by_kind: dict[int, list[float]] = defaultdict(list)
        for (kind, other, _), values in by_class.items():
            if kind == other:
                by_kind[kind] += values
        self._own = {key: ref for key, values in by_class.items() if (ref := _reference(values))}
        self._kind = {key: ref for key, values in by_kind.items() if (ref := _reference(values))}
        self._crossings = {
            (a, b, relation): ref.gbps / inside.gbps
            for (a, b, relation), ref in self._own.items()
            if relation == OTHER and (inside := self._own.get((a, b, SAME)))
        }
        self.depressed = frozenset(key for key, share in self._crossings.items() if share < BAD)
        self._cache: dict[EdgeClass, Reference | None] = {}

    def of(self, key: EdgeClass) -> Reference | None:
        """What an edge of this class should reach: as its own class, else as the lesser of its
        kinds; None where nothing comparable was measured.
        """
        if key not in self._cache:
            *kinds, relation = key
            ends = [self._own.get((kind, kind, relation)) or self.of_kind(kind) for kind in kinds]
            lesser = min((end for end in ends if end), key=lambda r: r.gbps, default=None)
            self._cache[key] = self._own.get(key) or (lesser if all(ends) else None)
        return self._cache[key]

    def of_kind(self, kind: int) -> Reference | None:
        """What edges between two nodes of this kind reach, wherever they are."""
        return self._kind.get(kind)

    def bad(self) -> float:
        """The share of normal below which this gang's noise does not reach."""
        return min((own.bad for own in self._own.values()), default=BAD)

    def crossing(self) -> float:
        """What paths between domains reach of those inside, at least; 1 where it is not known."""
        return min(self._crossings.values(), default=1.0)


def _reference(values: list[float]) -> Reference | None:
    """From values of one class, 0 for a broken probe; None of too few, or where all broke."""
    ranked = sorted(values, reverse=True)
    alive = sum(1 for value in ranked if value > 0)
    if len(values) < FEW or not alive:
        return None
    # Of four or five the largest is not a reference: it may be the one path that is too fast.
    rank = max(ceil(len(ranked) / 4), 2 if len(ranked) > FEW else 1)
    return Reference(ranked[min(rank, alive) - 1], _accusing_share(ranked))


def _accusing_share(ranked: list[float]) -> float:
    top, upper, middle = (ranked[ceil(len(ranked) / k) - 1] for k in (8, 4, 2))
    if len(ranked) < MANY or middle <= 0:
        return BAD
    spread, above = (upper - middle) / middle / 0.674, (top - upper) / upper / 0.476
    # The upper quarter is of one piece, and the next one is not: a good part of the gang is slow,
    # which is no noise.
    return min(BAD, 1 - 5 * (above if spread > MIXED * above else spread))


def _matched(rounds: Sequence[Played]) -> list[tuple[Pair, float]]:
    """What each edge of the matching rounds reached; of one that was measured again because only it
    looked bad, the better value.
    """
    again: dict[Pair, float] = defaultdict(float)
    matched: list[tuple[Pair, float]] = []
    for played in rounds:
        for probe, result in zip(played.round.probes, played.results, strict=True):
            value = result.gbps if result.status is Status.OK else 0.0
            if probe.role is Role.EDGE:
                pair = (probe.members[0], probe.members[1])
                again[pair] = max(again[pair], value)
            elif played.round.phase is Phase.MATCH and result.status in JUDGED:
                matched.append(((probe.members[0], probe.members[1]), value))
    return [(pair, max(value, again.get(pair, 0.0))) for pair, value in matched]
