"""What `explain` expects of a set, beside what there is of it: the differences, one sentence each.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from preflight_mnnvl.api.names import PCS_NAME, PODGANG, label_value
from preflight_mnnvl.api.types import ComputeDomain, Key, PodClique, shown
from preflight_mnnvl.core.desired import Ignored, member_of, wanted
from preflight_mnnvl.core.reconcile import DomainTurn
from preflight_mnnvl.core.snapshot import World
from preflight_mnnvl.report.explain import Told

__all__ = ["differences"]


def differences(
    told: Told, world: World, found: Mapping[Key, DomainTurn], namespace: str
) -> list[str]:
    """``world``: what there is in ``namespace``, and ``found`` the controller's turns about it;
    objects of other sets are passed over.
    """
    expected = {member: one.name for one in told.domains for member in one.members}
    there = {name: one for (space, name), one in world.cliques.items() if space == namespace}
    said = [
        f"PodClique {shown(name)} is not there; Grove has not made it yet, or was refused (its Events on the set say why)"
        for name in expected
        if name not in there
    ]
    wants = wanted(world.members()[0], world.domains)
    said += [
        f"PodClique {shown(one.name)} has the claim of the domain {shown(one.decision.cd)}, which is that of {want.domain}; delete or rename one of them"
        for (space, _), want in sorted(wants.items())
        for one in want.losers
        if space == namespace and one.domain.pcs == told.name
    ]
    for name, clique in sorted(there.items()):
        if _set_of(clique) == told.name:
            said += _clique(name, clique, expected.get(name))
    for one in told.domains:
        key = (namespace, one.name)
        said += _domain(one.name, one.gang, found.get(key), world.domains.get(key))
    return said


def _clique(name: str, clique: PodClique, expected: str | None) -> list[str]:
    if clique.metadata.going:
        return [f"PodClique {shown(name)} is being deleted"]
    member = member_of(clique)
    if isinstance(member, Ignored):
        return [f"PodClique {shown(name)}: its decision is not followed, since {member.why}"]
    if member is None:
        if expected is None:
            return []
        said = "it was made before the add-on was there, or while it was not supported; delete it, and Grove makes it anew"
        return [f"PodClique {shown(name)} has no domain, and would get {expected} now: {said}"]
    if expected is None:
        return [
            f"PodClique {shown(name)} has the domain {member.decision.cd}, and is not of the template as it is now"
        ]
    if member.decision.cd != expected:
        return [
            f"PodClique {shown(name)} has the domain {member.decision.cd}, and would get {expected} now"
        ]
    return []


def _domain(
    name: str, gang: str, turn: DomainTurn | None, found: ComputeDomain | None
) -> list[str]:
    if turn is None:
        return [f"ComputeDomain {name} is not there"]
    if turn.state != "adopted":
        return [f"ComputeDomain {name} is {turn.state}: {turn.why}"]
    recorded = found.metadata.label(PODGANG) if found is not None else None
    if recorded != label_value(gang):
        return [
            f"ComputeDomain {name} belongs to PodGang {shown(recorded or 'unknown')}, and {gang} was expected"
        ]
    return []


def _set_of(clique: PodClique) -> str | None:
    labels: Mapping[str, str] = clique.metadata.labels or {}
    return next((labels[key] for key in PCS_NAME if key in labels), None)
