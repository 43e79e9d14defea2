"""What the measured edges say: references, grades, and who is known good, suspect or neither."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cached_property
from math import ceil, log

from .model import Grade, Measured, Phase, Played, Result, Role, State, Status
from .references import (
    BAD,
    FEW,
    GOOD,
    JUDGED,
    MANY,
    NVLINK,
    EdgeClass,
    EdgeMap,
    Pair,
    Reference,
    References,
)
from .silence import explained

__all__ = ["BAD", "GOOD", "EdgeMap", "Evidence", "voided", "weigh"]

EVIDENCE = 3
"""Distinct rounds in which known-good endpoints must have found a suspect bad
before it is blamed.
"""
FLAKY = 0.03
"""Share of the matchings' edges that may be bad between known-good ends before bad edges count as
common.
"""
CHANCE = 0.01
"""What the number of healthy nodes with that much evidence may come to by chance, where good nodes
have bad edges too.
"""
DRIFT = 0.75
"""Controls down to this share of normal, and all alike, show that the whole fabric is slower now:
it becomes the new normal.
"""
ALIKE = 0.08
"""How far apart controls may then be."""
MILD, MILD_EDGES, MILD_SIGMAS = 0.94, 3, 4.0
"""A node is a little slow where its edges, at least so many, average less than this share of the
gang's, by so many standard errors.
"""
RESTLESS = 16
"""Up to so many ends of paths that were bad once and good again are measured on."""

_OK, _MATCH, _NONE, _BAD, _GOOD = (
    Status.OK,
    Role.MATCH,
    Grade.NONE,
    Grade.BAD,
    Grade.GOOD,
)  # looked up once, not for each edge
_PAIRS = frozenset({Phase.MATCH, Phase.CONFIRM, Phase.SILENCE})
_BROKEN = frozenset({Status.WRONG, Status.HANG, Status.ERROR})


class Evidence:
    """All edges of one sort graded, and what follows from them for each endpoint. Made by
    :func:`weigh`.
    """

    def __init__(self, state: State, *, nvlink: bool = False) -> None:
        self.map = EdgeMap(state)
        self._nvlink = nvlink
        self._rounds = rounds = () if nvlink and max(self.map.rack) < 0 else state.rounds
        self.references = References(self.map, rounds)
        self.edges: list[Measured] = []
        self._classes: list[EdgeClass] = []  # of each edge
        self.void_rounds: set[int] = set()
        for played in rounds:
            if played.round.phase in _PAIRS:
                self._add(played)
        self.matching = sum(1 for e in self.edges if e.role is Role.MATCH)
        self._place()

    def _add(self, played: Played) -> None:
        number, at, nvlink = played.round.number, played.at, self._nvlink
        edge_class, reference_of = self.map.edge_class, self.references.of
        rows: list[Measured] = []
        for probe, result in zip(played.round.probes, played.results, strict=True):
            a, b = probe.members
            key = edge_class(a, b)
            if (key[2] == NVLINK) is not nvlink:
                continue
            status, measured = result.status, result.gbps
            reference = reference_of(key)
            if status is _OK:
                grade = _NONE if reference is None else reference.grade(measured)
            else:
                grade = Grade.BAD if status in _BROKEN else _NONE
            gbps = reference.gbps if reference else 0.0
            self._classes.append(key)
            rows.append(
                Measured(number, a, b, probe.role, status, measured, gbps, grade, False, at)
            )
        if (share := _drifted(rows)) < 1:
            rows = [self._regraded(row, share) for row in rows]
        elif _disturbed(rows):
            # Where suspects may slow others by pause frames, slow controls may be their doing.
            silenced = any(one.round.phase is Phase.SILENCE for one in self._rounds)
            least = 0.0 if silenced else _least(rows)
            rows = [self._below(row, least) for row in rows]
            if any(row.dropped for row in rows if row.role is not Role.CONTROL):
                self.void_rounds.add(number)
        self.edges += rows

    def _regraded(self, row: Measured, share: float) -> Measured:
        """Against what the controls of its own round reach."""
        reference = self.references.of(self.map.edge_class(row.a, row.b))
        if row.status is not Status.OK or reference is None:
            return row
        now = Reference(share * reference.gbps, reference.bad)
        return row._replace(reference=now.gbps, grade=now.grade(row.gbps))

    def _below(self, row: Measured, share: float) -> Measured:
        """In a disturbed round: bad if it is so even against the slowest control, else without a
        word.
        """
        if row.role is not Role.CONTROL and row.status is Status.OK and share > 0:
            against = self._regraded(row, share)
            if against.reference > 0 and against.grade is Grade.BAD:
                return against
        return row._replace(dropped=True, grade=Grade.NONE)

    def _place(self) -> None:
        """Sort the endpoints by what their edges say: known good, bad, grey."""
        size = self.map.size
        good, slow_good, bad, gray = (
            bytearray(size),
            bytearray(size),
            bytearray(size),
            bytearray(size),
        )
        full = {Grade.GOOD: good, Grade.BAD: bad, Grade.GRAY: gray}
        # As good as others of a class that is slow itself: that clears nobody whom a class at full
        # speed accuses.
        lesser = {Grade.GOOD: slow_good, Grade.BAD: gray, Grade.GRAY: gray}
        depressed = self.references.depressed
        met: dict[Pair, int] = {}
        witnessed: dict[EdgeClass, float] = {}
        for edge, key in zip(self.edges, self._classes, strict=True):
            grade, a, b = edge.grade, edge.a, edge.b
            if edge.status is not Status.VOID:
                met[a, b] = met.get((a, b), 0) + 1
            if grade is _NONE:
                continue
            mark = (lesser if key in depressed else full)[grade]
            if grade is not _GOOD:
                mark[a] = mark[b] = 1
                continue
            witnessed[key] = max(edge.gbps, witnessed.get(key, 0.0))
            for one in (a, b):
                if self.tells(one, key):
                    mark[one] = 1
        self.met = Counter(met)
        self._witnessed = witnessed
        self.turned = self._turned()
        for one in self.turned:
            good[one] = slow_good[one] = 0
        self.strong = good
        self.good = bytearray(
            g or (w and not b) for g, w, b in zip(good, slow_good, bad, strict=True)
        )
        self._accuse(bad, gray)

    def _turned(self) -> list[int]:
        """Endpoints that were good, and with two other partners or more bad ever since: what they
        were before says no more what they are. Their partners were good as well, and are not so.
        """
        last: dict[int, float] = {}
        after: dict[int, dict[int, int]] = defaultdict(dict)  # by endpoint: round of each partner
        for edge in self.edges:  # in the order of time
            if edge.grade is _GOOD:
                for one in (edge.a, edge.b):
                    last[one] = edge.at
                    after.pop(one, None)
            elif edge.grade is _BAD and not edge.dropped:
                for one, other in ((edge.a, edge.b), (edge.b, edge.a)):
                    after[one][other] = edge.round
        turned = {
            one: partners
            for one, partners in after.items()
            if one in last and len(set(partners.values())) > 1 and len(partners) > 1
        }
        return [
            one
            for one, partners in sorted(turned.items())
            if sum(1 for other in partners if other in last and other not in turned) > 1
        ]

    @cached_property
    def late(self) -> list[int]:
        """Known-good ends of a path that was bad after both of them had been good, and of which
        nothing was measured since: which of them has changed, other partners show.
        """
        last: dict[int, Measured] = {}
        before: set[int] = set()
        for edge in self.edges:
            if edge.grade is _NONE:
                continue
            for one in (edge.a, edge.b):
                if edge.grade is _GOOD:
                    before.add(one)
                last[one] = edge
        return sorted(
            {
                one
                for edges in self.among_good.values()
                for edge in edges
                if {edge.a, edge.b} <= before and edge in (last[edge.a], last[edge.b])
                for one in (edge.a, edge.b)
                if last[one] is edge
            }
        )

    def tells(self, one: int, key: EdgeClass) -> bool:
        """Whether a good edge of this class shows that this end is good: not where the other end's
        kind is what limits it.
        """
        if key[0] == key[1]:
            return True
        own, reference = self.references.of_kind(self.map.kind[one]), self.references.of(key)
        return own is None or reference is None or reference.gbps >= GOOD * own.gbps

    def witnessed(self, key: EdgeClass) -> bool:
        """Whether an edge of this class was good; or, between nodes of one kind, whether a path of
        its relation carried as much for others, and nodes of that kind are good with each other
        elsewhere."""
        if key in self._witnessed:
            return True
        kind, other, relation = key
        reference = self.references.of(key)
        if (
            kind != other
            or reference is None
            or all((a, b) != (kind, kind) for a, b, _ in self._witnessed)
        ):
            return False
        most = max(
            (gbps for (_, _, where), gbps in self._witnessed.items() if where == relation),
            default=0.0,
        )
        return most >= GOOD * reference.gbps

    def _accuse(self, bad: bytearray, gray: bytearray) -> None:
        """Collect what known-good endpoints have against each suspect, and bad edges among
        themselves.
        """
        good, strong = self.good, self.strong
        self.known_good = sum(good)
        accusing = [edge for edge in self.edges if edge.grade is _BAD]
        for edge in accusing:
            bad[edge.a] = bad[edge.b] = 1
        accusing = self._unexplained(accusing)
        self.judged = bool(self._witnessed or accusing or any(gray))
        self.suspects = [i for i in range(self.map.size) if bad[i] and not good[i]]
        self.gray = [i for i in range(self.map.size) if gray[i] and not bad[i] and not good[i]]
        self.suspect_set = frozenset(self.suspects)
        self.against: dict[int, list[Measured]] = {s: [] for s in self.suspects}
        self.among_good: dict[Pair, list[Measured]] = defaultdict(list)
        for edge in accusing:
            key = self.map.edge_class(edge.a, edge.b)
            trusted = good if key in self.references.depressed else strong
            if good[edge.a] and good[edge.b]:
                self.among_good[edge.a, edge.b].append(edge)
            elif self.witnessed(key):
                # Like with like: where no edge of a class was ever good, the class may be slow, not
                # the end.
                if trusted[edge.a] and not good[edge.b]:
                    self.against[edge.b].append(edge)
                elif trusted[edge.b] and not good[edge.a]:
                    self.against[edge.a].append(edge)
        self._confirmations()

    def _unexplained(self, accusing: list[Measured]) -> list[Measured]:
        """Without the bad edges of those that a suspect's pause frames slow."""
        self.shaded: frozenset[int] = frozenset()
        if all(played.round.phase is not Phase.SILENCE for played in self._rounds):
            return accusing
        found = explained(self._rounds, self.edges, self.good, self.map.seen)
        self.shaded = found.victims
        self.edges = [
            e._replace(grade=_NONE, dropped=True) if e in found.edges else e for e in self.edges
        ]
        return [e for e in accusing if e not in found.edges]

    @cached_property
    def unwitnessed(self) -> list[EdgeClass]:
        """Classes in which a suspect has a bad edge with a known-good endpoint that accuses nobody,
        for none of them was good.
        """
        found = dict.fromkeys(
            key
            for edge, key in zip(self.edges, self._classes, strict=True)
            if edge.grade is _BAD
            and self.strong[edge.a] != self.strong[edge.b]
            and not self.witnessed(key)
        )
        return list(found)

    def _confirmations(self) -> None:
        self.confirmed: dict[int, int] = defaultdict(int)
        self.met_suspects: set[int] = set()
        self.cleared_by_suspects: set[int] = set()
        for edge in self.edges:
            if edge.role is _MATCH or edge.grade is _NONE:
                continue
            if edge.role is Role.ACCUSED:
                for one, other in ((edge.a, edge.b), (edge.b, edge.a)):
                    if self.good[other]:
                        self.confirmed[one] += 1
            elif edge.role is Role.SUSPECTS:
                self.met_suspects |= {edge.a, edge.b}
                if edge.grade is _GOOD:
                    self.cleared_by_suspects |= {edge.a, edge.b}

    @cached_property
    def enough(self) -> int:
        """How many rounds must speak against a suspect: more than :data:`EVIDENCE` where bad edges
        come by themselves.

        Those are the bad edges of the matchings between known-good ends. Up to :data:`FLAKY` of all
        (and up to two) they are chance; beyond, their share p says how many it takes until p^k is
        unlikely for every node of the gang.
        """
        alone = sum(
            1 for edges in self.among_good.values() for edge in edges if edge.role is Role.MATCH
        )
        if alone <= max(2, FLAKY * self.matching):
            return EVIDENCE
        return max(
            EVIDENCE, ceil(log(CHANCE / self.map.size) / log(min(0.5, alone / self.matching)))
        )

    def rounds_against(self, suspect: int) -> int:
        """The number of distinct rounds in which a known-good endpoint found this one bad."""
        return len({edge.round for edge in self.against[suspect]})

    @cached_property
    def isolated(self) -> list[tuple[Pair, int, bool]]:
        """Bad edges between known-good ends: (pair, number of later measurements, whether one of
        them was not bad).
        """
        if not self.among_good:
            return []
        first = {pair: edges[0].round for pair, edges in self.among_good.items()}
        again: dict[Pair, list[Grade]] = {pair: [] for pair in first}
        for edge in self.edges:
            pair = (edge.a, edge.b)
            if pair in first and edge.grade is not _NONE and edge.round > first[pair]:
                again[pair].append(edge.grade)
        return [
            (pair, len(g), any(one is not Grade.BAD for one in g))
            for pair, g in sorted(again.items())
        ]

    @cached_property
    def restless(self) -> list[int]:
        """Ends of paths that were bad and then good: whether one of them comes and goes is seen
        with other partners only.
        """
        ends = sorted({one for (pair, _, better) in self.isolated if better for one in pair})
        return ends if len(ends) <= RESTLESS else []

    @cached_property
    def ends(self) -> list[int]:
        """Both ends of each path between known-good endpoints that was bad in two rounds or more:
        one of them, or what is between.
        """
        return sorted(
            {
                i
                for pair, edges in self.among_good.items()
                if len({e.round for e in edges}) > 1
                for i in pair
            }
        )

    @cached_property
    def intermittent(self) -> list[int]:
        """Known-good endpoints at which all bad paths of two partners or more meet that are bad
        nowhere else.
        """
        partners: dict[int, set[int]] = defaultdict(set)
        rounds: dict[int, set[int]] = defaultdict(set)
        for (a, b), edges in self.among_good.items():
            partners[a].add(b)
            partners[b].add(a)
            for edge in edges:
                rounds[a].add(edge.round)
                rounds[b].add(edge.round)
        return [
            one
            for one in sorted(partners)
            if len(partners[one]) > 1
            and len(rounds[one]) > 1
            and sum(1 for other in partners[one] if partners[other] == {one})
            > len(partners[one]) / 2
        ]

    @cached_property
    def unreached(self) -> list[int]:
        """Endpoints none of whose probes came up, with two partners or more whose other probes did:
        their path is dead.
        """
        return [one for one in self.silent if len(self._unjudged[one].difference(self.silent)) > 1]

    @cached_property
    def silent(self) -> list[int]:
        """Endpoints none of whose probes has come up so far."""
        judged = {one for e in self.edges if e.status in JUDGED for one in (e.a, e.b)}
        return sorted(self._unjudged.keys() - judged)

    @cached_property
    def _unjudged(self) -> dict[int, set[int]]:
        """By endpoint, with whom a probe did not come up."""
        partners: dict[int, set[int]] = defaultdict(set)
        for edge in self.edges:
            if edge.status is Status.UNJUDGED:
                partners[edge.a].add(edge.b)
                partners[edge.b].add(edge.a)
        return partners

    @cached_property
    def _shares(self) -> tuple[dict[int, tuple[int, float, float]], float]:
        """By endpoint its number of edges, the sum and the largest of their shares of what is
        usual; and how far noise spreads them.
        """
        shares = [
            (e.a, e.b, e.gbps / e.reference)
            for e in self.edges
            if e.status is _OK and e.reference > 0 and not e.dropped
        ]
        if len(shares) < FEW:
            return {}, 0.0
        ranked = sorted((share for _, _, share in shares), reverse=True)
        middle = ranked[len(ranked) // 2]
        usual = max(
            ranked[(len(ranked) - 1) // 4], min(1.0, ranked[0])
        )  # most edges of a small gang may be one node's
        spread = max(0.015, (usual - middle) / 0.674 if len(ranked) >= MANY else 0.03)
        found: dict[int, tuple[int, float, float]] = {}
        for a, b, value in shares:
            share = value / usual
            for one in (a, b):
                count, total, most = found.get(one, (0, 0.0, 0.0))
                found[one] = (count + 1, total + share, share if share > most else most)
        return found, spread

    def mild(self, least: int = MILD_EDGES) -> list[int]:
        """Endpoints all of whose edges are a little slow, and more so than noise explains: one of
        eight NICs is lost, say.
        """
        shares, spread = self._shares
        return sorted(
            one
            for one, (count, total, most) in shares.items()
            if count >= least
            and most < 0.97
            and total / count < MILD
            and (least < MILD_EDGES or 1 - total / count > MILD_SIGMAS * spread / count**0.5)
        )

    @property
    def spread(self) -> float:
        """How far noise spreads edges about what is usual, as a share; at least 1.5 %."""
        return self._shares[1]

    def share(self, edges: Iterable[Measured]) -> float:
        """The median of value / reference over measured edges; 0 where none has a value."""
        shares = sorted(
            e.gbps / e.reference for e in edges if e.status is Status.OK and e.reference > 0
        )
        return shares[len(shares) // 2] if shares else 0.0


def weigh(state: State, *, nvlink: bool = False) -> Evidence:
    """Grade every edge measured so far: those that pass NICs, or with ``nvlink`` those inside
    NVLink domains.
    """
    return Evidence(state, nvlink=nvlink)


def voided(state: State) -> list[Result]:
    """The results of probes that say nothing but what one side had."""
    return [r for played in state.rounds for r in played.results if r.status is Status.VOID]


def _controls(rows: list[Measured]) -> list[float]:
    """What the round's controls reached of normal, the slowest first; 0 where one broke."""
    return sorted(
        row.gbps / row.reference if row.status is Status.OK else 0.0
        for row in rows
        if row.role is Role.CONTROL and row.status in JUDGED and row.reference > 0
    )


def _disturbed(rows: list[Measured]) -> bool:
    """Whether known-good endpoints were slow too, so that this round says nothing about anybody."""
    controls = _controls(rows)
    # Of an even number the better middle one: a single dip among two controls disturbs nothing.
    return bool(controls) and controls[len(controls) // 2] < GOOD


def _least(rows: list[Measured]) -> float:
    """The share of normal that the slowest control reached; 0 where it was slower than drift
    explains, or broke.
    """
    shares = _controls(rows)
    return shares[0] if shares and shares[0] >= DRIFT else 0.0


def _drifted(rows: list[Measured]) -> float:
    """What controls reach that are all equally slower than before: the whole fabric, not a
    disturbance. 1 where they are not.
    """
    shares = sorted(
        row.gbps / row.reference
        for row in rows
        if row.role is Role.CONTROL and row.status is Status.OK and row.reference > 0
    )
    if (
        len(shares) < 2
        or shares[-1] - shares[0] > ALIKE
        or not shares[0] >= DRIFT
        or shares[-1] > 1 - ALIKE / 2
    ):
        return 1.0
    return shares[len(shares) // 2]
