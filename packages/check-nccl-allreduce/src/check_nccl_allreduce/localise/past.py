"""What other gangs say of an endpoint: the kind of evidence *time*, and what its node usually
reaches. Pure.

A node that is bad in one gang, and bad in another one at another time with other partners, is bad
by neither chance nor somebody's traffic. What lies behind it goes with it, though: a cable, a
switch port, an uplink. So the past speaks against those only where the node was bad to itself then.
And it is other people's word: one namespace's gangs never make a kind of evidence by themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from preflight_proto.history import Spell, Usual

from .model import State

__all__ = ["AGAIN", "ANOTHER_TIME", "below", "factor", "sources", "spells"]

ANOTHER_TIME = 600.0
"""Seconds between two gangs, from which one moment of somebody's traffic is no
more what both saw.
"""
AGAIN = 10**1.5
"""How much likelier a spell in another gang is for a bad node: 1 to 7 % of healthy ones have one in
the worlds of `simulation --group fleet`. The spells of one namespace count once, and two namespaces
make the most that a kind of evidence counts."""
SOURCES = 2
LEAST = 3
"""Gangs, fewer of which say nothing of what is usual."""
BAD, SPREADS = 0.80, 5.0
"""Less than this share of the median, and by more spreads than this, is not what a node usually
reaches.
"""


def spells(state: State, one: int, accusers: Collection[int]) -> tuple[Spell, ...]:
    """Those of the endpoint that count: of another time, and with none of the partners that find it
    bad now.
    """
    past = state.endpoints[one].past
    if past is None:
        return ()
    now = {state.endpoints[i].name for i in accusers}
    return tuple(s for s in past.spells if s.ago >= ANOTHER_TIME and now.isdisjoint(s.partners))


def sources(found: Iterable[Spell]) -> int:
    """The number of namespaces whose gangs say so."""
    return len({s.source for s in found})


def factor(found: Iterable[Spell]) -> float:
    """What the past multiplies against an explanation."""
    return AGAIN ** min(SOURCES, sources(found))


def below(gbps: float, usual: Usual | None) -> bool | None:
    """Whether a node reaches less than it usually does; None where that is not known."""
    if usual is None or usual.count < LEAST or usual.gbps <= 0:
        return None
    return gbps < min(BAD * usual.gbps, usual.gbps - SPREADS * usual.spread)
