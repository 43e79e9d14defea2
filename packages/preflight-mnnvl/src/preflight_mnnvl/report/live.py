"""One look at a cluster for `show` and `explain --live`: everything that turns
read, listed once.
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple, TypeVar

from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client, KubeError, NotFound, Params
from preflight_kube.runtime.discovery import versions

from preflight_mnnvl.api.names import (
    COMPUTE_DOMAIN_GROUP,
    FABRIC_LABEL,
    GROVE_GROUP,
    RESOURCE_GROUP,
    SCHEDULER_GROUP,
)
from preflight_mnnvl.api.types import (
    ComputeDomain,
    Key,
    PartialObjectMetadata,
    PodClique,
    PodCliqueSet,
    PodGang,
)
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.desired import DomainMember, member_of
from preflight_mnnvl.core.snapshot import World, turns
from preflight_mnnvl.core.support import ClusterFacts, judge, served_claims, served_domains
from preflight_mnnvl.report.compare import differences
from preflight_mnnvl.report.explain import Told, explain
from preflight_mnnvl.report.fabric import DRIVER, ChannelClaim, Pod, cliques_of
from preflight_mnnvl.report.show import show

__all__ = ["explained", "shown"]

AGENT: Final = "preflight-mnnvl"

T = TypeVar("T", PodClique, PodCliqueSet, PodGang, ComputeDomain, Pod)


class LiveView(NamedTuple):
    """``nodes``: how many carry the fabric's label, None where nobody says."""

    world: World
    pods: list[Pod]
    facts: ClusterFacts
    nodes: int | None


async def shown(target: Connection, namespace: str, only: str, config: Config) -> str:
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


async def explained(
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
    now = turns(seen.world, config, judge(seen.facts, config), time.time())
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
