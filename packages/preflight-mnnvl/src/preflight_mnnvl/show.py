"""What there is, for people: set → domain → owner → nodes → pods, with the state that the
controller's own decision gives it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .config import Config
from .desired import Key, wanted
from .names import CLAIM, PCS_NAME
from .objects import ComputeDomain, Metadata, shown
from .support import Support
from .turn import DomainTurn
from .world import World, turns

__all__ = ["Pod", "show"]

POD_OF = "grove.io/podclique"
"""Label of a pod: its PodClique."""


class _PodSpec(msgspec.Struct, rename="camel", gc=False):
    node_name: str | None = None
    resource_claims: list[dict[str, object]] | None = None


class Pod(msgspec.Struct, rename="camel", gc=False):
    """As far as it is shown."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)


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
    wants = wanted(world.members()[0], world.domains)
    found = turns(world, config, support, now)
    by_clique: dict[Key, list[Pod]] = {}
    for pod in pods:
        by_clique.setdefault((pod.metadata.namespace, pod.metadata.label(POD_OF) or ""), []).append(
            pod
        )
    by_set: dict[Key, list[Key]] = {}
    for key in found:
        labels = _labels(world.domains.get(key))
        pcs = wants[key].domain.pcs if key in wants else labels.get(PCS_NAME[0], "")
        losers = {one.domain.pcs for one in wants[key].losers} if key in wants else set()
        for name in {pcs, *losers}:
            by_set.setdefault((key[0], name), []).append(key)
    lines: list[str] = []
    for (namespace, pcs), keys in sorted(by_set.items()):
        if only and pcs != only:
            continue
        gone = "" if (namespace, pcs) in world.sets else " (not there)"
        lines.append(f"PodCliqueSet {shown(namespace)}/{shown(pcs)}{gone}")
        for key in keys:
            lines += _domain(key, found[key], world.domains.get(key))
            want = wants.get(key)
            for member in (*want.members, *want.losers) if want else ():
                lines.append(f"    PodClique {member.name}")
                if want and member in want.losers:
                    lines[-1] += (
                        f", BLOCKED: it has the claim of this domain, and is of {member.domain}; delete or rename one of them"
                    )
                for pod in sorted(
                    by_clique.get((namespace, member.name), ()), key=lambda one: one.metadata.name
                ):
                    lines.append(f"      {_pod(pod)}")
    ignored = world.members()[1]
    lines += [
        f"ignored  PodClique {shown(one.namespace)}/{shown(one.name)}: {one.why}" for one in ignored
    ]
    return "\n".join(lines or ["no domains"]) + "\n"


def _domain(key: Key, turn: DomainTurn, domain: ComputeDomain | None) -> list[str]:
    lines = [
        f"  ComputeDomain {shown(key[1])}: {turn.state}",
        f"    {turn.why[:1].upper()}{turn.why[1:]}",
    ]
    if domain is not None and domain.status is not None:
        nodes = [
            f"{shown(one.name)} ({shown(one.status) or 'unknown'})"
            for one in domain.status.nodes or ()
        ]
        lines.append(
            f"    {shown(domain.status.status) or 'no status'}; nodes: {', '.join(nodes) or 'none'}"
        )
    return lines


def _pod(pod: Pod) -> str:
    claimed = any(one.get("name") == CLAIM for one in pod.spec.resource_claims or ())
    where = f"on {shown(pod.spec.node_name)}" if pod.spec.node_name else "on no node yet"
    return f"{shown(pod.metadata.name)} {where}, {'with' if claimed else 'WITHOUT'} its claim"


def _labels(domain: ComputeDomain | None) -> dict[str, str]:
    return (domain.metadata.labels if domain is not None else None) or {}
