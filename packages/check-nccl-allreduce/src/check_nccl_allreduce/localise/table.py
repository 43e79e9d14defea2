"""The decision table: rules in a list, the first one that applies is the verdict. Rules return
data, of which :mod:`.words` makes a sentence. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from . import two, words
from .evidence import Evidence, voided
from .model import (
    Fact,
    FactKind,
    Kind,
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
from .references import BAD
from .silence import alike
from .witness import DARK, TOO_LITTLE, Court, Rule

_BELOW = frozenset({Zone.BELOW, Zone.WRONG, Zone.HANG, Zone.ERROR})
_CONFIRMED = frozenset(
    {Kind.DEVICE, Kind.MEMBER, Kind.DOMAIN, Kind.CORRELATED, Kind.NODE, Kind.LINK}
)
LOST, DEVICE = FactKind.LOST, FactKind.DEVICE


def cap(size: int) -> int:
    """How many endpoints one run may blame: more, or half of the gang, share one cause."""
    return max(1, min((size - 1) // 2, max(3, size // 10)))


def many(size: int) -> int:
    """How many endpoints may report a device fault at once, before that is one shared cause."""
    return max(1, size // 20)


class Findings(Court):
    """What the rules of the table look at, each part of it when it is asked for."""

    @cached_property
    def size(self) -> int:
        """Of the gang."""
        return len(self.state.endpoints)

    def facts(self, kind: FactKind) -> list[Fact]:
        """What is known without a probe, and by void ones: each is a fact about one side; a mere
        process fault is believed at its second time.
        """
        voids = [fact for fact in voided(self.state) if fact.kind is kind]
        times = Counter(fact.member for fact in voids)
        believed = [f for f in voids if kind is not FactKind.MEMBER or times[f.member] > 1]
        return [fact for fact in self.state.facts if fact.kind is kind] + believed

    @cached_property
    def failed(self) -> tuple[int, ...]:
        """Endpoints with a device fault."""
        return tuple(sorted({fact.member for fact in self.facts(DEVICE)}))

    @cached_property
    def intra(self) -> list[int]:
        """Which one of two is below its floor inside, where the other is not."""
        inside = [endpoint.intra for endpoint in self.state.endpoints]
        return [inside.index(False)] if inside in ([True, False], [False, True]) else []

    @cached_property
    def early(self) -> Kind | None:
        """Causes that no further round would change: none is good, too many paths stay bad, or all
        are alike and even references below what two such nodes must reach.
        """
        evidence, lasting = self.evidence, self.persistent
        if not evidence.known_good and evidence.judged:
            return Kind.SYSTEMIC
        most = max(1, evidence.matching // 256)
        if len(lasting) > most and not set.intersection(*map(set, lasting)):
            return Kind.FABRIC
        if evidence.suspects or evidence.among_good:
            return None
        graded = [edge.reference for edge in evidence.edges if edge.reference > 0]
        floors = [end.pair_floor or 0.0 for end in self.state.endpoints]
        return Kind.SYSTEMIC if graded and max(graded) < min(floors) else None

    @cached_property
    def persistent(self) -> list[tuple[int, int]]:
        """Edges between known-good ends that were bad, and bad again, and never better."""
        return [pair for pair, again, better in self.evidence.isolated if again and not better]

    @cached_property
    def boundary(self) -> str | None:
        """The one domain that two or more slow paths between good ends all lead into, if any."""
        domain = self.evidence.map.domain
        ends = [{domain[a], domain[b]} for a, b in self.persistent]
        if len(ends) < 2 or any(len(both) < 2 or -1 in both for both in ends):
            return None
        common = set.intersection(*ends)
        return self.evidence.map.domain_names[min(common)] if common else None

    @cached_property
    def inside(self) -> Evidence:
        """Of the paths inside NVLink domains."""
        return Evidence(self.state, nvlink=True)

    @cached_property
    def dark_names(self) -> list[str]:
        """Domains in which nobody is known good."""
        return [self.evidence.map.domain_names[d] for d in self.dark]

    @cached_property
    def busy_ones(self) -> list[int]:
        """Suspects that somebody else kept busy, or either of two whose bandwidth is known. Traffic
        explains neither wrong data nor errors of the gang's own.
        """
        if self.zone in {Zone.WRONG, Zone.ERROR}:
            return []
        asked = self.evidence.suspects if self.size > 2 else (0, 1) if self.gbps else ()
        return [end for end in asked if self.busy(end)]

    @cached_property
    def proven(self) -> list[int]:
        """Suspects whose paths are bad beyond doubt."""
        names = {end: {rule.name for rule in rules} for end, rules in self.obstacles.items()}
        return [end for end, rules in names.items() if not {DARK, TOO_LITTLE} & rules]

    @cached_property
    def guilty(self) -> list[int]:
        """Suspects between whom and blame no rule stands."""
        return [end for end in self.proven if not self.obstacles[end]]

    @cached_property
    def alike(self) -> bool:
        """Whether several are proven, each as slow as another: perhaps one hidden switch."""
        shares = [self.evidence.share(self.evidence.against[end]) for end in self.proven]
        fellows = [sum(alike(share, other) for other in shares) for share in shares]
        return bool(shares) and min(fellows) > 1

    @cached_property
    def doubtful(self) -> set[int]:
        """Whoever is not cleared, or a little slow, or at the end of what is."""
        e = self.evidence
        slow = {*e.suspects, *e.gray, *e.mild(), *self.inside.suspects}
        return slow | {*e.intermittent, *e.unreached, *e.ends, *e.lesser}

    @cached_property
    def unclear(self) -> list[tuple[Suspect, bool]]:
        """The doubtful ones that are more than an end of a path that stays bad, and of each whether
        no path to it came up.
        """
        ones = sorted(self.doubtful.difference(self.evidence.ends if self.persistent else ()))
        return [(self.suspect(end), end in self.evidence.unreached) for end in ones]

    @cached_property
    def rails(self) -> list[int]:
        """Rails that are slow in every probe that measured rails, known-good ones included."""
        seen = [(p.role, _slow_rails(r.rails)) for p, r in _details(self.state) if r.rails]
        if len(seen) < 2 or not any(role in {Role.CONTROL, Role.MATCH} for role, _ in seen):
            return []
        return sorted(set.intersection(*(slow for _, slow in seen)))

    @cached_property
    def halves(self) -> list[list[float]]:
        """GB/s of the halves by domain and of the interleaved ones, where kinds are all alike."""
        played = [r for r in self.state.rounds if r.round.phase is Phase.HALVES]
        rounds = [[r.gbps if r.status is Status.OK else 0.0 for r in r.results] for r in played]
        alike = len({endpoint.kind for endpoint in self.state.endpoints}) == 1
        return rounds if len(rounds) > 1 and alike else []

    @cached_property
    def _notes(self) -> dict[int, str]:
        """Which rail and direction of accused endpoints are slow, from their last such probe."""
        notes: dict[int, str] = {}
        for probe, result in _details(self.state):
            if probe.role is Role.ACCUSED:
                rails, there = _slow_rails(result.rails), result.directions
                for end, sending in zip(probe.members, (there, there and there[::-1]), strict=True):
                    notes[end] = words.detail(sorted(rails), sending, BAD)
        return notes

    def suspect(self, end: int) -> Suspect:
        """What is known of one that is named."""
        edges = self.evidence.against.get(end) or self.evidence.graded[end]
        edges = edges or self.inside.against.get(end, [])
        kinds: Counter[Status] = Counter(e.status for e in edges if e.status is not Status.OK)
        symptom = max(kinds, key=lambda s: (kinds[s], s), default=Status.OK)
        share, note, score = self.evidence.share(edges), self._notes.get(end, ""), self.scores
        witness = self.witness(end) if end in self.obstacles else ""
        lesser = words.LESSER if end in self.evidence.lesser else ""
        settle = next((rule.then for rule in self.obstacles.get(end, ())), lesser)
        return Suspect(end, symptom, share, tuple(edges), note, score.get(end), witness, settle)

    @cached_property
    def culprit(self) -> Suspect | None:
        """Of two endpoints, the one that differs; with a witness where it is to blame."""
        return two.culprit(self)


FACTS = (
    Rule("lost", lambda f: (lost := f.facts(LOST)) and (lost, f.facts(DEVICE)), Kind.LOST),
    Rule("at once", lambda f: len(f.failed) > many(f.size) and f.facts(DEVICE), Kind.DEVICE),
    Rule("device", lambda f: f.facts(DEVICE), Kind.DEVICE),
    Rule("member", lambda f: f.facts(FactKind.MEMBER), Kind.MEMBER),
)
"""What needs no probe: who is lost, has a device fault, or could not take part."""

ALONE = (
    Rule("passed", lambda f: f.zone is Zone.PASSED, Kind.PASSED),
    Rule("alone", lambda f: f.size == 1 and [0], Kind.SUSPECT),
    Rule("intra", lambda f: f.size == 2 and f.intra, Kind.NODE),
)
"""What needs no localisation, or cannot have one."""

PAIR = (
    Rule("inside", lambda f: f.culprit and f.culprit.witness and f.culprit, Kind.NODE),
    Rule("busy", lambda f: f.busy_ones, Kind.BUSY),
    Rule("bad to itself", lambda f: f.culprit and f.culprit.evidence and f.culprit, Kind.PAIR),
    Rule(
        "marked",
        lambda f: [f.culprit.member] if f.culprit else len(f.marked) == 1 and f.marked,
        Kind.PAIR,
    ),
    Rule("pair", lambda _: (0, 1), Kind.PAIR),
)
"""Of two endpoints: the other end is no witness, so only a device's fact blames one."""

RULES = (
    Rule(
        "none good",
        lambda f: f.early is Kind.SYSTEMIC and not f.evidence.known_good,
        Kind.SYSTEMIC,
    ),
    Rule("all slow", lambda f: f.early is Kind.SYSTEMIC, Kind.SYSTEMIC),
    Rule(
        "intermittent",
        lambda f: not f.guilty and f.early is not Kind.FABRIC and f.evidence.intermittent,
        Kind.INTERMITTENT,
    ),
    Rule("boundary", lambda f: f.boundary is not None and (f.persistent, f.boundary), Kind.FABRIC),
    Rule("fabric", lambda f: f.early is Kind.FABRIC and f.persistent, Kind.FABRIC),
    Rule("rail", lambda f: f.rails, Kind.FABRIC),
    Rule("busy", lambda f: f.busy_ones == f.evidence.suspects and f.busy_ones, Kind.BUSY),
    Rule("domain", lambda f: not f.guilty and f.dark_names, Kind.DOMAIN),
    Rule("too many", lambda f: len(f.guilty) > cap(f.size) and f.proven, Kind.CORRELATED),
    Rule(
        "node",
        lambda f: f.guilty and ([f.suspect(end) for end in f.guilty], f.dark_names),
        Kind.NODE,
    ),
    Rule("alike", lambda f: f.alike and f.proven, Kind.CORRELATED),
    Rule("suspect", lambda f: f.unclear, Kind.SUSPECT),
    Rule("link", lambda f: f.persistent, Kind.LINK),
    Rule(
        "crossing",
        lambda f: (
            f.zone in _BELOW and (share := f.evidence.references.crossing()) < BAD and [share]
        ),
        Kind.FABRIC,
    ),
    Rule("lacking", lambda f: not f.doubtful and sorted(f.marked), Kind.SUSPECT),
    Rule("transient", lambda f: sorted(f.evidence.among_good), Kind.TRANSIENT),
    Rule("data", lambda f: f.zone is Zone.WRONG, Kind.DATA_UNLOCALISED),
    Rule("halves", lambda f: f.halves and max(f.halves[1]) < BAD * min(f.halves[0]), Kind.FABRIC),
    Rule(
        "only whole",
        lambda f: f.halves and f.gbps < BAD * min(map(min, f.halves)),
        Kind.UNEXPLAINED,
    ),
    Rule("unexplained", lambda _: True, Kind.UNEXPLAINED),
)
"""Of three and more, once no further round is worth its time."""


def known(f: Findings) -> Verdict | None:
    """The verdict of :data:`FACTS` or, of a gang that was measured, of :data:`ALONE`."""
    strong = [*f.facts(LOST), *f.facts(DEVICE)]
    named = {fact.member for fact in strong or f.facts(FactKind.MEMBER)}
    blamed = f.failed if len(f.failed) <= many(f.size) and not f.facts(LOST) else ()
    verdict = _verdict(f, FACTS, blamed, sorted(named))
    if verdict is not None or f.zone is None:
        return verdict
    if f.size == 1 and f.zone is not Zone.PASSED:
        return _verdict(f, ALONE, named=(0,), undecided=(words.NO_PEER,))
    intra = f.intra if f.zone is not Zone.PASSED else ()
    return _verdict(f, ALONE, intra, intra)


def verdict(f: Findings) -> Verdict:
    """The verdict of :data:`RULES` or, of two endpoints, :data:`PAIR`."""
    matrix = (*f.evidence.edges, *f.inside.edges, *f.hairpins.rows)
    if f.size == 2:
        own = [f.culprit.member] if f.culprit else []
        blamed = own if f.culprit and f.culprit.witness else []
        named = sorted({*own, *f.busy_ones}) if own else f.busy_ones or f.marked
        verdict = _verdict(
            f,
            PAIR,
            blamed,
            named if own or len(named) == 1 else (0, 1),
            ports=[end for end in f.marked if end not in blamed],
            suspects=(f.culprit,) if f.culprit else (),
            undecided=() if blamed else (words.TWO_ENDPOINTS,),
            matrix=matrix,
        )
    else:
        named = sorted(f.doubtful | {*f.marked}) if f.early is not Kind.SYSTEMIC else []
        verdict = _verdict(
            f,
            RULES,
            f.guilty,
            named,
            ports=[end for end in f.ports if end in {*named}],
            suspects=tuple(f.suspect(end) for end in named),
            links=tuple(f.persistent),
            domains=tuple(f.dark_names),
            matrix=matrix,
        )
    assert verdict is not None  # the last rule always applies
    return verdict


def _verdict(
    f: Findings,
    rules: Sequence[Rule],
    blamed: Sequence[int] = (),
    named: Sequence[int] = (),
    ports: Sequence[int] = (),
    **more: Any,
) -> Verdict | None:
    """The verdict of the first rule that applies. ``blamed``: where its kind blames anybody;
    ``ports``: those of whom the sentence has what their devices say.
    """
    applying = ((rule, facts) for rule in rules if (facts := rule.applies(f)))
    rule, facts = next(applying, (None, None))
    if rule is None:
        return None
    kind = rule.then
    if rules is RULES:
        more["undecided"] = tuple(words.undecided(f.state, f.evidence, kind, f.dark))
    culprits = tuple(blamed) if kind in {Kind.NODE, Kind.DEVICE} else ()
    text = words.sentence(f.state, rule.name, facts)
    wrong = any(row.status is Status.WRONG for row in more.get("matrix", ()))
    return Verdict(
        kind,
        text + words.ports(f.state, {end: f.ports[end] for end in ports}),
        fails=kind is not Kind.LOST and (wrong or f.zone in _BELOW or kind in _CONFIRMED),
        inconclusive=kind is Kind.LOST or (kind is Kind.BUSY and f.zone in _BELOW and not wrong),
        blamed=culprits,
        named=tuple(named),
        fatal_for=culprits,
        rounds=len(f.state.rounds) + (1 if f.state.gang else 0),
        **more,
    )


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
