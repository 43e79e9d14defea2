"""What the measured edges say: references, grades, and who is known good, suspect or neither."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil

from .model import Grade, Measured, Phase, Played, Probe, Result, Role, State, Status

__all__ = ["BAD", "GOOD", "Evidence", "weigh"]

GOOD = 0.88
"""An edge at or above this share of its reference clears both its ends."""
BAD = 0.80
"""An edge below this share of its reference accuses. Wide noise lowers it, see :func:`_accusing_share`."""
MANY = 32
"""From so many values on, their own spread says how far below the reference noise alone can reach."""
FEW = 3
"""Fewer values make no reference."""

SAME, OTHER, UNKNOWN = range(3)
_JUDGED = frozenset({Status.OK, Status.WRONG, Status.HANG, Status.ERROR})
_BROKEN = frozenset({Status.WRONG, Status.HANG, Status.ERROR})

EdgeClass = tuple[int, int, int]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Reference:
    """What a healthy edge of one class reaches (GB/s), and the share of it below which an edge is bad."""

    gbps: float
    bad: float

    def grade(self, gbps: float) -> Grade:
        if gbps >= GOOD * self.gbps:
            return Grade.GOOD
        return Grade.BAD if gbps < self.bad * self.gbps else Grade.GREY


class Map:
    """The gang's shape: numbers for kinds and domains in order of first appearance, never by their names."""

    def __init__(self, state: State) -> None:
        kinds: dict[str, int] = {}
        domains: dict[str, int] = {}
        self.kind = [kinds.setdefault(e.kind, len(kinds)) for e in state.endpoints]
        self.domain = [-1 if e.domain is None else domains.setdefault(e.domain, len(domains)) for e in state.endpoints]
        self.domain_names = tuple(domains)
        self.size = len(state.endpoints)
        self.labelled = all(d >= 0 for d in self.domain)

    def edge_class(self, a: int, b: int) -> EdgeClass:
        kind_a, kind_b = self.kind[a], self.kind[b]
        domain_a, domain_b = self.domain[a], self.domain[b]
        relation = UNKNOWN if domain_a < 0 or domain_b < 0 else SAME if domain_a == domain_b else OTHER
        return (kind_a, kind_b, relation) if kind_a <= kind_b else (kind_b, kind_a, relation)


class Evidence:
    """All edges graded, and what follows from them for each endpoint. Made by :func:`weigh`."""

    def __init__(self, state: State) -> None:
        self.map = Map(state)
        self.references = _References(self.map, state.rounds)
        self.edges: list[Measured] = []
        self.void_rounds: set[int] = set()
        for played in state.rounds:
            if played.round.phase in {Phase.MATCH, Phase.CONFIRM}:
                self._add(played)
        self.voids = _voids(state.rounds)
        self.matching = sum(1 for e in self.edges if e.role is Role.MATCH)
        self._place()

    def _add(self, played: Played) -> None:
        number = played.round.number
        rows: list[Measured] = []
        for probe, result in zip(played.round.probes, played.results, strict=True):
            a, b = probe.members
            status = result.status
            reference = self.references.of(a, b)
            if status is Status.OK:
                grade = Grade.NONE if reference is None else reference.grade(result.gbps)
            else:
                grade = Grade.BAD if status in _BROKEN else Grade.NONE
            gbps = reference.gbps if reference else 0.0
            rows.append(Measured(number, a, b, probe.role, status, result.gbps, gbps, grade))
        if _disturbed(rows):
            self.void_rounds.add(number)
            rows = [row._replace(dropped=True, grade=Grade.NONE) for row in rows]
        self.edges += rows

    def _place(self) -> None:
        """Sort the endpoints: known good, suspect, grey; and collect what accuses each suspect."""
        size = self.map.size
        good, bad, grey = bytearray(size), bytearray(size), bytearray(size)
        marks = {Grade.GOOD: good, Grade.BAD: bad, Grade.GREY: grey}
        self.met: set[Pair] = set()
        self.witnessed: set[EdgeClass] = set()
        accusing: list[Measured] = []
        for edge in self.edges:
            if edge.status is not Status.VOID and edge.status is not Status.UNJUDGED:
                self.met.add((edge.a, edge.b))
            mark = marks.get(edge.grade)
            if mark is None:
                continue
            mark[edge.a] = mark[edge.b] = 1
            if edge.grade is Grade.BAD:
                accusing.append(edge)
            elif edge.grade is Grade.GOOD:
                self.witnessed.add(self.map.edge_class(edge.a, edge.b))
        self.good = good
        self.known_good = sum(good)
        self.suspects = [i for i in range(size) if bad[i] and not good[i]]
        self.grey = [i for i in range(size) if grey[i] and not bad[i] and not good[i]]
        self.suspect_set = frozenset(self.suspects)
        self.against: dict[int, list[Measured]] = {s: [] for s in self.suspects}
        self.among_good: dict[Pair, list[Measured]] = defaultdict(list)
        for edge in accusing:
            if good[edge.a] and good[edge.b]:
                self.among_good[edge.a, edge.b].append(edge)
            elif self.map.edge_class(edge.a, edge.b) in self.witnessed:
                # Like is compared with like: where no edge of this class was ever good, the class may be slow, not the end.
                if good[edge.a]:
                    self.against[edge.b].append(edge)
                elif good[edge.b]:
                    self.against[edge.a].append(edge)
        self._confirmations()

    def _confirmations(self) -> None:
        self.confirmed: dict[int, int] = defaultdict(int)
        self.met_suspects: set[int] = set()
        self.cleared_by_suspects: set[int] = set()
        for edge in self.edges:
            if edge.role is Role.ACCUSED and edge.grade is not Grade.NONE:
                for one, other in ((edge.a, edge.b), (edge.b, edge.a)):
                    if self.good[other]:
                        self.confirmed[one] += 1
            elif edge.role is Role.SUSPECTS and edge.grade is not Grade.NONE:
                self.met_suspects |= {edge.a, edge.b}
                if edge.grade is Grade.GOOD:
                    self.cleared_by_suspects |= {edge.a, edge.b}

    def rounds_against(self, suspect: int) -> int:
        """The number of distinct rounds in which a known-good endpoint found this one bad."""
        return len({edge.round for edge in self.against[suspect]})

    def isolated(self) -> Iterator[tuple[Pair, int, bool]]:
        """Bad edges between known-good ends: (pair, number of later measurements, whether one of them was good)."""
        if not self.among_good:
            return
        first = {pair: edges[0].round for pair, edges in self.among_good.items()}
        again: dict[Pair, list[Grade]] = {pair: [] for pair in first}
        for edge in self.edges:
            pair = (edge.a, edge.b)
            if edge.grade is not Grade.NONE and edge.round > first.get(pair, edge.round):
                again[pair].append(edge.grade)
        for pair, grades in sorted(again.items()):
            yield pair, len(grades), any(g is not Grade.BAD for g in grades)

    def crossing(self) -> float:
        """What paths between domains reach as a share of those inside, where that is least; 1 where it is not known."""
        return min(self.references.crossings(), default=1.0)

    def share(self, edges: Iterable[Measured]) -> float:
        """The median of value / reference over measured edges; 0 where none has a value."""
        shares = sorted(e.gbps / e.reference for e in edges if e.status is Status.OK and e.reference > 0)
        return shares[len(shares) // 2] if shares else 0.0


def weigh(state: State) -> Evidence:
    """Grade every edge measured so far."""
    return Evidence(state)


class _References:
    """The reference of each edge class, from the matching rounds: an upper quantile, because faults only slow things."""

    def __init__(self, shape: Map, rounds: tuple[Played, ...]) -> None:
        self._map = shape
        again = _remeasured(rounds)
        by_class: dict[EdgeClass, list[float]] = defaultdict(list)
        for probe, result in _matching(rounds):
            if result.status in _JUDGED:
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
        self._cache: dict[EdgeClass, Reference | None] = {}

    def of(self, a: int, b: int) -> Reference | None:
        """What the edge a–b should reach; None where nothing comparable was measured."""
        key = self._map.edge_class(a, b)
        if key not in self._cache:
            self._cache[key] = self._own.get(key) or self._lesser(key)
        return self._cache[key]

    def crossings(self) -> Iterator[float]:
        """For each pair of kinds, the reference between domains over the one inside, where both are known."""
        for (a, b, relation), reference in self._own.items():
            if relation == OTHER and (inside := self._own.get((a, b, SAME))):
                yield reference.gbps / inside.gbps

    def _lesser(self, key: EdgeClass) -> Reference | None:
        kind_a, kind_b, relation = key
        ends = [self._own.get((kind, kind, relation)) or self._kind.get(kind) for kind in (kind_a, kind_b)]
        return min((end for end in ends if end), key=lambda r: r.gbps) if all(ends) else None


def _reference(values: list[float]) -> Reference | None:
    """From the values of one class, a probe that broke counting as 0. None when too few, or when all of them broke."""
    if len(values) < FEW:
        return None
    ranked = sorted(values, reverse=True)
    alive = sum(1 for v in ranked if v > 0)
    if not alive:
        return None
    return Reference(ranked[min(ceil(len(ranked) / 4), alive) - 1], _accusing_share(ranked))


def _accusing_share(ranked: list[float]) -> float:
    n = len(ranked)
    if n < MANY:
        return BAD
    upper, middle = ranked[ceil(n / 4) - 1], ranked[ceil(n / 2) - 1]
    if middle <= 0:
        return BAD
    return min(BAD, 1 - 5 * (upper - middle) / middle / 0.674)


def _matching(rounds: tuple[Played, ...]) -> Iterator[tuple[Probe, Result]]:
    for played in rounds:
        if played.round.phase is Phase.MATCH:
            yield from zip(played.round.probes, played.results, strict=True)


def _remeasured(rounds: tuple[Played, ...]) -> dict[Pair, float]:
    """Edges of the matching rounds measured again because only they looked bad: the better value is the edge's own."""
    best: dict[Pair, float] = {}
    for played in rounds:
        if played.round.phase is Phase.CONFIRM:
            for probe, result in zip(played.round.probes, played.results, strict=True):
                if probe.role is Role.EDGE and result.status is Status.OK:
                    pair = (probe.members[0], probe.members[1])
                    best[pair] = max(best.get(pair, 0.0), result.gbps)
    return best


def _disturbed(rows: list[Measured]) -> bool:
    """Whether known-good endpoints were slow too, so that this round says nothing about anybody."""
    controls = sorted(
        row.gbps / row.reference if row.status is Status.OK else 0.0
        for row in rows
        if row.role is Role.CONTROL and row.status in _JUDGED and row.reference > 0
    )
    return bool(controls) and _median(controls) < GOOD


def _median(ranked: list[float]) -> float:
    middle = len(ranked) // 2
    return ranked[middle] if len(ranked) % 2 else (ranked[middle - 1] + ranked[middle]) / 2


def _voids(rounds: tuple[Played, ...]) -> list[Result]:
    return [result for played in rounds for result in played.results if result.status is Status.VOID]
