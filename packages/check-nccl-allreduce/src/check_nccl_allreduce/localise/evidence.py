"""What the measured edges say: references, grades, and who is known good, suspect or neither."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil, log

from .model import Grade, Measured, Phase, Played, Probe, Result, Role, State, Status

__all__ = ["BAD", "GOOD", "Evidence", "weigh"]

GOOD = 0.88
"""An edge at or above this share of its reference clears both its ends."""
BAD = 0.80
"""An edge below this share of its reference accuses. Wide noise lowers it, see :func:`_accusing_share`."""
MANY = 32
"""From so many values on, their own spread says how far below the reference noise alone can reach."""
EVIDENCE = 3
"""Distinct rounds in which known-good endpoints must have found a suspect bad before it is blamed."""
FLAKY = 0.03
"""Share of the matchings' edges that may be bad between known-good ends before bad edges count as common."""
CHANCE = 0.01
"""What the number of healthy nodes with that much evidence may come to by chance, where good nodes have bad edges too."""
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
        """Sort the endpoints by what their edges say: known good, bad, grey."""
        size = self.map.size
        good, slow_good, bad, grey = bytearray(size), bytearray(size), bytearray(size), bytearray(size)
        full = {Grade.GOOD: good, Grade.BAD: bad, Grade.GREY: grey}
        # As good as others of a class that is slow itself: that clears nobody whom a class at full speed accuses.
        lesser = {Grade.GOOD: slow_good, Grade.BAD: grey, Grade.GREY: grey}
        depressed = self.references.depressed
        self.met: Counter[Pair] = Counter()
        self.witnessed: set[EdgeClass] = set()
        for edge in self.edges:
            if edge.status in _JUDGED:
                self.met[edge.a, edge.b] += 1
            if edge.grade is Grade.NONE:
                continue
            key = self.map.edge_class(edge.a, edge.b)
            mark = (lesser if key in depressed else full)[edge.grade]
            mark[edge.a] = mark[edge.b] = 1
            if edge.grade is Grade.GOOD:
                self.witnessed.add(key)
        self.strong = good
        self.good = bytearray(g or (w and not b) for g, w, b in zip(good, slow_good, bad, strict=True))
        self._accuse(bad, grey)

    def _accuse(self, bad: bytearray, grey: bytearray) -> None:
        """Collect what known-good endpoints have against each suspect, and bad edges among themselves."""
        good, strong = self.good, self.strong
        self.known_good = sum(good)
        accusing = [edge for edge in self.edges if edge.grade is Grade.BAD]
        for edge in accusing:
            bad[edge.a] = bad[edge.b] = 1
        self.judged = bool(self.witnessed or accusing or any(grey))
        self.suspects = [i for i in range(self.map.size) if bad[i] and not good[i]]
        self.grey = [i for i in range(self.map.size) if grey[i] and not bad[i] and not good[i]]
        self.suspect_set = frozenset(self.suspects)
        self.against: dict[int, list[Measured]] = {s: [] for s in self.suspects}
        self.among_good: dict[Pair, list[Measured]] = defaultdict(list)
        for edge in accusing:
            key = self.map.edge_class(edge.a, edge.b)
            trusted = good if key in self.references.depressed else strong
            if good[edge.a] and good[edge.b]:
                self.among_good[edge.a, edge.b].append(edge)
            elif key in self.witnessed:
                # Like with like: where no edge of a class was ever good, the class may be slow, not the end.
                if trusted[edge.a] and not good[edge.b]:
                    self.against[edge.b].append(edge)
                elif trusted[edge.b] and not good[edge.a]:
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

    @cached_property
    def enough(self) -> int:
        """How many rounds must speak against a suspect: more than :data:`EVIDENCE` where bad edges come by themselves.

        Those are the bad edges of the matchings between known-good ends. Up to :data:`FLAKY` of all (and up to two) they
        are chance; beyond, their share p says how many it takes until p^k is unlikely for every node of the gang.
        """
        alone = sum(1 for edges in self.among_good.values() for edge in edges if edge.role is Role.MATCH)
        if alone <= max(2, FLAKY * self.matching):
            return EVIDENCE
        return max(EVIDENCE, ceil(log(CHANCE / self.map.size) / log(min(0.5, alone / self.matching))))

    def rounds_against(self, suspect: int) -> int:
        """The number of distinct rounds in which a known-good endpoint found this one bad."""
        return len({edge.round for edge in self.against[suspect]})

    @cached_property
    def isolated(self) -> list[tuple[Pair, int, bool]]:
        """Bad edges between known-good ends: (pair, number of later measurements, whether one of them was not bad)."""
        if not self.among_good:
            return []
        first = {pair: edges[0].round for pair, edges in self.among_good.items()}
        again: dict[Pair, list[Grade]] = {pair: [] for pair in first}
        for edge in self.edges:
            pair = (edge.a, edge.b)
            if edge.grade is not Grade.NONE and edge.round > first.get(pair, edge.round):
                again[pair].append(edge.grade)
        return [(pair, len(g), any(one is not Grade.BAD for one in g)) for pair, g in sorted(again.items())]

    def crossing(self) -> float:
        """What paths between domains reach as a share of those inside, where that is least; 1 where it is not known."""
        return self.references.crossing()

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
        self.depressed = frozenset(key for key, share in self._crossings() if share < BAD)
        self._cache: dict[EdgeClass, Reference | None] = {}

    def of(self, a: int, b: int) -> Reference | None:
        """What the edge a–b should reach; None where nothing comparable was measured."""
        key = self._map.edge_class(a, b)
        if key not in self._cache:
            self._cache[key] = self._own.get(key) or self._lesser(key)
        return self._cache[key]

    def crossing(self) -> float:
        """What paths between domains reach as a share of those inside, where that is least; 1 where it is not known."""
        return min((share for _, share in self._crossings()), default=1.0)

    def _crossings(self) -> Iterator[tuple[EdgeClass, float]]:
        for (a, b, relation), reference in self._own.items():
            if relation == OTHER and (inside := self._own.get((a, b, SAME))):
                yield (a, b, relation), reference.gbps / inside.gbps

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
    # Of an even number the better middle one: a single dip among two controls disturbs nothing.
    return bool(controls) and controls[len(controls) // 2] < GOOD


def _voids(rounds: tuple[Played, ...]) -> list[Result]:
    return [result for played in rounds for result in played.results if result.status is Status.VOID]
