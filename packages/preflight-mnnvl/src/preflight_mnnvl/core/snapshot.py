"""What is seen of all namespaces → one turn for each domain, and what is to be said on PodGangs.
Pure.

For people (`show`) and tests; a controller keeps the same by key, and asks for one domain at a
time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from preflight_mnnvl.api.names import MANAGED, PCS_NAME, PODGANG, label_value
from preflight_mnnvl.api.types import ComputeDomain, Key, Metadata, PodClique, PodCliqueSet, PodGang
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.desired import DomainMember, Ignored, Wanted, member_of, wanted
from preflight_mnnvl.core.ownership import adopted, alive, announcement
from preflight_mnnvl.core.reconcile import DomainTurn, DomainView, decide
from preflight_mnnvl.core.support import Support

__all__ = ["World", "announcements", "seen", "turns"]


class World(msgspec.Struct, kw_only=True):
    """Objects by namespace and name. ``claims``: claim templates, in `literal` mode claims.
    ``lost``, ``unclaimed``: what earlier turns have left.
    """

    cliques: dict[Key, PodClique] = {}
    sets: dict[Key, PodCliqueSet] = {}
    gangs: dict[Key, PodGang] = {}
    domains: dict[Key, ComputeDomain] = {}
    claims: dict[Key, ComputeDomain] = {}
    lost: dict[Key, str] = {}
    unclaimed: dict[Key, float] = {}

    def members(self) -> tuple[list[DomainMember], list[Ignored]]:
        """Living PodCliques that carry a decision, and those whose decision is not followed."""
        found = [one for clique in self.cliques.values() if (one := member_of(clique)) is not None]
        return [one for one in found if isinstance(one, DomainMember)], [
            one for one in found if isinstance(one, Ignored)
        ]


def seen(world: World, key: Key, wants: Wanted | None) -> DomainView:
    """All that one turn reads."""
    namespace, name = key
    domain = world.domains.get(key)
    claim = world.claims.get(
        (namespace, wants.domain.claim if wants else f"{name.removesuffix('-cd')}-mnnvl-claim")
    )
    labels = next(
        (one.metadata.labels for one in (domain, claim) if one is not None and one.metadata.labels),
        {},
    )
    gangs = {one.decision.gang for one in wants.members} if wants else set()
    if PODGANG in labels:
        recorded = labels[PODGANG]
        gangs |= {
            other
            for space, other in world.gangs
            if space == namespace and label_value(other) == recorded
        }
    labelled = labels.get(PCS_NAME[0], "")
    pcs = wants.domain.pcs if wants else labelled
    set_ = world.sets.get((namespace, pcs))
    others = {labelled, *(one.domain.pcs for one in wants.losers)} - {pcs} if wants else set()
    return DomainView(
        name,
        namespace,
        wants,
        domain,
        claim,
        {
            gang: found.metadata
            for gang in gangs
            if (found := world.gangs.get((namespace, gang))) is not None
        },
        set_.metadata if set_ else None,
        world.lost.get(key, ""),
        world.unclaimed.get(key),
        tuple(
            world.sets[at].metadata
            for name in sorted(others)
            if (at := (namespace, name)) in world.sets
        ),
    )


def turns(world: World, config: Config, support: Support, now: float) -> dict[Key, DomainTurn]:
    """One turn for each domain that is wanted, or of which an object carries our label."""
    wants = wanted(world.members()[0], world.domains)
    keys = {
        *wants,
        *(key for key, one in world.domains.items() if one.metadata.label(MANAGED) == "true"),
    }
    for (namespace, claim), one in world.claims.items():
        if one.metadata.label(MANAGED) == "true":
            keys.add((namespace, f"{claim.removesuffix('-mnnvl-claim')}-cd"))
    return {
        key: decide(seen(world, key, wants.get(key)), config, support, now) for key in sorted(keys)
    }


def announcements(
    world: World, wants: Mapping[Key, Wanted] | None = None
) -> dict[Key, dict[str, Any]]:
    """The merge patches of PodGangs: of those that own all of their domains, and in `literal` mode
    claims, and of those that were said to and do not.

    ``wants``: what living PodCliques want, where that is known already.
    """
    of: dict[Key, list[Metadata | None]] = {}
    for key, one in (wanted(world.members()[0], world.domains) if wants is None else wants).items():
        found = world.domains.get(key)
        parts: list[Metadata | None] = [found.metadata if found else None]
        if one.decision.mode == "literal":
            claim = world.claims.get((key[0], one.domain.claim))
            parts.append(claim.metadata if claim else None)
        of.setdefault((key[0], _gang(one, found)), []).extend(parts)
    said: dict[Key, Mapping[str, Any] | None] = {}
    for key, parts in of.items():
        gang = world.gangs.get(key)
        if gang is not None and alive(gang.metadata):
            whole = all(one and adopted(one, gang.metadata) for one in parts)
            said[key] = announcement(gang.metadata, whole=whole)
    return {key: dict(patch) for key, patch in sorted(said.items()) if patch}


def _gang(one: Wanted, found: ComputeDomain | None) -> str:
    recorded = found.metadata.label(PODGANG) if found else None
    return next(
        (m.decision.gang for m in one.members if label_value(m.decision.gang) == recorded), one.gang
    )
