"""How sure it is that what was measured of a suspect has a lasting cause at that node or its link,
and what nodes' own devices say, held against each other. Pure.

Whether the cause is the node's own, :mod:`.witness` says. Factors are multiplied as if measurements
of different rounds were independent but for what the two named explanations share; no figure says
how often a fabric breaks that. Devices choose no round: who knows of one later, or not at all, is
asked the same. A port's word alone blames nobody, and what many nodes of a kind have is a habit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..ports import LINK, Local, PortErrors
from .evidence import Evidence
from .model import Grade, Measured, Phase, Played, Role, Score, State, Status
from .references import JUDGED, Reference

FATAL = 1e6
"""From here on neither chance nor a busy spell explains what was measured."""
NAMED = 1e2
"""From here on what a node's own devices say is a fact of its own, and names it."""
KIND = 1e3
"""The most that one kind of evidence counts: what all its measurements have in common may still be
another cause; also what a device's fault counts that other nodes' devices do not have."""
GROWTH = 1e2
"""The most that error counters count: they speak of the link, of which the port is one end."""
APART = 45.0
"""Seconds from the first bad measurement, after which another one sees another moment: somebody
else's traffic explains both no more."""
LEAST_NOISE = 0.02
"""How often a healthy measurement is bad, at least, whatever a few hundred show."""
USUAL, WEIGHT = 0.8, 60
"""What is believed of it beforehand: so many bad ones of so many."""
BUSY = 1e-2
"""How often a healthy node is busy for somebody else."""
EXPLAINED = 2 / 3
"""A node's fault slows it to itself as much as it slows its paths: a hairpin that lacks less than
this part of what they lack, on a log scale, has not shown what slows them."""
AS_SLOW = 0.5
"""How many of the healthy hairpins that are bad by chance are as bad as paths are, at most."""
ABOVE, SIGMAS, RESTLESS = 0.846, 3.0, 0.10
"""The largest of three normal values lies so many standard deviations above their middle one on
average; a bad hairpin so many below it. That matters from this share on."""
HABIT = 0.25
"""Of the nodes of a kind, the share that may have a fault, or as many errors, or one node: where
more have it, it says nothing."""
ALONE = 8.0
"""How much likelier such growth is of a bad node, at least, where no other node's came near it."""
SIMILAR = 0.1
"""A counter that grew by this share of another one grew as much: one always counts most."""


class Own(NamedTuple):
    """What a node's own devices say: how much likelier its ``fault`` (1 or :data:`KIND`) and the
    ``growth`` of its counters (1 to :data:`GROWTH`) are of a bad node. ``text``: in words.
    """

    fault: float = 1.0
    growth: float = 1.0
    text: str = ""
    throttles: bool = False

    @property
    def factor(self) -> float:
        """The likelihood ratio of both together, for a fault of the node's own."""
        return min(KIND, self.fault * self.growth)


NOTHING = Own()


def owned(state: State) -> dict[int, Own]:
    """Of each endpoint whose devices say something that those of others do not."""
    kinds: dict[tuple[str, str], dict[int, Local]] = defaultdict(dict)
    for end, endpoint in enumerate(state.endpoints):
        kinds[endpoint.kind, endpoint.nic][end] = endpoint.local
    return {end: own for local in kinds.values() for end, own in _of_kind(local).items()}


def _of_kind(local: Mapping[int, Local]) -> dict[int, Own]:
    nodes, counted = len(local), sum(known.counted for known in local.values())
    faulty = Counter(kind for known in local.values() for kind in {f.kind for f in known.faults})
    rates: dict[str, list[float]] = defaultdict(list)
    for known in local.values():
        for counter in {error.counter for error in known.errors}:
            rates[counter].append(max(e.rate for e in known.errors if e.counter == counter))
    for each in rates.values():
        each.sort()
    owns = {}
    for end, known in local.items():
        faults = [fault for fault in known.faults if _unlike(faulty[fault.kind], nodes)]
        factors = [_growth(error, rates[error.counter], counted) for error in known.errors]
        grown = [e for e, factor in zip(known.errors, factors, strict=True) if factor > 1]
        texts = [f"{f.sentence} ({faulty[f.kind]} of {nodes} nodes so)" for f in faults[:4]]
        texts += [
            f"{e.port} counted {e.count} {e.counter} in {e.rounds} round(s), more than other nodes"
            for e in grown[:4]
        ]
        if texts:
            throttles = any(fault.kind == "throttle" for fault in faults)
            growth, text = max(factors, default=1.0), "; ".join(texts)
            owns[end] = Own(KIND if faults else 1.0, growth, text, throttles)
    return owns


def _unlike(those: int, nodes: int) -> bool:
    """Whether so few nodes have it that it is theirs; of one alone nothing can be said."""
    return nodes > 1 and those <= max(1, HABIT * nodes)


def _growth(error: PortErrors, rates: list[float], counted: int) -> float:
    """From the share of nodes whose counter grew as much, and the rounds in which this one did."""
    if error.counter not in LINK or error.rate <= (bound := LINK[error.counter][2]):
        return 1.0
    as_much = len(rates) - bisect_left(rates, SIMILAR * error.rate)
    many = len(rates) - bisect_left(rates, bound)
    if not _unlike(max(as_much, many), counted):
        return 1.0
    factor = max(ALONE, counted) if as_much == 1 else counted / as_much
    return float(min(GROWTH, factor ** min(error.rounds, 64)))


class Hairpins:
    """Each hairpin against those of known-good endpoints of its kind in the same round; of two
    endpoints, against the other: all ``rows`` for the matrix, and ``bad`` and ``good`` by endpoint.
    """

    def __init__(self, state: State, evidence: Evidence) -> None:
        played = [end for end in state.rounds if end.round.phase is Phase.HAIRPIN]
        self.rows = tuple(row for end in played for row in _graded(evidence, end))
        self.bad: dict[int, list[Measured]] = {}
        self.good: dict[int, list[Measured]] = {}
        for row in self.rows:
            if row.grade in {Grade.BAD, Grade.GOOD}:
                by_endpoint = self.bad if row.grade is Grade.BAD else self.good
                by_endpoint.setdefault(row.a, []).append(row)


def _graded(evidence: Evidence, played: Played) -> Iterator[Measured]:
    kind, number, quiet = evidence.map.kind, played.round.number, evidence.references.bad()
    probes = zip(played.round.probes, played.results, strict=True)
    measured = [(probe.members[0], result) for probe, result in probes]
    trusted = evidence.good if evidence.map.size > 2 else (1, 1)
    for end, result in measured:
        peers = sorted(
            other.gbps if other.status is Status.OK else 0.0
            for peer, other in measured
            if peer != end and kind[peer] == kind[end] and trusted[peer] and other.status in JUDGED
        )
        # The lower of the middle ones: a control that is too fast accuses nobody.
        normal = peers[(len(peers) - 1) // 2] if peers else 0.0
        grade = Grade.NONE
        if normal > 0 and result.status in JUDGED:
            # Few gangs have edges enough to show their noise: how far the best control lies above
            # the middle one shows it too.
            above = (peers[-1] - normal) / normal
            restless = len(peers) > 2 and above > RESTLESS
            limit = min(quiet, 1 - SIGMAS * above / ABOVE) if restless else quiet
            slow = Reference(normal, limit).grade(result.gbps)
            grade = slow if result.status is Status.OK else Grade.BAD
        how = (result.status, result.gbps, normal, grade, False, played.at)
        yield Measured(number, end, end, Role.HAIRPIN, *how)


class Scoring:
    """Scores by ``evidence``, hairpins ``found`` and what devices say themselves (``ports``)."""

    def __init__(
        self, state: State, evidence: Evidence, hairpins: Hairpins, ports: Mapping[int, Own]
    ) -> None:
        self._evidence, self._found, self._ports = evidence, hairpins, ports
        # Whose part of the gang's own sum was wrong, which no path or switch explains.
        self._corrupted = state.gang.corrupted if state.gang is not None else -1
        self._noise = [self._bad_among_good(broken=broken) for broken in (False, True)]
        asked = {row.a for row in hairpins.rows if row.grade and not evidence.good[row.a]}
        self._often = {end: self._net(end) for end in asked}
        self._ranked = sorted(self._often.values())

    def _bad_among_good(self, *, broken: bool) -> float:
        """How often a measurement of known-good ends was bad: slow, or with ``broken`` worse."""
        good, rows = self._evidence.good, (*self._evidence.edges, *self._found.rows)
        known = [e for e in rows if e.grade and good[e.a] and good[e.b]]
        bad = [
            e for e in known if e.grade is Grade.BAD and (e.status is not Status.OK or not broken)
        ]
        return max(LEAST_NOISE, (len(bad) + USUAL) / (len(known) + WEIGHT))

    def _explained(self, end: int) -> list[Measured]:
        """Of its bad hairpins those that are bad enough for what its paths lack. What hangs, breaks
        or is wrong is always.
        """
        against, own = self._evidence.against.get(end, []), self._found.bad.get(end, [])
        enough = max(self._evidence.share(against), 1e-6) ** EXPLAINED if against else 1.0
        return [e for e in own if e.status is not Status.OK or e.gbps / e.reference <= enough]

    def _net(self, end: int) -> int:
        return len(self._explained(end)) - 2 * len(self._found.good.get(end, []))

    def _local(self, end: int, noise: float) -> float:
        """What its hairpins multiply. Where many are asked, chance has as many opportunities; but
        it does not make most of them bad to themselves (Benjamini and Hochberg, 1995).
        """
        if not self._explained(end):
            return 0.1 if end in self._found.good else 1.0
        often, asked = self._net(end), 1.0
        if end in self._often:
            asked = len(self._ranked) / (len(self._ranked) - bisect_left(self._ranked, often))
        return min(KIND, (1 / noise) ** often, (1 / (noise * AS_SLOW)) ** often / asked)

    def of(self, end: int) -> Score:
        """The score of a suspect, or of one whose own devices say something."""
        against, own = self._evidence.against.get(end, []), self._found.bad.get(end, [])
        rounds, fine = {e.round for e in against}, len(self._found.good.get(end, []))
        everything = [*against, *own]
        broken = bool(everything) and all(e.status is not Status.OK for e in everything)
        noise, corrupted = self._noise[broken], end == self._corrupted
        path = min(KIND, (1 / noise) ** len(rounds))
        in_sum = KIND if corrupted else 1.0
        # A node that is as fast to itself as others are, or nearly, has a port that does not
        # matter; and no port makes wrong data.
        ports = self._ports.get(end, NOTHING)
        nearly = sum(1 for row in self._found.rows if row.a == end and row.grade is Grade.GRAY)
        wrong = any(e.status is Status.WRONG for e in everything)
        device = 1.0 if wrong else max(1.0, ports.factor * noise ** (2 * fine + nearly))
        local = min(KIND, self._local(end, noise) * in_sum * device)
        first = min((e.at for e in everything), default=0.0)
        late = {e.round for e in everything if e.at >= first + APART}
        # Of what somebody else's traffic does not explain, chance would have to explain the rest.
        # Traffic neither hangs nor corrupts.
        spell = (1 / BUSY) * (1 / noise) ** len(late) * (device if late else 1.0)
        chance = (1 / noise) ** max(0, len(rounds) + len(own) - 2 * fine) * in_sum * device
        kinds = ["path"] if path >= KIND else []
        if local >= KIND:
            data = corrupted or (own and all(e.status is Status.WRONG for e in own))
            kinds.append("data" if data else "local")
        text = ports.text if device >= NAMED else ""
        spell = float("inf") if broken else spell
        return Score(chance, spell, path, local, tuple(kinds), text, len(own), fine)
