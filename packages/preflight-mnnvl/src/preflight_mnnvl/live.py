"""One look at a cluster for `show`: everything that turns read, listed once."""

from __future__ import annotations

import time
from typing import TypeVar

from preflight_kube.client import Client, NotFound
from preflight_kube.connection import Connection

from .config import Config
from .desired import Key, Member, member_of
from .detection import Detection
from .names import COMPUTE_DOMAIN_GROUP, GROVE_GROUP, RESOURCE_GROUP, SCHEDULER_GROUP
from .objects import ComputeDomain, PodClique, PodCliqueSet, PodGang
from .show import Pod, show
from .support import judge, served_claims, served_domains
from .world import World

__all__ = ["shown"]

T = TypeVar("T", PodClique, PodCliqueSet, PodGang, ComputeDomain, Pod)


async def shown(target: Connection, namespace: str, only: str, config: Config) -> str:
    """The text of `show` about ``namespace``; ``only`` the PodCliqueSet of this name. Raises :class:`~preflight_kube.errors.KubeError`."""
    async with Client(target, agent="preflight-mnnvl") as client:
        detection = Detection(client, config)
        await detection.look()
        facts = detection.facts
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

        grove = f"/apis/{GROVE_GROUP}/v1alpha1/namespaces/{namespace}"
        resources = f"/apis/{RESOURCE_GROUP}/{claims}/namespaces/{namespace}"
        cliques = await all_of(f"{grove}/podcliques", PodClique)
        members = [found for one in cliques.values() if isinstance(found := member_of(one), Member)]
        literal = any(one.decision.mode == "literal" for one in members)
        world = World(
            cliques=cliques,
            sets=await all_of(f"{grove}/podcliquesets", PodCliqueSet),
            gangs=await all_of(f"/apis/{SCHEDULER_GROUP}/v1alpha1/namespaces/{namespace}/podgangs", PodGang),
            claims=await all_of(
                f"{resources}/{'resourceclaims' if literal else 'resourceclaimtemplates'}", ComputeDomain
            ),
        )
        if domains:
            path = f"/apis/{COMPUTE_DOMAIN_GROUP}/{domains}/namespaces/{namespace}/computedomains"
            world.domains = await all_of(path, ComputeDomain)
        pods = await all_of(f"/api/v1/namespaces/{namespace}/pods", Pod)
    return show(world, pods.values(), config, judge(facts, config), time.time(), only=only)
