"""One look at a cluster for `show` and `explain --live`: all that is read is listed once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client, KubeError, NotFound, Params

from preflight_mnnvl.api import names, types
from preflight_mnnvl.api.identity import set_of
from preflight_mnnvl.api.types import ComputeDomain, Key, PodClique, PodCliqueSet, PodGang, shown
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.reconcile import DomainPlan, plans
from preflight_mnnvl.core.snapshot import Ignored, World, member_of
from preflight_mnnvl.core.support import CLAIM_VERSIONS, DOMAIN_VERSIONS, ClusterFacts, judge
from preflight_mnnvl.report.explain import ExplainedSet, explain
from preflight_mnnvl.report.show import Pod, show

_MADE_BEFORE: Final = "it was made before the add-on was there, or while it was not supported; delete it, and Grove makes it anew"

T = TypeVar("T")
Listed = TypeVar("Listed", PodClique, PodCliqueSet, PodGang, ComputeDomain)


async def show_live(
    target: Connection, namespace: str, only: str, given: Config | None
) -> str | None:
    """The text of `show` about ``namespace``; ``only`` the PodCliqueSet of this name, None where
    there is neither that nor a domain of it. ``given``: the release's configuration; None: its
    defaults, of the release whose domains are there.
    """
    async with Client(target, agent=names.MANAGED_BY_US) as client:
        world, facts = await _listed(client, namespace, given or Config())
        config = given or _of_release(world)
        pods = await _list(client, f"/api/v1/namespaces/{namespace}/pods", Pod)
    left = (domain.metadata.label(names.PCS_NAME[0]) for domain in world.domains.values())
    if only and (namespace, only) not in world.sets and only not in left:
        return None
    return show(world, pods or (), config, judge(facts, config), time.time(), only=only)


async def explain_live(
    target: Connection, namespace: str, name: str, given: Config | None
) -> tuple[ExplainedSet, list[str]] | None:
    """Compare the cluster with what is expected of a PodCliqueSet; None where there is no such set.

    ``given``: as in :func:`show_live`. Raises :class:`~.types.BadObject` for what is no
    PodCliqueSet.
    """
    async with Client(target, agent=names.MANAGED_BY_US) as client:
        grove = f"/apis/{names.GROVE_GROUP}/v1alpha1/namespaces/{namespace}"
        path = f"{grove}/podcliquesets/{name}"
        if (set_ := await client.get_or_none(path, dict[str, Any])) is None:
            return None
        path = f"{grove}/podcliquescalinggroups"  # of which replicas are read, as of a PodClique
        groups = await _list(client, path, PodClique, absent=KubeError) or ()
        world, facts = await _listed(client, namespace, given or Config())
        config = given or _of_release(world)
        nodes = await _fabric_nodes(client)
    parts = [*world.domains.values(), *world.claims.values()]
    metas = [part.metadata for part in parts]
    there = {key: meta for meta in metas for key in (meta.name, meta.uid)}
    scaled = {it.metadata.name: it.spec.replicas for it in groups if it.spec.replicas is not None}
    expected = explain(set_, config, nodes, facts, there, scaled=scaled)
    now = plans(world, config, judge(facts, config), time.time())
    return expected, differences(expected, world, now, namespace)


async def _listed(client: Client, namespace: str, config: Config) -> tuple[World, ClusterFacts]:
    """All that is reconciled in ``namespace``, and what the cluster serves."""

    def path(version: str, plural: str) -> str:
        return f"/apis/{version}/namespaces/{namespace}/{plural}"

    async def all_of(version: str, plural: str, type_: type[Listed]) -> dict[Key, Listed]:
        return _by_key(await _list(client, path(version, plural), type_) or [])

    async def served(
        group: str, versions: Sequence[str], plural: str
    ) -> tuple[str, dict[Key, ComputeDomain]]:
        for version in versions:
            listed = await _list(client, path(f"{group}/{version}", plural), ComputeDomain)
            if listed is not None:
                return version, _by_key(listed)
        return "", {}

    grove = f"{names.GROVE_GROUP}/v1alpha1"
    world = World(
        cliques=await all_of(grove, "podcliques", PodClique),
        sets=await all_of(grove, "podcliquesets", PodCliqueSet),
        gangs=await all_of(f"{names.SCHEDULER_GROUP}/v1alpha1", "podgangs", PodGang),
    )
    literal = any(member.decision.mode == "literal" for member in world.members()[0])
    plural = "resourceclaims" if literal else "resourceclaimtemplates"
    claim, world.claims = await served(names.RESOURCE_GROUP, CLAIM_VERSIONS["literal"], plural)
    versions = DOMAIN_VERSIONS[config.mode]
    domain, world.domains = await served(names.COMPUTE_DOMAIN_GROUP, versions, "computedomains")
    return world, ClusterFacts(domain, claim)


def _of_release(world: World) -> Config:
    """The defaults, and the release that made most of the domains: to any other they are foreign,
    and in the way.
    """
    parts = (domain.metadata for domain in world.domains.values())
    releases = Counter(
        instance
        for meta in parts
        if meta.label(names.MANAGED_BY) == names.MANAGED_BY_US
        and (instance := meta.label(names.INSTANCE))
    )
    return Config(instance=releases.most_common(1)[0][0]) if releases else Config()


def _by_key(listed: Iterable[Listed]) -> dict[Key, Listed]:
    return {(item.metadata.namespace, item.metadata.name): item for item in listed}


async def _list(
    client: Client,
    path: str,
    type_: type[T],
    *,
    absent: type[KubeError] = NotFound,
    params: Params | None = None,
) -> list[T] | None:
    """List a path; None where that fails with ``absent``, as what is not served does."""
    try:
        pages = client.pages(path, type_, params=params)
        return [item async for page, _ in pages for item in page]
    except absent:
        return None


async def _fabric_nodes(client: Client) -> int | None:
    """How many nodes have a fabric; None for who may not read them, as often who may read a
    namespace.
    """
    path, params = "/api/v1/nodes", {"labelSelector": names.FABRIC_LABEL}
    nodes = await _list(client, path, types.PartialObjectMetadata, absent=KubeError, params=params)
    if nodes is None:
        return None
    return sum(bool(node.metadata.label(names.FABRIC_LABEL)) for node in nodes)


def differences(
    explained: ExplainedSet, world: World, current: Mapping[Key, DomainPlan], namespace: str
) -> list[str]:
    """How ``world``, and the controller's ``current`` plans, differ from what is expected."""
    expected = {member: domain.name for domain in explained.domains for member in domain.members}
    there = {name: clique for (space, name), clique in world.cliques.items() if space == namespace}
    reports = [
        f"PodClique {shown(name)} is not there; Grove has not made it yet, or was refused (its Events on the set say why)"
        for name in expected
        if name not in there
    ]
    for name, clique in sorted(there.items()):
        own = set_of(clique.metadata) == explained.name
        if own and (difference := _of_clique(clique, expected.get(name))):
            reports.append(f"PodClique {shown(name)}{difference}")
    for domain in explained.domains:
        key = (namespace, domain.name)
        if difference := _of_domain(domain.gang, current.get(key), world.domains.get(key)):
            reports.append(f"ComputeDomain {domain.name} {difference}")
    return reports


def _of_clique(clique: PodClique, expected: str | None) -> str:
    if clique.metadata.going:
        return " is being deleted"
    member = member_of(clique)
    if isinstance(member, Ignored):
        return f": its decision is not followed, since {member.why}"
    if member is None:
        would = f" has no domain, and would get {expected} now: {_MADE_BEFORE}"
        return "" if expected is None else would
    if expected is None:
        return f" has the domain {member.decision.cd}, and is not of the template as it is now"
    if member.decision.cd != expected:
        return f" has the domain {member.decision.cd}, and would get {expected} now"
    return ""


def _of_domain(gang: str, plan: DomainPlan | None, domain: ComputeDomain | None) -> str:
    if plan is None:
        return "is not there"
    if plan.state != "adopted":
        return f"is {plan.state}: {plan.why}"
    recorded = domain.metadata.label(names.PODGANG) if domain is not None else None
    if recorded != names.label_value(gang):
        return f"belongs to PodGang {shown(recorded or 'unknown')}, and {gang} was expected"
    return ""
