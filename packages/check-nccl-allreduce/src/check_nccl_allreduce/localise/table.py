"""The decision table: from all evidence to one verdict, first matching row first."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from . import own, two, words
from .evidence import BAD, Evidence, weigh
from .model import (
    Fact,
    FactKind,
    Kind,
    Measured,
    Phase,
    Probe,
    Result,
    Role,
    State,
    Status,
    Suspect,
    Verdict,
    Zone,
)
from .score import FATAL, NAMED, Hairpins, scored
from .score import hairpins as hairpins_of
from .silence import alike
from .witness import Court, foreign, settle

__all__ = ["by_facts", "cap", "early", "hindered", "many", "verdict", "without_rounds"]

_BELOW = frozenset({Zone.BELOW, Zone.WRONG, Zone.HANG, Zone.ERROR})
_CONFIRMED = frozenset(
    {
        Kind.DEVICE,
        Kind.MEMBER,
        Kind.DOMAIN,
        Kind.CORRELATED,
        Kind.NODE,
        Kind.LINK,
    }
)
_UNPROVEN = frozenset(
    {
        "no known-good node in its domain",
        "fewer than two confirmations",
        "evidence in too few rounds",
    }
)
_SHADOW = "perhaps another suspect's doing"


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


def by_facts(state: State) -> Verdict | None:
    """The rows that need no probe: a lost member, evidence of its own device, a member that could
    not take part.
    """
    facts = [*state.facts, *_facts_of_voids(state)]
    lost = [f for f in facts if f.kind is FactKind.LOST]
    device = [f for f in facts if f.kind is FactKind.DEVICE]
    member = [f for f in facts if f.kind is FactKind.MEMBER]
    if lost:
        return _local(state, Kind.LOST, lost, also=device)
    if device:
        return _local(state, Kind.DEVICE, device)
    return _local(state, Kind.MEMBER, member) if member else None


def _facts_of_voids(state: State) -> list[Fact]:
    """A void probe is a fact about one side; a mere process fault is believed at
    its second time.
    """
    voids = [r for played in state.rounds for r in played.results if r.status is Status.VOID]
    times = Counter(r.member for r in voids if r.fact is FactKind.MEMBER)
    return [
        Fact(r.member, r.fact, r.cause)
        for r in voids
        if r.fact is not FactKind.MEMBER or times[r.member] > 1
    ]


def _local(state: State, kind: Kind, facts: list[Fact], also: list[Fact] | None = None) -> Verdict:
    members = tuple(sorted({f.member for f in facts + (also or [])}))
    fatal = members if kind is Kind.DEVICE and len(members) <= many(len(state.endpoints)) else ()
    at_once = kind is Kind.DEVICE and not fatal
    return Verdict(
        kind,
        words.at_once(state, facts) if at_once else words.local(state, kind, facts, also or []),
        fails=kind is not Kind.LOST,
        inconclusive=kind is Kind.LOST,
        blamed=fatal,
        named=members,
        fatal_for=fatal,
        rounds=_spent(state),
    )


def without_rounds(state: State) -> Verdict | None:
    """What needs no localisation, or cannot have one: a gang that passed, one endpoint alone, two
    endpoints.
    """
    assert state.gang is not None
    size = len(state.endpoints)
    if state.gang.zone is Zone.PASSED:
        return Verdict(
            Kind.PASSED,
            "the gang's all-reduce reached its expected bandwidth with correct data.",
            False,
        )
    if size > 2:
        return None
    fails = state.gang.zone in _BELOW
    everyone = tuple(range(size))
    if size == 1:
        return Verdict(
            Kind.SUSPECT, words.alone(state), fails, named=(0,), undecided=(words.NO_PEER,)
        )
    below = [i for i in everyone if state.endpoints[i].intra is False]
    above = [i for i in everyone if state.endpoints[i].intra is True]
    if len(below) == 1 and len(above) == 1:
        culprit = (below[0],)
        return Verdict(
            Kind.NODE,
            words.intra(state, below[0]),
            True,
            blamed=culprit,
            named=culprit,
            fatal_for=culprit,
        )
    return None


def early(state: State, evidence: Evidence) -> Kind | None:
    """Causes that no further round would change: nothing known good, or too many paths bad again
    between good ends.
    """
    if not evidence.known_good and evidence.judged:
        return Kind.SYSTEMIC
    lasting = persistent(evidence)
    if len(lasting) > max(1, evidence.matching // 256) and not set.intersection(*map(set, lasting)):
        return Kind.FABRIC
    return Kind.SYSTEMIC if _all_slow(state, evidence) else None


def persistent(evidence: Evidence) -> list[tuple[int, int]]:
    """Edges between known-good ends that were bad, and bad again, and never better."""
    return [pair for pair, again, better in evidence.isolated if again and not better]


def _pair(state: State, evidence: Evidence, hairpins: Hairpins) -> Verdict:
    """Two endpoints: which of them is bad to itself, where the other is not, or has a fact of its
    own device against it. Only the latter is blamed: the other end is no witness.
    """
    assert state.gang is not None
    one = two.culprit(state, hairpins)
    rows = (*evidence.edges, *hairpins.rows)
    ports = {other: said for other, said in own.owned(state).items() if said.factor >= NAMED}
    busy = [other for other in (0, 1) if foreign(state, evidence, other)]
    if one is None:
        lacking = list(ports)
        named = tuple(busy or lacking)
        return Verdict(
            Kind.BUSY if busy else Kind.PAIR,
            (words.busy(state, busy) if busy else words.pair(state, None, lacking))
            + words.ports(state, ports),
            state.gang.zone in _BELOW,
            inconclusive=bool(busy),
            named=named if len(named) == 1 else (0, 1),
            undecided=(words.TWO_ENDPOINTS,),
            rounds=_spent(state),
            matrix=rows,
        )
    itself = tuple(hairpins.bad.get(one, ()))
    shares = sorted(row.gbps / row.reference for row in itself)
    score = two.scored(state, hairpins, one)
    guilty = (
        not busy
        and one in ports
        and state.gang.zone is Zone.BELOW
        and min(score.noise, score.spell, score.path * score.local) >= FATAL
    )
    suspect = Suspect(
        one,
        itself[-1].status if itself else Status.OK,
        shares[len(shares) // 2] if shares else 0.0,
        itself,
        score=score,
        witness=f"its own devices say why: {ports[one].told}" if guilty else "",
        settle=two.settle(score),
    )
    kind = Kind.NODE if guilty else Kind.BUSY if busy else Kind.PAIR
    said = words.ports(state, {other: fact for other, fact in ports.items() if not guilty})
    return Verdict(
        kind,
        words.inside(state, suspect)
        if guilty
        else words.busy(state, busy) + said
        if busy
        else words.pair(state, suspect) + said,
        state.gang.zone in _BELOW,
        inconclusive=kind is Kind.BUSY,
        blamed=(one,) if guilty else (),
        named=tuple(sorted({one, *busy})),
        fatal_for=(one,) if guilty else (),
        suspects=(suspect,),
        undecided=() if guilty else (words.TWO_ENDPOINTS,),
        rounds=_spent(state),
        matrix=rows,
    )


def verdict(state: State, evidence: Evidence, hairpins: Hairpins) -> Verdict:
    """The first row that matches, once no further round is worth its time."""
    assert state.gang is not None
    if len(state.endpoints) == 2:
        return _pair(state, evidence, hairpins)
    found = _Findings(state, evidence, hairpins)
    kind, reason = found.row()
    dark = tuple(evidence.map.domain_names[d] for d in found.dark)
    named = found.named if kind is not Kind.SYSTEMIC else []
    reason += words.ports(
        state, {one: said for one, said in found.ports.items() if one in set(named)}
    )
    blamed = tuple(found.blamed) if kind is Kind.NODE else ()
    return Verdict(
        kind,
        reason,
        fails=state.gang.zone in _BELOW or kind in _CONFIRMED,
        inconclusive=kind is Kind.BUSY,
        blamed=blamed,
        named=tuple(named),
        fatal_for=blamed,
        suspects=tuple(found.suspect(one) for one in named),
        links=tuple(found.persistent),
        domains=dark,
        undecided=tuple(words.undecided(state, evidence, kind, found.dark)),
        rounds=_spent(state),
        matrix=(*evidence.edges, *found.inside.edges, *hairpins.rows),
    )


def hindered(state: State) -> dict[int, tuple[str, ...]]:
    """At the end of a run: each suspect, and the names of the rules that keep it from being blamed.
    Beside them, only another verdict or the cap does.
    """
    evidence = weigh(state)
    return _Findings(state, evidence, hairpins_of(state, evidence)).obstacles


@dataclass(frozen=True, slots=True)
class _Halves:
    """What the halves said against each other and against the whole gang."""

    boundary: bool = False
    only_whole: bool = False


class _Findings:
    def __init__(self, state: State, evidence: Evidence, hairpins: Hairpins) -> None:
        self.state, self.evidence = state, evidence
        self.persistent = persistent(evidence)
        self.inside = weigh(state, nvlink=True)
        self.scores = scored(state, evidence, hairpins)
        self.own = hairpins
        self.dark = _dark_domains(evidence)
        self.ports = own.owned(state)
        self.court = Court(state, evidence, hairpins, self.scores, self.ports, self.dark)
        self.obstacles = {
            one: tuple(rule.name for rule in self.court.obstacles(one)) for one in evidence.suspects
        }
        self.proven = [s for s in evidence.suspects if not _UNPROVEN & set(self.obstacles[s])]
        guilty = [s for s in self.proven if set(self.obstacles[s]) <= {_SHADOW}]
        self.busy = [s for s in evidence.suspects if self.court.busy(s)]
        self.too_many = len(guilty) > cap(evidence.map.size)
        self.blamed = [s for s in guilty if not self.obstacles[s]]
        rest = [s for s in self.proven if s not in set(self.blamed)]
        self.alike = _alike(evidence, rest)
        weak = {
            *evidence.gray,
            *evidence.mild(),
            *evidence.unreached,
            *evidence.ends,
            *self.inside.suspects,
        }
        self.doubtful = {*evidence.suspects, *weak, *evidence.intermittent}
        lacking = {one for one, said in self.ports.items() if said.factor >= NAMED}
        self.named = sorted(self.doubtful | lacking)
        self.halves = _halves(state)
        self.notes = _notes(state)
        self.seen: dict[int, list[Measured]] = defaultdict(list)
        for edge in evidence.edges:
            if edge.grade:
                self.seen[edge.a].append(edge)
                self.seen[edge.b].append(edge)

    def row(self) -> tuple[Kind, str]:
        state, evidence = self.state, self.evidence
        at_once = early(state, evidence)
        if at_once is Kind.SYSTEMIC:
            return Kind.SYSTEMIC, words.systemic(state, evidence)
        if evidence.intermittent and not self.blamed and at_once is not Kind.FABRIC:
            return Kind.INTERMITTENT, words.intermittent(state, evidence.intermittent)
        shared = self._shared_boundary()
        if shared is not None or at_once is Kind.FABRIC:
            return Kind.FABRIC, words.fabric(state, self.persistent, shared)
        if (rail := _common_rail(state)) is not None:
            return Kind.FABRIC, words.rail(rail)
        if self.busy and set(self.busy) == evidence.suspect_set:
            return Kind.BUSY, words.busy(state, self.busy)
        dark = [evidence.map.domain_names[d] for d in self.dark]
        if dark and not self.blamed:
            return Kind.DOMAIN, words.domain(state, dark)
        if self.too_many:
            return Kind.CORRELATED, words.correlated(state, self.proven, too_many=True)
        if self.blamed:
            return Kind.NODE, words.node(state, [self.suspect(s) for s in self.blamed], dark)
        if len(self.proven) > 1 and set(self.proven) <= self.alike:
            return Kind.CORRELATED, words.correlated(state, self.proven, too_many=False)
        doubtful = [
            one
            for one in sorted(self.doubtful)
            if one not in set(evidence.ends) or not self.persistent
        ]
        if doubtful:
            return Kind.SUSPECT, words.suspect(
                state, [self.suspect(one) for one in doubtful], evidence.unreached
            )
        if self.persistent:
            return Kind.LINK, words.link(state, self.persistent)
        if state.gang and state.gang.zone in _BELOW and (share := evidence.crossing()) < BAD:
            return Kind.FABRIC, words.crossing(state, share)
        if self.named and not self.doubtful:
            return Kind.SUSPECT, words.lacking(state, self.named)
        if evidence.among_good:
            return Kind.TRANSIENT, words.transient(state, sorted(evidence.among_good))
        return self._without_a_bad_edge()

    def _without_a_bad_edge(self) -> tuple[Kind, str]:
        assert self.state.gang is not None
        if self.state.gang.zone is Zone.WRONG:
            return Kind.DATA_UNLOCALISED, words.data_unlocalised(self.state)
        if self.halves.boundary:
            return Kind.FABRIC, words.halves(self.state)
        return Kind.UNEXPLAINED, words.unexplained(self.state, only_whole=self.halves.only_whole)

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
        kinds: Counter[Status] = Counter(e.status for e in edges if e.status is not Status.OK)
        symptom = max(kinds, key=lambda s: (kinds[s], s)) if kinds else Status.OK
        suspected = one in self.evidence.suspect_set
        return Suspect(
            one,
            symptom,
            self.evidence.share(edges),
            edges,
            self.notes.get(one, ""),
            self.scores.get(one),
            self.court.witness(one) if suspected else "",
            settle(self.court, one) if suspected else "",
        )


def _spent(state: State) -> int:
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


def _all_slow(state: State, evidence: Evidence) -> bool:
    """Whether edges are alike, and even their references stay below what two such
    nodes must reach.
    """
    floors = [e.pair_floor for e in state.endpoints]
    if evidence.suspects or evidence.among_good or any(f is None for f in floors):
        return False
    least = min(f for f in floors if f is not None)
    graded = [e for e in evidence.edges if e.reference > 0]
    return bool(graded) and all(e.reference < least for e in graded)


def _halves(state: State) -> _Halves:
    """The boundary is to blame where both halves by domain are fast and both interleaved ones are
    not.
    """
    assert state.gang is not None
    rounds = [
        [r.gbps if r.status is Status.OK else 0.0 for r in played.results]
        for played in state.rounds
        if played.round.phase is Phase.HALVES
    ]
    if len(rounds) < 2 or len({e.kind for e in state.endpoints}) > 1:
        return _Halves()
    boundary = max(rounds[1]) < BAD * min(rounds[0])
    return _Halves(boundary, only_whole=state.gang.gbps < BAD * min(map(min, rounds)))


def _details(state: State) -> list[tuple[Probe, Result]]:
    return [
        (probe, result)
        for played in state.rounds
        for probe, result in zip(played.round.probes, played.results, strict=True)
        if result.status is Status.OK and (result.rails or result.directions)
    ]


def _slow_rails(rails: tuple[float, ...]) -> set[int]:
    middle = sorted(rails)[len(rails) // 2] if rails else 0.0
    return {i for i, value in enumerate(rails) if value < BAD * middle}


def _common_rail(state: State) -> int | None:
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


def _notes(state: State) -> dict[int, str]:
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
