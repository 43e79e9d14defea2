"""One look at a cluster for `show` and `explain --live`: all that is read is listed once, and
compared with what `explain` expects.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client, KubeError, NotFound, Params
from preflight_kube.runtime.discovery import versions

from preflight_mnnvl.api.names import (
    COMPUTE_DOMAIN_GROUP,
    FABRIC_LABEL,
    GROVE_GROUP,
    PCS_NAME,
    PODGANG,
    RESOURCE_GROUP,
    SCHEDULER_GROUP,
    label_value,
)
from preflight_mnnvl.api.types import (
    ComputeDomain,
    Key,
    PartialObjectMetadata,
    PodClique,
    PodCliqueSet,
    PodGang,
    shown,
)
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.reconcile import DomainPlan, plans
from preflight_mnnvl.core.snapshot import DomainMember, Ignored, World, member_of, wanted
from preflight_mnnvl.core.support import ClusterFacts, judge, served_claims, served_domains
from preflight_mnnvl.report.explain import Told, explain
from preflight_mnnvl.report.show import DRIVER, ChannelClaim, Pod, cliques_of, show

__all__ = ["differences", "explain_live", "show_live"]


def differences(
    told: Told, world: World, found: Mapping[Key, DomainPlan], namespace: str
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
    name: str, gang: str, turn: DomainPlan | None, found: ComputeDomain | None
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


AGENT: Final = "preflight-mnnvl"

T = TypeVar("T", PodClique, PodCliqueSet, PodGang, ComputeDomain, Pod)


class LiveView(NamedTuple):
    """``nodes``: how many carry the fabric's label, None where nobody says."""

    world: World
    pods: list[Pod]
    facts: ClusterFacts
    nodes: int | None


async def show_live(target: Connection, namespace: str, only: str, config: Config) -> str:
    """The text of `show` about ``namespace``; ``only`` the PodCliqueSet of this name. Raises
    :class:`~preflight_kube.errors.KubeError`.
    """
    async with Client(target, agent=AGENT) as client:
        seen = await _look(client, namespace, config, pods=True)
        resources = f"/apis/{RESOURCE_GROUP}/{served_claims(seen.facts) or 'v1'}"
        claims = await _if_readable(client, f"{resources}/namespaces/{namespace}/resourceclaims")
        slices = await _if_readable(
            client, f"{resources}/resourceslices", {"fieldSelector": f"spec.driver={DRIVER}"}
        )
        nodes = await _if_readable(client, "/api/v1/nodes", {"labelSelector": FABRIC_LABEL})
    labels = {one["metadata"]["name"]: one["metadata"]["labels"][FABRIC_LABEL] for one in nodes}
    return show(
        seen.world,
        seen.pods,
        config,
        judge(seen.facts, config),
        time.time(),
        only=only,
        claims={(namespace, one["metadata"]["name"]): ChannelClaim.read(one) for one in claims},
        cliques={**{node: one for node, one in labels.items() if one}, **cliques_of(slices)},
    )


async def _if_readable(
    client: Client, path: str, params: Params | None = None
) -> list[dict[str, Any]]:
    """What a path lists; nothing where who asks may not read it: what rests on it is not known."""
    try:
        return [
            one
            async for page, _ in client.pages(path, dict[str, Any], params=params)
            for one in page
        ]
    except KubeError:
        return []


async def explain_live(
    target: Connection, namespace: str, name: str, config: Config
) -> tuple[Told, list[str]] | None:
    """What is expected of a PodCliqueSet as it is stored, and how the cluster differs; None where
    there is no such set.

    Raises :class:`~preflight_kube.errors.KubeError`, and :class:`~.objects.BadObject` for what is
    no PodCliqueSet.
    """
    async with Client(target, agent=AGENT) as client:
        try:
            found = await client.get(f"{_grove(namespace)}/podcliquesets/{name}", dict[str, Any])
        except NotFound:
            return None
        seen = await _look(client, namespace, config, pods=False)
    parts = (*seen.world.domains.values(), *seen.world.claims.values())
    there = {one.metadata.name: one.metadata for one in parts}
    told = explain(found, config, seen.nodes, seen.facts, there)
    now = plans(seen.world, config, judge(seen.facts, config), time.time())
    return told, differences(told, seen.world, now, namespace)


def _grove(namespace: str) -> str:
    return f"/apis/{GROVE_GROUP}/v1alpha1/namespaces/{namespace}"


async def _look(client: Client, namespace: str, config: Config, *, pods: bool) -> LiveView:
    facts = ClusterFacts(
        await versions(client, COMPUTE_DOMAIN_GROUP, "computedomains"),
        await versions(client, RESOURCE_GROUP, "resourceclaims"),
    )
    claims = served_claims(facts) or "v1"
    domains = served_domains(config.mode)(facts)

    async def all_of(path: str, type_: type[T]) -> dict[Key, T]:
        try:
            return {
                (one.metadata.namespace, one.metadata.name): one
                async for page, _ in client.pages(path, type_)
                for one in page
            }
        except NotFound:  # not served
            return {}

    grove = _grove(namespace)
    resources = f"/apis/{RESOURCE_GROUP}/{claims}/namespaces/{namespace}"
    cliques = await all_of(f"{grove}/podcliques", PodClique)
    members = [
        found for one in cliques.values() if isinstance(found := member_of(one), DomainMember)
    ]
    literal = any(one.decision.mode == "literal" for one in members)
    world = World(
        cliques=cliques,
        sets=await all_of(f"{grove}/podcliquesets", PodCliqueSet),
        gangs=await all_of(
            f"/apis/{SCHEDULER_GROUP}/v1alpha1/namespaces/{namespace}/podgangs", PodGang
        ),
        claims=await all_of(
            f"{resources}/{'resourceclaims' if literal else 'resourceclaimtemplates'}",
            ComputeDomain,
        ),
    )
    if domains:
        path = f"/apis/{COMPUTE_DOMAIN_GROUP}/{domains}/namespaces/{namespace}/computedomains"
        world.domains = await all_of(path, ComputeDomain)
    listed = await all_of(f"/api/v1/namespaces/{namespace}/pods", Pod) if pods else {}
    return LiveView(
        world, list(listed.values()), facts, None if pods else await _fabric_nodes(client)
    )


async def _fabric_nodes(client: Client) -> int | None:
    """Who may read a namespace may often read no nodes."""
    try:
        pages = client.pages(
            "/api/v1/nodes", PartialObjectMetadata, params={"labelSelector": FABRIC_LABEL}
        )
        return sum(
            [bool(one.metadata.label(FABRIC_LABEL)) async for page, _ in pages for one in page]
        )
    except KubeError:
        return None
