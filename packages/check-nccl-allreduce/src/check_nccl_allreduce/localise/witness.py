"""Who may be blamed: a contrast convicts a position, and only a witness says that the cause is the
node's own. Pure.

The rules stand in one list; a suspect is blamed where none of them applies to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import log
from statistics import fmean
from typing import Any, NamedTuple

from .evidence import Evidence
from .model import Grade, Layout, Phase, Score, State, Status, Zone
from .rounds import CONFIRMATIONS
from .score import APART, FATAL, KIND, NAMED, NOTHING, Hairpins, Own, Scoring, owned
from .silence import ALIKE, alike

SILENCE = 20.0
"""Seconds without a byte of somebody else's, at least, before a node counts as not busy."""
FOREIGN = 0.01
"""Of what a node's paths carry, the share of somebody else's bytes from which it is busy."""
LOADED, UNUSUAL = 0.9, 1.5
"""Of a node's processor time, the share that others took in a silence from which it is busy, and at
least so many times what is usual in this gang.
"""
RATES = (1 / 2, 1 / 4, 2 / 5, 1 / 8)
"""Ratios of the rates that links have: 400 to 200, 100 and 50 Gbit/s, 100 to 40."""
NEAR_RATE, RATE_SPREADS, LESS = 0.10, 2.5, 0.11
"""How far from such a ratio (natural logarithm) a node of another kind may be: at least so far, and
so many spreads of this gang's noise. So much less it lacks to itself where others are limited."""
LITTLE = 0.91
"""Of normal, the share below which a node of a leaf is slow enough to share another one's cause."""
SPREADS = 3.5
"""Shares of normal that differ by less than so many spreads of this gang's noise are alike."""


@dataclass(frozen=True)
class Court:
    """What the rules look at, each part of it when it is asked for."""

    state: State

    @property
    def zone(self) -> Zone | None:
        """Of the gang's own all-reduce, None before it is judged."""
        return self.state.gang.zone if self.state.gang else None

    @property
    def gbps(self) -> float:
        """GB/s of bus bandwidth of the gang's own all-reduce, 0 where it gave none."""
        return self.state.gang.gbps if self.state.gang else 0.0

    @cached_property
    def phases(self) -> list[Phase]:
        """Of all rounds."""
        return [played.round.phase for played in self.state.rounds]

    @cached_property
    def evidence(self) -> Evidence:
        """Of the paths over NICs."""
        return Evidence(self.state)

    @cached_property
    def hairpins(self) -> Hairpins:
        """What nodes reach to themselves."""
        return Hairpins(self.state, self.evidence)

    @cached_property
    def ports(self) -> dict[int, Own]:
        """What nodes' own devices say."""
        return owned(self.state)

    @cached_property
    def _usual_load(self) -> float:
        """The share of a node's processors that others take: the lower of the middle ones."""
        loads = sorted(end.local.load for end in self.state.endpoints)
        return loads[(len(loads) - 1) // 2]

    @cached_property
    def marked(self) -> list[int]:
        """Whose devices say enough to name them."""
        return [end for end, own in self.ports.items() if own.factor >= NAMED]

    @cached_property
    def scores(self) -> dict[int, Score]:
        """Of suspects, and of those whose own devices say something."""
        scoring = Scoring(self.state, self.evidence, self.hairpins, self.ports)
        return {end: scoring.of(end) for end in {*self.evidence.suspects, *self.ports}}

    @cached_property
    def dark(self) -> list[int]:
        """Domains of two or more, some suspect and none known good: their switch, not nodes."""
        domain, strong = self.evidence.map.domain, self.evidence.strong
        good = {there for i, there in enumerate(domain) if strong[i]}
        suspected = {domain[s] for s in self.evidence.suspects} - good - {-1}
        return [there for there in sorted(suspected) if domain.count(there) > 1]

    @cached_property
    def obstacles(self) -> dict[int, list[Rule]]:
        """Of each suspect, the rules that keep it from being blamed."""
        suspects = self.evidence.suspects
        return {end: [rule for rule in RULES if rule.applies(self, end)] for end in suspects}

    def witness(self, end: int) -> str:
        """What shows that the cause is the node's own, in words; empty where nothing does."""
        if self.spoils(end):
            return "its data are wrong, which no path or switch makes"
        if self.fact(end):
            return f"its own devices say why: {self.ports[end].text}"
        if not self.leaf(end):
            return ""
        shown = "a good node is behind the same leaf, which is all that its hairpin passes"
        quiet = ", and its adapters carried nothing while nothing of us ran"
        return shown if self.broken(end) else f"{shown}{quiet}"

    def spoils(self, end: int) -> bool:
        """Whether it delivers wrong data, to others and to itself or in the gang's own sum."""
        edges = self.evidence.against.get(end, ())
        wrong = any(e.status is Status.WRONG for e in edges)
        return wrong and "data" in self.scores[end].kinds

    def broken(self, end: int) -> bool:
        """Whether its paths hang or fail, which no traffic of others makes them do."""
        edges = self.evidence.against.get(end, ())
        return bool(edges) and all(e.status is not Status.OK for e in edges)

    def fact(self, end: int) -> bool:
        """Whether a fact of its own device stands against it. Errors are its link's: where another
        suspect's grow as well, they have one cause.
        """
        own = self.ports.get(end)
        if own is None or not self.scores[end].ports:
            return False
        others = [self.ports.get(i, NOTHING) for i in self.evidence.suspects if i != end]
        alone = all(other.growth <= 1 or other.fault > 1 for other in others)
        return own.fault > 1 or (own.growth >= NAMED and alone)

    def confirmed(self, node: int) -> bool:
        """Tell whether it was measured again often enough, and bad in enough rounds."""
        evidence = self.evidence
        often = evidence.confirmed[node] >= CONFIRMATIONS
        return often and evidence.rounds_against(node) >= evidence.enough

    def throttles(self, node: int) -> bool:
        """Tell whether its GPUs are slowed down by their own word: traffic of others does not."""
        return self.fact(node) and self.ports[node].throttles

    def leaf(self, end: int) -> bool:
        """Whether it was bad with a good node that shares all that its hairpin passes, and its
        adapters were silent.
        """
        domain, local = self.evidence.map.domain, self.state.endpoints[end].local
        bad_with = {e.other(end) for e in self.evidence.graded[end] if e.grade is Grade.BAD}
        there = [i for i in bad_with if domain[i] == domain[end] >= 0]
        return (
            self.state.layout == Layout.LEAF
            and (local.silence >= SILENCE or self.broken(end))
            and self.scores[end].itself > 0
            and any(self.evidence.strong[i] and i not in self.hairpins.bad for i in there)
        )

    def busy(self, end: int) -> bool:
        """Whether somebody else's bytes passed its adapters in a silence, or others took all of its
        processors, unlike those of most nodes; neither breaks anything. Of two nobody says what is
        usual.
        """
        if self.broken(end):
            return False
        usual = self.evidence.references.of_kind(self.evidence.map.kind[end])
        here, carries = self.state.endpoints[end], usual.gbps if usual else 0.0
        local, much = here.local, FOREIGN * max(self.gbps, carries, here.pair_floor or 0.0)
        loaded = local.load >= max(LOADED, UNUSUAL * self._usual_load)
        return local.foreign > much or (loaded and len(self.state.endpoints) > 2)

    def shared(self, end: int) -> bool:
        """Whether another suspect may have the same cause.

        Whoever is behind the same believed leaf and slow, whatever one hairpin says, or as slow
        may, until each has a fact of its own; and without a fact of this one's own so may everybody
        else slow to itself or perhaps so, for labels stale in places show no difference.
        """
        if self.spoils(end):
            return False
        domain, fact = self.evidence.map.domain, self.fact(end)
        for other in self._others:
            theirs, together = self.fact(other), domain[end] == domain[other] >= 0
            suspected = other in self.evidence.suspect_set
            cleared = other in self.hairpins.good and other not in self.hairpins.bad
            here = together and (suspected or self._mild(other))
            if other == end or self.spoils(other) or (cleared and not here):
                continue
            weak = fact and (not suspected or self.scores[other].path < KIND)
            if weak or not (suspected or together):
                continue
            related = together or self._alike(end, other)
            if not (fact or theirs) or (related and not (fact and theirs)):
                return True
        return False

    def recovered(self, node: int) -> bool:
        """Tell whether it was good between two times that known-good ends found it bad."""
        bad = [edge.at for edge in self.evidence.against[node]]
        good = [e.at for e in self.evidence.graded[node] if e.grade is Grade.GOOD]
        return any(min(bad) < at < max(bad) for at in good if bad)

    @cached_property
    def _others(self) -> list[int]:
        """Suspects, and who may be slow as well: a little, as most are, or nobody can tell."""
        evidence, bad, good = self.evidence, self.hairpins.bad, self.hairpins.good
        untold = [node for node, edges in enumerate(evidence.graded) if not edges]
        asked = {row.a for row in self.hairpins.rows}
        little = [i for i in asked.union(evidence.mild()) if self._mild(i)]
        slow = {*evidence.suspects, *evidence.gray, *evidence.lesser, *(bad.keys() - good.keys())}
        return sorted(slow.union(little, untold))

    def _mild(self, end: int) -> bool:
        """Tell whether it is a little slow, to itself and with who is no suspect together."""
        suspects, itself = self.evidence.suspect_set, [h for h in self.hairpins.rows if h.a == end]
        others = [e for e in self.evidence.graded[end] if e.other(end) not in suspects]
        return self.evidence.share(others + itself) < LITTLE

    @cached_property
    def _shares(self) -> dict[int, float]:
        return {end: self.evidence.share(edges) for end, edges in self.evidence.against.items()}

    def _alike(self, end: int, other: int) -> bool:
        noise = max(ALIKE, SPREADS * self.evidence.spread)
        return alike(self._shares.get(end, 0.0), self._shares.get(other, 1.0), noise)

    @cached_property
    def _usual(self) -> float:
        """What good edges reach of their references: of few, these are of few, and err as well."""
        return self.evidence.share(e for e in self.evidence.edges if e.grade is Grade.GOOD) or 1.0

    def rate(self, end: int) -> float:
        """The ratio of link rates at which it is, to others and to itself together; or to others
        alone where it lacks less to itself, since more than its rate limits a faster kind's there.
        0 where that is none, or a fact of its own device stands against it.
        """
        if self.fact(end) or self.broken(end) or self._shares[end] <= 0:
            return 0.0
        against, usual = self.evidence.against[end], self._usual
        paths = [e.gbps / e.reference / usual for e in against if e.gbps > 0]
        itself = [e.gbps / e.reference for e in self.hairpins.bad.get(end, ()) if e.gbps > 0]
        middles = [_middle(paths + itself)]
        if itself and _middle(itself) > _middle(paths) + LESS:
            middles.append(_middle(paths))
        apart, rate = min((abs(m - log(rate)), rate) for rate in RATES for m in middles)
        return rate if apart < max(NEAR_RATE, RATE_SPREADS * self.evidence.spread) else 0.0


def _middle(shares: list[float]) -> float:
    """Of their logarithms; a dip, or a path that is too fast, does not count."""
    ranked = sorted(log(share) for share in shares)
    cut = len(ranked) // 4
    return fmean(ranked[cut : len(ranked) - cut])


class Rule(NamedTuple):
    """``applies``: here, whether it keeps a suspect from being blamed, and ``then`` what would
    settle it; in :mod:`.table`, what the sentence of that ``name`` tells (:mod:`.words`),
    nothing where it does not apply, and ``then`` the kind of verdict.
    """

    name: str
    applies: Callable[..., Any]
    then: Any


DARK, TOO_LITTLE = "no known-good node in its domain", "too little evidence of paths"
_CABLE = "look at its cable, its switch port and the path behind it"

RULES = (
    Rule(
        "somebody else keeps it busy",
        Court.busy,
        "test it when what keeps it busy has ended",
    ),
    Rule(
        "good to itself",
        lambda c, end: c.scores[end].fine > 0 and not c.scores[end].itself,
        f"to itself it is as fast as others: {_CABLE}",
    ),
    Rule(
        "perhaps of another kind",
        lambda c, end: c.rate(end) > 0,
        "compare the kinds of the adapters: it is as slow, to others and to itself, as links of a lower rate are",
    ),
    Rule(
        DARK,
        lambda c, end: c.evidence.map.domain[end] in c.dark,
        "look at that switch, and test it with a good node behind the same one",
    ),
    Rule(
        "another suspect may share its cause",
        Court.shared,
        "look at what these nodes share, such as a line card, and test each without the others",
    ),
    Rule(
        "good in between",
        Court.recovered,
        "look at the paths to those with whom it was slow: with others it was good in between",
    ),
    Rule(
        "no witness",
        lambda c, end: not c.witness(end),
        "test it with a good node behind the same leaf, and look at its switch port: no fact of its own devices stands against it",
    ),
    Rule(
        "not bad to itself",
        lambda c, end: c.scores[end].local < KIND,
        "measure it to itself over its own NICs, beside a healthy node",
    ),
    Rule(
        "a busy spell explains it",
        lambda c, end: c.scores[end].spell < FATAL and not c.throttles(end),
        f"measure it again, at least {APART:g} s after the first time",
    ),
    Rule(
        TOO_LITTLE,
        lambda c, end: c.scores[end].path < KIND or not (c.throttles(end) or c.confirmed(end)),
        "measure it with more nodes that are known good",
    ),
)
"""The first one that applies says what would settle it."""
