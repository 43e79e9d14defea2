"""A cluster for people: set → domain → owner → nodes → pods, with the controller's plans. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from preflight_mnnvl.api.names import CLAIM, ONE_FABRIC, PCS_NAME
from preflight_mnnvl.api.types import ComputeDomain, Key, KubeObject, shown
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.fabric import WAITING
from preflight_mnnvl.core.reconcile import DomainPlan, plans
from preflight_mnnvl.core.snapshot import World
from preflight_mnnvl.core.support import Support

POD_OF = "grove.io/podclique"
"""Label of a pod: its PodClique."""


class _PodSpec(msgspec.Struct, rename="camel", gc=False):
    node_name: str | None = None
    resource_claims: list[dict[str, object]] | None = None


class Pod(KubeObject):
    """As far as it is shown."""

    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)

    @property
    def claims(self) -> bool:
        """Tell whether it asks for our claim."""
        return any(claim.get("name") == CLAIM for claim in self.spec.resource_claims or ())


def show(
    world: World,
    pods: Iterable[Pod],
    config: Config,
    support: Support,
    now: float,
    *,
    only: str = "",
) -> str:
    """Text, one set after the other; ``only`` the PodCliqueSet of this name."""
    wants = world.wanted()
    plan_of = plans(world, config, support, now)
    of_clique: dict[Key, list[Pod]] = {}
    for pod in sorted(pods, key=lambda pod: pod.metadata.name):
        key = (pod.metadata.namespace, pod.metadata.label(POD_OF) or "")
        of_clique.setdefault(key, []).append(pod)
    by_set: dict[Key, list[Key]] = {}
    for key in plan_of:
        domain, want = world.domains.get(key), wants.get(key)
        pcs = want.domain.pcs if want else (domain and domain.metadata.label(PCS_NAME[0])) or ""
        by_set.setdefault((key[0], pcs), []).append(key)
    lines: list[str] = []
    for (namespace, pcs), keys in sorted(by_set.items()):
        if only and pcs != only:
            continue
        gone = "" if (namespace, pcs) in world.sets else " (not there)"
        lines.append(f"PodCliqueSet {shown(namespace)}/{shown(pcs)}{gone}")
        gangs = set[str]()
        for key in keys:
            domain = world.domains.get(key)
            lines += _domain(key, plan_of[key], domain)
            if (want := wants.get(key)) is None:
                continue
            gangs.add(want.owner(domain))
            for member in want.members:
                own = of_clique.get((namespace, member.name), [])
                lines += [f"    PodClique {member.name}", *(f"      {_pod(pod)}" for pod in own)]
        for name in sorted(gangs):
            gang = world.gangs.get((namespace, name))
            answer = gang.metadata.annotation(ONE_FABRIC) if gang is not None else None
            lines.append(f"  PodGang {shown(name)}, one fabric: {shown(answer or WAITING, 600)}")
    lines += [
        f"ignored  PodClique {shown(member.namespace)}/{shown(member.name)}: {member.why}"
        for member in world.members()[1]
    ]
    return "\n".join(lines or ["no domains"]) + "\n"


def _domain(key: Key, plan: DomainPlan, domain: ComputeDomain | None) -> list[str]:
    why = f"    {plan.why[:1].upper()}{plan.why[1:]}"
    lines = [f"  ComputeDomain {shown(key[1])}: {plan.state}", why]
    if domain is not None and domain.status is not None:
        nodes = [
            f"{shown(node.name)} ({shown(node.status) or 'unknown'})"
            for node in domain.status.nodes or ()
        ]
        status = shown(domain.status.status) or "no status"
        lines.append(f"    {status}; nodes: {', '.join(nodes) or 'none'}")
    return lines


def _pod(pod: Pod) -> str:
    where = f"on {shown(pod.spec.node_name)}" if pod.spec.node_name else "on no node yet"
    return f"{shown(pod.metadata.name)} {where}, {'with' if pod.claims else 'WITHOUT'} its claim"
