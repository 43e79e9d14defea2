"""Who may be blamed: a contrast convicts a position, and only a witness says that the cause is the
node's own. Pure.

The rules stand in one list; a suspect is blamed where none of them applies to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import NamedTuple

from .evidence import Evidence
from .model import Layout, Score, State, Status
from .own import Own
from .rounds import CONFIRMATIONS, FEW
from .score import APART, FATAL, KIND, NAMED, Hairpins
from .silence import ALIKE, shadowed

__all__ = ["RULES", "SILENCE", "Court", "Rule", "foreign", "settle"]

SILENCE = 20.0
"""Seconds without a byte of somebody else's, at least, before a node counts as not busy."""
FOREIGN = 0.01
"""Of what a node's paths carry, the share of somebody else's bytes from which it is busy."""
RATES = (1 / 2, 1 / 4, 2 / 5, 1 / 8)
"""Ratios of the rates that links have: 400 to 200, 100 and 50 Gbit/s, 100 to 40."""
NEAR_RATE, RATE_SPREADS = 0.08, 2.5
"""How far from such a ratio (natural logarithm) a node of another kind may be: at least so far, and
so many spreads of this gang's noise."""
SPREADS = 3.5
"""Shares of normal that differ by less than so many spreads of this gang's noise are alike."""


def foreign(state: State, evidence: Evidence, one: int) -> bool:
    """Whether somebody else's bytes passed its adapters while nothing of ours ran."""
    usual = evidence.references.of_kind(evidence.map.kind[one])
    gang = state.gang.gbps if state.gang is not None else 0.0
    return state.endpoints[one].local.foreign > FOREIGN * max(gang, usual.gbps if usual else 0.0)


@dataclass(frozen=True)
class Court:
    """What the rules look at. ``ports``: what nodes' own devices say; ``dark``: domains in which
    nobody is known good.
    """

    state: State
    evidence: Evidence
    hairpins: Hairpins
    scores: Mapping[int, Score]
    ports: Mapping[int, Own]
    dark: Collection[int]

    def obstacles(self, one: int) -> list[Rule]:
        """The rules that keep a suspect from being blamed."""
        return [rule for rule in RULES if rule.applies(self, one)]

    def witness(self, one: int) -> str:
        """What shows that the cause is the node's own, in words; empty where nothing does."""
        if self.spoils(one):
            return "its data are wrong, which no path or switch makes"
        if self.fact(one):
            return f"its own devices say why: {self.ports[one].told}"
        if not self.leaf(one):
            return ""
        quiet = (
            "" if self.broken(one) else ", and its adapters carried nothing while nothing of us ran"
        )
        return f"a good node is behind the same leaf, which is all that its hairpin passes{quiet}"

    def spoils(self, one: int) -> bool:
        """Whether it delivers wrong data, to others and to itself or in the gang's own sum."""
        edges = self.evidence.against.get(one, ())
        return "data" in self.scores[one].kinds and any(e.status is Status.WRONG for e in edges)

    def broken(self, one: int) -> bool:
        """Whether its paths hang or fail, which no traffic of others makes them do."""
        edges = self.evidence.against.get(one, ())
        return bool(edges) and all(e.status is not Status.OK for e in edges)

    def fact(self, one: int) -> bool:
        """Whether a fact of its own device stands against it. Errors are its link's: where another
        suspect's grow as well, they have one cause.
        """
        own = self.ports.get(one)
        if own is None or not self.scores[one].ports:
            return False
        if own.fault > 1:
            return True
        return own.growth >= NAMED and all(
            self.ports[other].growth <= 1 or self.ports[other].fault > 1
            for other in self.evidence.suspects
            if other != one and other in self.ports
        )

    def leaf(self, one: int) -> bool:
        """Whether a good node shares all that its hairpin passes, and its adapters were silent."""
        domain, local = self.evidence.map.domain, self.state.endpoints[one].local
        return (
            self.state.layout == Layout.LEAF
            and (local.silence >= SILENCE or self.broken(one))
            and self.scores[one].itself > 0
            and any(
                self.evidence.strong[i] and i not in self.hairpins.bad
                for i, where in enumerate(domain)
                if i != one and where == domain[one] >= 0
            )
        )

    def busy(self, one: int) -> bool:
        """Whether somebody else's traffic was seen, which slows and breaks nothing."""
        return foreign(self.state, self.evidence, one) and not self.broken(one)

    def shared(self, one: int) -> bool:
        """Whether another suspect may have the same cause.

        Whoever is behind the same believed leaf, or as slow, may, until each of them has a fact of
        its own; and without a fact of this one's own so may everybody else that is slow to itself
        or may be, for labels that are stale in places show no difference.
        """
        if self.spoils(one):
            return False
        domain, fact = self.evidence.map.domain, self.fact(one)
        for other in self._others:
            if other == one or (other in self.scores and self.spoils(other)):
                continue
            if self.hairpins.good.get(other) and other not in self.hairpins.bad:
                continue
            theirs = other in self.scores and self.fact(other)
            together = domain[one] == domain[other] >= 0
            suspect = other in self.evidence.suspect_set
            if not suspect and (fact or not together):
                continue
            if fact and self.scores[other].path < KIND:
                continue
            related = together or self._alike(one, other)
            if not (fact or theirs) or (related and not (fact and theirs)):
                return True
        return False

    @cached_property
    def _others(self) -> list[int]:
        evidence = self.evidence
        little = evidence.mild() if evidence.map.size <= FEW else ()
        return sorted({*evidence.suspects, *evidence.gray, *little})

    @cached_property
    def _shares(self) -> dict[int, float]:
        return {one: self.evidence.share(edges) for one, edges in self.evidence.against.items()}

    def _alike(self, one: int, other: int) -> bool:
        a, b = self._shares.get(one, 0.0), self._shares.get(other, 1.0)
        return a == b or (a > 0 and b > 0 and abs(log(a / b)) < self._noise)

    @cached_property
    def _noise(self) -> float:
        return max(ALIKE, SPREADS * self.evidence.spread)

    def rate(self, one: int) -> float:
        """The ratio of link rates at which it is, to others and to itself; 0 where that is none, or
        a fact of its own device stands against it.
        """
        share = self._shares[one]
        if self.fact(one) or self.broken(one) or share <= 0:
            return 0.0
        limit = max(NEAR_RATE, RATE_SPREADS * self.evidence.spread)
        itself = [
            row.gbps / row.reference for row in self.hairpins.bad.get(one, ()) if row.gbps > 0
        ]
        seen = [log(share), *([log(max(itself))] if itself else [])]  # dips slow single ones
        apart, rate = min((abs(value - log(rate)), rate) for rate in RATES for value in seen)
        return rate if apart < limit else 0.0

    @cached_property
    def hidden(self) -> Collection[int]:
        """Suspects whose bad hairpins may be another one's pause frames."""
        return shadowed(
            self.state.rounds,
            self.hairpins.rows,
            self.evidence.map.seen,
            self.evidence.suspects,
            victims=self.evidence.shaded,
            shares=self._shares,
        )


class Rule(NamedTuple):
    """``name``: what is said of a suspect to which it applies; ``applies``: whether it keeps that
    one from being blamed; ``verdict``: what would settle it.
    """

    name: str
    applies: Callable[[Court, int], bool]
    verdict: str


_CABLE = "look at its cable, its switch port and the path behind it"

RULES = (
    Rule(
        "somebody else's traffic passes its adapters",
        Court.busy,
        "test it when that traffic has ended",
    ),
    Rule(
        "good to itself",
        lambda c, one: c.scores[one].fine > 0 and not c.scores[one].itself,
        f"to itself it is as fast as others: {_CABLE}",
    ),
    Rule(
        "perhaps of another kind",
        lambda c, one: c.rate(one) > 0,
        "compare the kinds of the adapters: it is as slow, to others and to itself, as links of a lower rate are",
    ),
    Rule(
        "no known-good node in its domain",
        lambda c, one: c.evidence.map.domain[one] in c.dark,
        "look at that switch, and test it with a good node behind the same one",
    ),
    Rule(
        "another suspect may share its cause",
        Court.shared,
        "look at what these nodes share, such as a line card, and test each without the others",
    ),
    Rule(
        "no witness",
        lambda c, one: not c.witness(one),
        "test it with a good node behind the same leaf, and look at its switch port: no fact of its own devices stands against it",
    ),
    Rule(
        "not bad to itself",
        lambda c, one: c.scores[one].local < KIND,
        "measure it to itself over its own NICs, beside a healthy node",
    ),
    Rule(
        "a busy spell explains it",
        lambda c, one: c.scores[one].spell < FATAL,
        f"measure it again, at least {APART:g} s after the first time",
    ),
    Rule(
        "no evidence of paths",
        lambda c, one: c.scores[one].path < KIND,
        "measure it with more nodes that are known good",
    ),
    Rule(
        "fewer than two confirmations",
        lambda c, one: c.evidence.confirmed[one] < CONFIRMATIONS,
        "measure it with more nodes that are known good",
    ),
    Rule(
        "evidence in too few rounds",
        lambda c, one: c.evidence.rounds_against(one) < c.evidence.enough,
        "measure it with more nodes that are known good",
    ),
    Rule(
        "chance explains it",
        lambda c, one: c.scores[one].noise < FATAL,
        "measure it again in another gang",
    ),
    Rule(
        "perhaps another suspect's doing",
        lambda c, one: one in c.hidden,
        "measure it while the other suspects are silent",
    ),
)
"""The first one that applies says what would settle it."""


def settle(court: Court, one: int) -> str:
    """What would decide about a suspect; empty where nothing stands between it and blame."""
    return next((rule.verdict for rule in RULES if rule.applies(court, one)), "")
