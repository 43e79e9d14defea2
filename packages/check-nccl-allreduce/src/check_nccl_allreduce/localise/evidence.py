"""What the measured edges say: references, grades, and who is known good, suspect or neither."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from math import ceil, log

from .model import Fact, Grade, Measured, Phase, Played, Role, State, Status
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

EVIDENCE = 3
"""Distinct rounds in which known-good endpoints must find a suspect bad before it is blamed."""
FLAKY = 0.03
"""Share of the matchings' edges that may be bad between known-good ends by chance."""
CHANCE = 0.01
"""How many healthy nodes may have that much evidence by chance, where good ones are bad too."""
DRIFT, ALIKE = 0.75, 0.08
"""Controls reach so much and are no further apart where the whole fabric is slower now."""
MILD, MILD_EDGES, MILD_SIGMAS = 0.94, 3, 4.0
"""A node is a little slow where its edges, at least so many, average less than this share of the
gang's, by so many standard errors."""
RESTLESS = 16
"""Up to so many ends of paths that were bad once and good again are measured on."""

_OK, _NONE, _BAD, _GOOD = Status.OK, Grade.NONE, Grade.BAD, Grade.GOOD  # looked up once
_PAIRS = frozenset({Phase.MATCH, Phase.CONFIRM, Phase.SILENCE})


class Evidence:
    """All edges of one sort graded, and what follows for each endpoint: those over NICs, or with
    ``nvlink`` those inside NVLink domains.
    """

    def __init__(self, state: State, *, nvlink: bool = False) -> None:
        self.map = EdgeMap(state)
        rounds = () if nvlink and max(self.map.rack) < 0 else state.rounds
        self._silenced = any(played.round.phase is Phase.SILENCE for played in rounds)
        self.references = References(self.map, rounds)
        self.edges: list[Measured] = []
        self._classes: list[EdgeClass] = []  # of each edge
        self.void_rounds: set[int] = set()
        for played in rounds:
            if played.round.phase in _PAIRS:
                self._add(played, nvlink)
        self.matching = sum(1 for e in self.edges if e.role is Role.MATCH)
        self._by_endpoint()
        self._place(rounds)

    def _add(self, played: Played, nvlink: bool) -> None:
        rows: list[Measured] = []
        for probe, result in zip(played.round.probes, played.results, strict=True):
            a, b = probe.members
            key = self.map.edge_class(a, b)
            if (key[2] == NVLINK) is not nvlink:
                continue
            reference = self.references.of(key)
            grade, normal = _NONE, reference.gbps if reference else 0.0
            if result.status is not _OK:
                grade = _BAD if result.status in JUDGED else _NONE
            elif reference is not None:
                grade = reference.grade(result.gbps)
            what = (probe.role, result.status, result.gbps, normal, grade, False, played.at)
            self._classes.append(key)
            rows.append(Measured(played.round.number, a, b, *what))
        controls = sorted(
            row.gbps / row.reference if row.status is _OK else 0.0
            for row in rows
            if row.role is Role.CONTROL and row.status in JUDGED and row.reference > 0
        )
        # Of an even number the better middle one: a single dip among two controls disturbs nothing.
        middle = controls[len(controls) // 2] if controls else 1.0
        if (share := _drifted(controls)) < 1:
            rows = [self._regraded(row, share) for row in rows]
        elif middle < GOOD:
            # Where suspects may slow others by pause frames, slow controls may be their doing;
            # below what drift explains, or broken, the slowest one is no measure.
            least = 0.0 if self._silenced or controls[0] < DRIFT else controls[0]
            rows = [self._below(row, least) for row in rows]
            if any(row.dropped for row in rows if row.role is not Role.CONTROL):
                self.void_rounds.add(played.round.number)
        self.edges += rows

    def _regraded(self, row: Measured, share: float) -> Measured:
        """Against what the controls of its own round reach."""
        reference = self.references.of(self.map.edge_class(row.a, row.b))
        if row.status is not Status.OK or reference is None:
            return row
        now = Reference(share * reference.gbps, reference.bad)
        return row._replace(reference=now.gbps, grade=now.grade(row.gbps))

    def _below(self, row: Measured, share: float) -> Measured:
        """A row of a disturbed round: bad if so even against the slowest control, else void."""
        if row.role is not Role.CONTROL and row.status is Status.OK and share > 0:
            against = self._regraded(row, share)
            if against.grade is _BAD:
                return against
        return row._replace(dropped=True, grade=Grade.NONE)

    def _place(self, rounds: Sequence[Played]) -> None:
        """Sort the endpoints by what their edges say: known good, bad, gray."""
        good, slow_good, bad, gray = (bytearray(self.map.size) for _ in range(4))
        full = {Grade.GOOD: good, Grade.BAD: bad, Grade.GRAY: gray}
        # As good as others of a class that is slow itself: that clears nobody whom a class at full
        # speed accuses.
        lesser = {Grade.GOOD: slow_good, Grade.BAD: gray, Grade.GRAY: gray}
        depressed = self.references.depressed
        self.met: Counter[Pair] = Counter()
        self.witnessed: set[EdgeClass] = set()
        """Classes of which an edge was good: where none was, the class may be slow, not the end."""
        for edge, key in zip(self.edges, self._classes, strict=True):
            grade, a, b = edge.grade, edge.a, edge.b
            if edge.status is not Status.VOID:
                self.met[a, b] += 1
            if grade is _NONE:
                continue
            mark = (lesser if key in depressed else full)[grade]
            if grade is not _GOOD:
                mark[a] = mark[b] = 1
                continue
            self.witnessed.add(key)
            for end in (a, b):
                if self.clears(end, key):
                    mark[end] = 1
        self.turned = self._turned()
        for end in self.turned:
            good[end] = slow_good[end] = 0
        self.strong = good
        self.good = bytearray(
            g or (w and not b) for g, w, b in zip(good, slow_good, bad, strict=True)
        )
        self._accuse(bad, gray, rounds)

    def _turned(self) -> list[int]:
        """Endpoints that were good, and with two other partners or more bad ever since: what they
        were before says no more what they are. Their partners were good as well, and are not so.
        """
        was_good: set[int] = set()
        turned: dict[int, dict[int, int]] = {}  # the round of each partner
        for end, edges in enumerate(self.graded):
            last = max((i for i, edge in enumerate(edges) if edge.grade is _GOOD), default=None)
            if last is not None:
                was_good.add(end)
                since = {e.other(end): e.round for e in edges[last:] if e.grade is _BAD}
                if min(len(since), len(set(since.values()))) > 1:
                    turned[end] = since
        still = was_good - turned.keys()
        return [end for end, since in turned.items() if len(still & since.keys()) > 1]

    def _by_endpoint(self) -> None:
        self.edges_of: list[list[Measured]] = [[] for _ in range(self.map.size)]
        """By endpoint, in the order of time."""
        for edge in self.edges:
            self.edges_of[edge.a].append(edge)
            self.edges_of[edge.b].append(edge)
        self.graded = [[edge for edge in edges if edge.grade] for edges in self.edges_of]
        """Of these, what says something."""

    @cached_property
    def late(self) -> list[int]:
        """Known-good ends of a path that was bad after both of them had been good, and of which
        nothing was measured since: which of them has changed, other partners show.
        """
        last = {end: edges[-1] for end, edges in enumerate(self.graded) if edges}
        before = {end for end in last if any(e.grade is _GOOD for e in self.graded[end])}
        return [
            end
            for end, edge in last.items()
            if edge in self.among_good.get((edge.a, edge.b), ()) and {edge.a, edge.b} <= before
        ]

    @cached_property
    def lesser(self) -> list[int]:
        """Known-good endpoints none of whose paths comes near the fastest of its class, where the
        reference does not either: what slows most of the gang may be what makes them look good.
        """
        values: dict[EdgeClass, dict[Pair, float]] = defaultdict(dict)
        for edge, key in zip(self.edges, self._classes, strict=True):
            if edge.status is _OK and not edge.dropped:
                best = values[key]
                best[edge.a, edge.b] = max(edge.gbps, best.get((edge.a, edge.b), 0.0))
        reach: dict[int, float] = defaultdict(float)
        for key, paths in values.items():
            normal, ranked = self.references.of(key), sorted(paths.values())
            few = len(ranked) <= 2 * FEW
            fastest = ranked[-1 if few else -2]  # of many one may be too fast
            if normal is not None:
                usual = fastest if normal.gbps < BAD * fastest else normal.gbps
                for pair, value in paths.items():
                    for node in pair:
                        reach[node] = max(reach[node], value / usual)
        return [node for node, share in sorted(reach.items()) if share < BAD and self.good[node]]

    def clears(self, end: int, key: EdgeClass) -> bool:
        """Whether a good edge shows that this end is good: not where the other's kind limits it."""
        if key[0] == key[1]:
            return True
        own, reference = self.references.of_kind(self.map.kind[end]), self.references.of(key)
        return own is None or reference is None or reference.gbps >= GOOD * own.gbps

    def _accuse(self, bad: bytearray, gray: bytearray, rounds: Sequence[Played]) -> None:
        """Collect what known-good endpoints have against each suspect, and bad edges among
        themselves; without the bad edges of those that a suspect's pause frames slow.
        """
        good, strong = self.good, self.strong
        self.known_good = sum(good)
        accusing = [edge for edge in self.edges if edge.grade is _BAD]
        for edge in accusing:
            bad[edge.a] = bad[edge.b] = 1
        self.shaded: set[int] = set()
        if self._silenced:
            excused, self.shaded = explained(rounds, self.edges, good, self.map.seen)
            accusing = [e for e in accusing if e not in excused]
            self.edges = [
                e._replace(grade=_NONE, dropped=True) if e in excused else e for e in self.edges
            ]
            self._by_endpoint()
        self.judged = bool(self.witnessed or accusing or any(gray))
        others = [i for i in range(self.map.size) if not good[i]]
        self.suspects = [i for i in others if bad[i]]
        self.gray = [i for i in others if gray[i] and not bad[i]]
        self.suspect_set = frozenset(self.suspects)
        self.against: dict[int, list[Measured]] = {s: [] for s in self.suspects}
        self.among_good: dict[Pair, list[Measured]] = defaultdict(list)
        for edge in accusing:
            key = self.map.edge_class(edge.a, edge.b)
            trusted = good if key in self.references.depressed else strong
            if good[edge.a] and good[edge.b]:
                self.among_good[edge.a, edge.b].append(edge)
            elif key in self.witnessed:
                if trusted[edge.a] and not good[edge.b]:
                    self.against[edge.b].append(edge)
                elif trusted[edge.b] and not good[edge.a]:
                    self.against[edge.a].append(edge)
        self._confirmations()

    @cached_property
    def unwitnessed(self) -> list[EdgeClass]:
        """Classes in which a suspect has a bad edge with a known-good endpoint that accuses nobody,
        for none of them was good.
        """
        edges = zip(self.edges, self._classes, strict=True)
        bad = [key for e, key in edges if e.grade is _BAD and self.strong[e.a] != self.strong[e.b]]
        return [key for key in dict.fromkeys(bad) if key not in self.witnessed]

    def _confirmations(self) -> None:
        self.confirmed: dict[int, int] = defaultdict(int)
        self.met_suspects: set[int] = set()
        self.cleared_by_suspects: set[int] = set()
        for edge in self.edges:
            if edge.role is Role.ACCUSED and edge.grade:
                for end, other in ((edge.a, edge.b), (edge.b, edge.a)):
                    self.confirmed[end] += self.good[other]
            elif edge.role is Role.SUSPECTS and edge.grade:
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
        bad = [edge for edges in self.among_good.values() for edge in edges]
        alone = sum(1 for edge in bad if edge.role is Role.MATCH)
        if alone <= max(2, FLAKY * self.matching):
            return EVIDENCE
        share = min(0.5, alone / self.matching)
        return max(EVIDENCE, ceil(log(CHANCE / self.map.size) / log(share)))

    def rounds_against(self, suspect: int) -> int:
        """The number of distinct rounds in which a known-good endpoint found this one bad."""
        return len({edge.round for edge in self.against[suspect]})

    @cached_property
    def isolated(self) -> list[tuple[Pair, int, bool]]:
        """Bad edges of known-good ends: (pair, later measurements, whether one was not bad)."""
        again: dict[Pair, list[bool]] = {pair: [] for pair in sorted(self.among_good)}
        for edge in self.edges:
            pair = (edge.a, edge.b)
            if pair in again and edge.grade and edge.round > self.among_good[pair][0].round:
                again[pair].append(edge.grade is not _BAD)
        return [(pair, len(better), any(better)) for pair, better in again.items()]

    @cached_property
    def restless(self) -> list[int]:
        """Ends of paths that were bad and then good: who comes and goes, other partners show."""
        ends = sorted({end for (pair, _, better) in self.isolated if better for end in pair})
        return ends if len(ends) <= RESTLESS else []

    @cached_property
    def ends(self) -> list[int]:
        """Both ends of each path between known-good endpoints that was bad in two rounds or more:
        one of them, or what is between.
        """
        often = [p for p, edges in self.among_good.items() if len({e.round for e in edges}) > 1]
        return sorted({end for pair in often for end in pair})

    @cached_property
    def intermittent(self) -> list[int]:
        """Known-good endpoints at which all bad paths of two partners or more meet."""
        rounds: dict[int, set[int]] = defaultdict(set)
        partners: dict[int, set[int]] = defaultdict(set)
        for (a, b), edges in sorted(self.among_good.items()):
            for end, other in ((a, b), (b, a)) if edges else ():
                partners[end].add(other)
                rounds[end] |= {edge.round for edge in edges}
        return [
            end
            for end, met in sorted(partners.items())
            if min(len(met), len(rounds[end])) > 1
            and sum(partners[other] == {end} for other in met) > len(met) / 2
        ]

    @cached_property
    def unreached(self) -> list[int]:
        """Endpoints none of whose probes came up, though those of two partners did with others."""
        partners = {
            end: {e.other(end) for e in self.edges_of[end] if e.status is Status.UNJUDGED}
            for end in self.silent
        }
        return [end for end, met in partners.items() if len(met - partners.keys()) > 1]

    @cached_property
    def silent(self) -> list[int]:
        """Endpoints none of whose probes has come up so far."""
        statuses = [{e.status for e in edges} for edges in self.edges_of]
        return [i for i, has in enumerate(statuses) if Status.UNJUDGED in has and not has & JUDGED]

    @cached_property
    def _shares(self) -> tuple[dict[int, list[float]], float]:
        """By endpoint its edges' shares of what is usual; and how far noise spreads them."""
        shares = [
            (e.a, e.b, e.gbps / e.reference)
            for e in self.edges
            if e.status is _OK and e.reference > 0 and not e.dropped
        ]
        if len(shares) < FEW:
            return {}, 0.0
        ranked = sorted((share for _, _, share in shares), reverse=True)
        middle, upper = ranked[len(ranked) // 2], ranked[(len(ranked) - 1) // 4]
        usual = max(upper, min(1.0, ranked[0]))  # most edges of a small gang may be one node's
        ratios: dict[int, list[float]] = defaultdict(list)
        for a, b, share in shares:
            ratios[a].append(share / usual)
            ratios[b].append(share / usual)
        return ratios, max(0.015, (usual - middle) / 0.674 if len(ranked) >= MANY else 0.03)

    def mild(self, least: int = MILD_EDGES) -> list[int]:
        """Endpoints all of whose edges are a little slow, beyond noise: a lost NIC of eight."""
        sigmas = MILD_SIGMAS if least >= MILD_EDGES else 0.0
        return [
            end
            for end, shares in sorted(self._shares[0].items())
            if len(shares) >= least
            and max(shares) < 0.97
            and (mean := sum(shares) / len(shares)) < MILD
            and 1 - mean > sigmas * self.spread / len(shares) ** 0.5
        ]

    @property
    def spread(self) -> float:
        """How far noise spreads edges about what is usual, as a share; at least 1.5 %."""
        return self._shares[1]

    def share(self, edges: Iterable[Measured]) -> float:
        """The median of value / reference over measured edges; 0 where none has a value."""
        shares = sorted(e.gbps / e.reference for e in edges if e.status is _OK and e.reference > 0)
        return shares[len(shares) // 2] if shares else 0.0


def voided(state: State) -> list[Fact]:
    """What probes say that say nothing but what one side had."""
    results = [r for played in state.rounds for r in played.results if r.status is Status.VOID]
    return [Fact(r.member, r.fact, r.cause) for r in results]


def _drifted(controls: list[float]) -> float:
    """What controls reach that are all equally slower than before: the whole fabric, not a
    disturbance; 1 where they are not.
    """
    shares = [share for share in controls if share > 0]
    alike = len(shares) > 1 and shares[-1] - shares[0] <= ALIKE
    slower = alike and shares[0] >= DRIFT and shares[-1] <= 1 - ALIKE / 2
    return shares[len(shares) // 2] if slower else 1.0
