"""The decision table: from all evidence to one verdict, first matching row first."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from . import own, past, two, words
from .evidence import BAD, Evidence, weigh
from .model import (
    Diagnosis,
    DiagnosisKind,
    Fact,
    FactKind,
    Measured,
    Phase,
    Probe,
    ProbeResult,
    ProbeStatus,
    Role,
    SearchState,
    Suspect,
    Zone,
)
from .obstacles import ObstacleRule, obstacles
from .score import FATAL, NAMED, Hairpins, scored
from .score import hairpins as hairpins_of
from .silence import alike

__all__ = ["by_facts", "cap", "early", "hindered", "many", "verdict", "without_rounds"]

_BELOW = frozenset({Zone.BELOW, Zone.WRONG, Zone.HANG, Zone.ERROR})
_CONFIRMED = frozenset(
    {
        DiagnosisKind.DEVICE,
        DiagnosisKind.MEMBER,
        DiagnosisKind.DOMAIN,
        DiagnosisKind.CORRELATED,
        DiagnosisKind.NODE,
        DiagnosisKind.LINK,
    }
)
_UNPROVEN = frozenset({ObstacleRule.CONTRAST, ObstacleRule.CONFIRMED, ObstacleRule.ROUNDS})


def cap(size: int) -> int:
    """How many endpoints one run may blame: more at once, or half of the gang, are rather one cause
    that they share.
    """
    return max(1, min((size - 1) // 2, max(3, size // 10)))


def many(size: int) -> int:
    """How many endpoints may report a device fault of their own at the same moment, before it is
    one cause that they share.
    """
    return max(1, size // 20)


def by_facts(state: SearchState) -> Diagnosis | None:
    """The rows that need no probe: a lost member, evidence of its own device, a member that could
    not take part.
    """
    facts = [*state.facts, *_facts_of_voids(state)]
    lost = [f for f in facts if f.kind is FactKind.LOST]
    device = [f for f in facts if f.kind is FactKind.DEVICE]
    member = [f for f in facts if f.kind is FactKind.MEMBER]
    if lost:
        return _local(state, DiagnosisKind.LOST, lost, also=device)
    if device:
        return _local(state, DiagnosisKind.DEVICE, device)
    return _local(state, DiagnosisKind.MEMBER, member) if member else None


def _facts_of_voids(state: SearchState) -> list[Fact]:
    """A void probe is a fact about one side; a mere process fault is believed at
    its second time.
    """
    voids = [r for played in state.rounds for r in played.results if r.status is ProbeStatus.VOID]
    times = Counter(r.member for r in voids if r.fact is FactKind.MEMBER)
    return [
        Fact(r.member, r.fact, r.cause)
        for r in voids
        if r.fact is not FactKind.MEMBER or times[r.member] > 1
    ]


def _local(
    state: SearchState, kind: DiagnosisKind, facts: list[Fact], also: list[Fact] | None = None
) -> Diagnosis:
    members = tuple(sorted({f.member for f in facts + (also or [])}))
    fatal = (
        members
        if kind is DiagnosisKind.DEVICE and len(members) <= many(len(state.endpoints))
        else ()
    )
    at_once = kind is DiagnosisKind.DEVICE and not fatal
    return Diagnosis(
        kind,
        words.at_once(state, facts) if at_once else words.local(state, kind, facts, also or []),
        fails=kind is not DiagnosisKind.LOST,
        inconclusive=kind is DiagnosisKind.LOST,
        blamed=fatal,
        named=members,
        fatal_for=fatal,
        rounds=_spent(state),
    )


def without_rounds(state: SearchState) -> Diagnosis | None:
    """What needs no localisation, or cannot have one: a gang that passed, one endpoint alone, two
    endpoints.
    """
    assert state.gang is not None
    size = len(state.endpoints)
    if state.gang.zone is Zone.PASSED:
        return Diagnosis(
            DiagnosisKind.PASSED,
            "the gang's all-reduce reached its expected bandwidth with correct data.",
            False,
        )
    if size > 2:
        return None
    fails = state.gang.zone in _BELOW
    everyone = tuple(range(size))
    if size == 1:
        return Diagnosis(
            DiagnosisKind.SUSPECT, words.alone(state), fails, named=(0,), undecided=(words.NO_PEER,)
        )
    below = [i for i in everyone if state.endpoints[i].intra is False]
    above = [i for i in everyone if state.endpoints[i].intra is True]
    if len(below) == 1 and len(above) == 1:
        culprit = (below[0],)
        return Diagnosis(
            DiagnosisKind.NODE,
            words.intra(state, below[0]),
            True,
            blamed=culprit,
            named=culprit,
            fatal_for=culprit,
        )
    return None


def early(state: SearchState, evidence: Evidence) -> DiagnosisKind | None:
    """Causes that no further round would change: nothing known good, or too many paths bad again
    between good ends.
    """
    if not evidence.known_good and evidence.judged:
        return DiagnosisKind.SYSTEMIC
    lasting = persistent(evidence)
    if len(lasting) > max(1, evidence.matching // 256) and not set.intersection(*map(set, lasting)):
        return DiagnosisKind.FABRIC
    return DiagnosisKind.SYSTEMIC if _all_slow(state, evidence) else None


def persistent(evidence: Evidence) -> list[tuple[int, int]]:
    """Edges between known-good ends that were bad, and bad again, and never better."""
    return [pair for pair, again, better in evidence.isolated if again and not better]


def _pair(state: SearchState, evidence: Evidence, hairpins: Hairpins) -> Diagnosis:
    """Two endpoints: which of them is bad to itself, where the other is not."""
    assert state.gang is not None
    one = two.contrast(hairpins)
    itself = tuple(hairpins.bad[one]) if one is not None else ()
    rows = (*evidence.edges, *hairpins.rows)
    if one is None or len(itself) < 2:
        before = _less_than_usual(state, hairpins) or [
            other for other in (0, 1) if past.spells(state, other, {1 - other})
        ]
        ports = {other: said for other, said in own.owned(state).items() if said.factor >= NAMED}
        lacking = [] if before else list(ports)
        return Diagnosis(
            DiagnosisKind.PAIR,
            words.pair(state, None, before, lacking) + words.ports(state, ports),
            state.gang.zone in _BELOW,
            named=tuple(before or lacking) if len(before or lacking) == 1 else (0, 1),
            undecided=(words.TWO_ENDPOINTS,),
            rounds=_spent(state),
            matrix=rows,
        )
    shares = sorted(row.gbps / row.reference for row in itself)
    suspect = Suspect(
        one,
        itself[-1].status,
        shares[len(shares) // 2],
        itself,
        score=two.scored(state, hairpins, one),
    )
    guilty = (
        state.gang.zone is Zone.BELOW and suspect.score is not None and suspect.score.value >= FATAL
    )
    return Diagnosis(
        DiagnosisKind.NODE if guilty else DiagnosisKind.PAIR,
        words.inside(state, suspect) if guilty else words.pair(state, suspect),
        state.gang.zone in _BELOW,
        blamed=(one,) if guilty else (),
        named=(one,),
        fatal_for=(one,) if guilty else (),
        suspects=(suspect,),
        undecided=() if guilty else (words.TWO_ENDPOINTS,),
        rounds=_spent(state),
        matrix=rows,
    )


def _less_than_usual(state: SearchState, hairpins: Hairpins) -> list[int]:
    """Of two endpoints those that reach less to themselves than they usually do, each time, where
    that is known of both.
    """
    found = []
    for one in (0, 1):
        known = state.endpoints[one].past
        less = [
            past.below(row.gbps, known.own)
            for row in hairpins.rows
            if row.a == one and known is not None
        ]
        if not less or None in less:
            return []
        found += [one] if all(less) else []
    return found


def verdict(state: SearchState, evidence: Evidence, hairpins: Hairpins) -> Diagnosis:
    """The first row that matches, once no further round is worth its time."""
    assert state.gang is not None
    if len(state.endpoints) == 2:
        return _pair(state, evidence, hairpins)
    found = _Findings(state, evidence, hairpins)
    kind, reason = found.row()
    dark = tuple(evidence.map.domain_names[d] for d in found.dark)
    named = found.named if kind is not DiagnosisKind.SYSTEMIC else []
    reason += words.ports(
        state, {one: said for one, said in found.ports.items() if one in set(named)}
    )
    blamed = tuple(found.blamed) if kind is DiagnosisKind.NODE else ()
    return Diagnosis(
        kind,
        reason,
        fails=state.gang.zone in _BELOW or kind in _CONFIRMED,
        blamed=blamed,
        named=tuple(named),
        fatal_for=blamed,
        suspects=tuple(found.suspect(one) for one in named),
        links=tuple(found.persistent),
        domains=dark,
        undecided=tuple(
            words.undecided(state, evidence, kind, found.dark, guilty=bool(found.alike))
        ),
        rounds=_spent(state),
        matrix=(*evidence.edges, *found.inside.edges, *hairpins.rows),
    )


def hindered(state: SearchState) -> dict[int, tuple[ObstacleRule, ...]]:
    """At the end of a run: each suspect, and the rules that keep it from being blamed. Beside them,
    only another verdict or the cap does.
    """
    evidence = weigh(state)
    return _Findings(state, evidence, hairpins_of(state, evidence)).obstacles


@dataclass(frozen=True, slots=True)
class _Halves:
    """What the halves said against each other and against the whole gang."""

    boundary: bool = False
    only_whole: bool = False


class _Findings:
    def __init__(self, state: SearchState, evidence: Evidence, hairpins: Hairpins) -> None:
        self.state, self.evidence = state, evidence
        self.persistent = persistent(evidence)
        self.inside = weigh(state, nvlink=True)
        self.scores = scored(state, evidence, hairpins)
        self.own = hairpins
        self.dark = _dark_domains(evidence)
        self.obstacles = obstacles(state, evidence, hairpins, self.scores, self.dark)
        self.proven = [s for s in evidence.suspects if not _UNPROVEN & set(self.obstacles[s])]
        guilty = [s for s in self.proven if set(self.obstacles[s]) <= {ObstacleRule.SHADOW}]
        self.too_many = len(guilty) > cap(evidence.map.size)
        self.blamed = [s for s in guilty if not self.obstacles[s]]
        rest = [s for s in self.proven if s not in set(self.blamed)]
        self.alike = frozenset() if evidence.map.labeled else _alike(evidence, rest)
        weak = {
            *evidence.gray,
            *evidence.mild(),
            *evidence.unreached,
            *evidence.ends,
            *self.inside.suspects,
        }
        self.again = self._again()
        self.ports = own.owned(state)
        self.doubtful = {*evidence.suspects, *weak, *evidence.intermittent, *self.again}
        lacking = {one for one, said in self.ports.items() if said.factor >= NAMED}
        self.named = sorted(self.doubtful | lacking)
        self.halves = _halves(state)
        self.notes = _notes(state)
        self.seen: dict[int, list[Measured]] = defaultdict(list)
        for edge in evidence.edges:
            if edge.grade:
                self.seen[edge.a].append(edge)
                self.seen[edge.b].append(edge)

    def _again(self) -> list[int]:
        """Known-good endpoints that have a bad path here, and had one in another gang with other
        partners; nobody where they are many.
        """
        accusers: dict[int, set[int]] = defaultdict(set)
        for a, b in self.evidence.among_good:
            accusers[a].add(b)
            accusers[b].add(a)
        found = [
            one for one, others in sorted(accusers.items()) if past.spells(self.state, one, others)
        ]
        return found if len(found) <= cap(self.evidence.map.size) else []

    def row(self) -> tuple[DiagnosisKind, str]:
        state, evidence = self.state, self.evidence
        at_once = early(state, evidence)
        if at_once is DiagnosisKind.SYSTEMIC:
            return DiagnosisKind.SYSTEMIC, words.systemic(state, evidence)
        if evidence.intermittent and not self.blamed and at_once is not DiagnosisKind.FABRIC:
            return DiagnosisKind.INTERMITTENT, words.intermittent(state, evidence.intermittent)
        shared = self._shared_boundary()
        if shared is not None or at_once is DiagnosisKind.FABRIC:
            return DiagnosisKind.FABRIC, words.fabric(state, self.persistent, shared)
        if (rail := _common_rail(state)) is not None:
            return DiagnosisKind.FABRIC, words.rail(rail)
        dark = [evidence.map.domain_names[d] for d in self.dark]
        if dark and not self.blamed:
            return DiagnosisKind.DOMAIN, words.domain(state, dark)
        if self.too_many:
            return DiagnosisKind.CORRELATED, words.correlated(state, self.proven, too_many=True)
        if self.blamed:
            return DiagnosisKind.NODE, words.node(
                state, [self.suspect(s) for s in self.blamed], dark
            )
        if len(self.proven) > 1 and set(self.proven) <= self.alike:
            return DiagnosisKind.CORRELATED, words.correlated(state, self.proven, too_many=False)
        if self.again and not evidence.suspects:
            return DiagnosisKind.INTERMITTENT, words.again(state, self.again)
        doubtful = [
            one
            for one in sorted(self.doubtful)
            if one not in set(evidence.ends) or not self.persistent
        ]
        if doubtful:
            return DiagnosisKind.SUSPECT, words.suspect(
                state, [self.suspect(one) for one in doubtful], evidence.unreached
            )
        if self.persistent:
            return DiagnosisKind.LINK, words.link(state, self.persistent)
        if state.gang and state.gang.zone in _BELOW and (share := evidence.crossing()) < BAD:
            return DiagnosisKind.FABRIC, words.crossing(state, share)
        if self.named and not self.doubtful:
            return DiagnosisKind.SUSPECT, words.lacking(state, self.named)
        if evidence.among_good:
            return DiagnosisKind.TRANSIENT, words.transient(state, sorted(evidence.among_good))
        return self._without_a_bad_edge()

    def _without_a_bad_edge(self) -> tuple[DiagnosisKind, str]:
        assert self.state.gang is not None
        if self.state.gang.zone is Zone.WRONG:
            return DiagnosisKind.DATA_UNLOCALISED, words.data_unlocalised(self.state)
        if self.halves.boundary:
            return DiagnosisKind.FABRIC, words.halves(self.state)
        return DiagnosisKind.UNEXPLAINED, words.unexplained(
            self.state, only_whole=self.halves.only_whole
        )

    def _shared_boundary(self) -> str | None:
        """The one domain that two or more slow paths between good ends all lead into, if there is
        one.
        """
        if len(self.persistent) < 2:
            return None
        domain = self.evidence.map.domain
        ends = [{domain[a], domain[b]} for a, b in self.persistent]
        if any(len(both) < 2 or -1 in both for both in ends):
            return None
        common = set.intersection(*ends)
        return self.evidence.map.domain_names[min(common)] if common else None

    def suspect(self, one: int) -> Suspect:
        edges = tuple(self.evidence.against.get(one, ())) or tuple(self.seen.get(one, ()))
        edges = edges or tuple(self.inside.against.get(one, ()))
        kinds: Counter[ProbeStatus] = Counter(
            e.status for e in edges if e.status is not ProbeStatus.OK
        )
        symptom = max(kinds, key=lambda s: (kinds[s], s)) if kinds else ProbeStatus.OK
        return Suspect(
            one,
            symptom,
            self.evidence.share(edges),
            edges,
            self.notes.get(one, ""),
            self.scores.get(one),
        )


def _spent(state: SearchState) -> int:
    return len(state.rounds) + (1 if state.gang else 0)


def _dark_domains(evidence: Evidence) -> list[int]:
    """Domains with two or more endpoints here, some suspect and none known good: their switch, not
    their nodes.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for one, domain in enumerate(evidence.map.domain):
        if domain >= 0:
            members[domain].append(one)
    suspected = {evidence.map.domain[s] for s in evidence.suspects} - {-1}
    return [
        d
        for d in sorted(suspected)
        if len(members[d]) > 1 and not any(evidence.strong[i] for i in members[d])
    ]


def _alike(evidence: Evidence, proven: list[int]) -> frozenset[int]:
    """Proven suspects as slow as another one, or as one that only fellow suspects cleared: perhaps
    one hidden switch.
    """
    shares = [(one, evidence.share(evidence.against[one])) for one in proven]
    bad: dict[int, list[Measured]] = defaultdict(list)
    for (a, b), edges in evidence.among_good.items():
        for one in {a, b} & evidence.cleared_by_suspects:
            bad[one] += edges
    others = shares + [(one, evidence.share(edges)) for one, edges in bad.items()]
    return frozenset(
        one
        for one, share in shares
        if any(other != one and alike(share, theirs) for other, theirs in others)
    )


def _all_slow(state: SearchState, evidence: Evidence) -> bool:
    """Whether edges are alike, and even their references stay below what two such
    nodes must reach.
    """
    floors = [e.pair_floor for e in state.endpoints]
    if evidence.suspects or evidence.among_good or any(f is None for f in floors):
        return False
    least = min(f for f in floors if f is not None)
    graded = [e for e in evidence.edges if e.reference > 0]
    return bool(graded) and all(e.reference < least for e in graded)


def _halves(state: SearchState) -> _Halves:
    """The boundary is to blame where both halves by domain are fast and both interleaved ones are
    not.
    """
    assert state.gang is not None
    rounds = [
        [r.gbps if r.status is ProbeStatus.OK else 0.0 for r in played.results]
        for played in state.rounds
        if played.round.phase is Phase.HALVES
    ]
    if len(rounds) < 2 or len({e.kind for e in state.endpoints}) > 1:
        return _Halves()
    boundary = max(rounds[1]) < BAD * min(rounds[0])
    return _Halves(boundary, only_whole=state.gang.gbps < BAD * min(map(min, rounds)))


def _details(state: SearchState) -> list[tuple[Probe, ProbeResult]]:
    return [
        (probe, result)
        for played in state.rounds
        for probe, result in zip(played.round.probes, played.results, strict=True)
        if result.status is ProbeStatus.OK and (result.rails or result.directions)
    ]


def _slow_rails(rails: tuple[float, ...]) -> set[int]:
    middle = sorted(rails)[len(rails) // 2] if rails else 0.0
    return {i for i, value in enumerate(rails) if value < BAD * middle}


def _common_rail(state: SearchState) -> int | None:
    """A rail that is slow in every probe that measured rails, those among known-good endpoints
    included.
    """
    seen = [
        (probe.role, _slow_rails(result.rails)) for probe, result in _details(state) if result.rails
    ]
    if len(seen) < 2 or not any(role in {Role.CONTROL, Role.MATCH} for role, _ in seen):
        return None
    common = set.intersection(*(slow for _, slow in seen))
    return min(common) if common else None


def _notes(state: SearchState) -> dict[int, str]:
    """Which rail and which direction of an accused endpoint is slow, from the last probe that
    measured them.
    """
    notes: dict[int, str] = {}
    for probe, result in _details(state):
        if probe.role is Role.ACCUSED:
            rails = sorted(_slow_rails(result.rails))
            there = result.directions
            back = (there[1], there[0]) if there else None
            for one, sending in zip(probe.members, (there, back), strict=True):
                notes[one] = words.detail(rails, sending, BAD)
    return notes
