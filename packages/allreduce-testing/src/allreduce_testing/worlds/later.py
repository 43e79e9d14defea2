"""Gangs that follow each other, for :mod:`.simulation`: what earlier ones have seen of nodes comes
with them into the next.

In each gang the fault hits a node of the same fate: what was bad is bad again, and what stood
behind a slow path stands behind one again, each time in another gang, hours later, with other
partners and in another namespace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from check_nccl_allreduce import localise
from check_nccl_allreduce.localise import Past, Sighting, Spell, State, Verdict

from .fabrics import Fabric

__all__ = ["Later", "follow"]

HOURS = 6 * 3600.0
"""Between two gangs."""


@dataclass(frozen=True, slots=True)
class Later:
    """The last gang with its state; whether an earlier one ``named`` its own bad node; and
    ``spells`` of so many ``healthy`` nodes of earlier ones.
    """

    fabric: Fabric
    state: State
    named: bool
    healthy: int
    spells: int


def _fates(fabric: Fabric) -> list[int]:
    touched = frozenset[int]().union(*(fault.touched for fault in fabric.faults))
    return [2 if i in fabric.bad else 1 if i in touched else 0 for i in range(fabric.size)]


def follow(fabric: Fabric, number: int, play: Callable[[Fabric], tuple[Verdict, State]]) -> Later:
    """Play the gangs before the one of ``fabric``, and give its nodes what those have seen of nodes
    of the same fate.
    """
    world = fabric.world
    random = Random(f"{world.name}/{number}/before")
    remembered: list[list[Spell]] = [[] for _ in range(fabric.size)]
    named, healthy, spells = False, 0, 0
    for gang in range(world.before):
        earlier = Fabric(replace(world, before=0, name=f"{world.name} {gang}"), number)
        verdict, state = play(earlier)
        named |= bool(earlier.bad) and set(earlier.bad) <= set(verdict.named)
        seen = localise.sightings(state)
        alike: dict[int, list[Sighting]] = {}
        for fate, one in zip(_fates(earlier), seen, strict=True):
            alike.setdefault(fate, []).append(one)
        healthy += len(alike.get(0, ()))
        spells += sum(1 for one in alike.get(0, ()) if one.bad)
        for i, fate in enumerate(_fates(fabric)):
            one = random.choice(alike[fate]) if fate in alike else Sighting()
            if one.bad:
                remembered[i].append(
                    Spell(HOURS * (world.before - gang), source=gang, own=one.sick)
                )
    endpoints = (
        replace(endpoint, past=Past(spells=tuple(found))) if found else endpoint
        for endpoint, found in zip(fabric.state.endpoints, remembered, strict=True)
    )
    return Later(fabric, replace(fabric.state, endpoints=tuple(endpoints)), named, healthy, spells)
