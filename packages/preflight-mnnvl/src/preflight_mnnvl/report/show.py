"""What there is, for people: set → domain → owner → nodes → pods, with the state that the
controller's own decision gives it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from preflight_mnnvl.api.names import PCS_NAME
from preflight_mnnvl.api.types import ComputeDomain, Key, shown
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.desired import wanted
from preflight_mnnvl.core.reconcile import DomainTurn
from preflight_mnnvl.core.snapshot import World, turns
from preflight_mnnvl.core.support import Support
from preflight_mnnvl.report.fabric import ChannelClaim, Pod, one_fabric

__all__ = ["show"]

POD_OF = "grove.io/podclique"
"""Label of a pod: its PodClique."""


def show(
    world: World,
    pods: Iterable[Pod],
    config: Config,
    support: Support,
    now: float,
    *,
    only: str = "",
    claims: Mapping[Key, ChannelClaim] = {},
    cliques: Mapping[str, str] = {},
) -> str:
    """Text, one set after the other; ``only`` the PodCliqueSet of this name. ``claims``,
    ``cliques``: those of pods, and of nodes (:func:`~.fabric.one_fabric`).
    """
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
            if want is not None:
                own = [
                    pod for one in want.members for pod in by_clique.get((namespace, one.name), ())
                ]
                here = {name: one for (space, name), one in claims.items() if space == namespace}
                said = one_fabric(world.domains.get(key), own, here, cliques)
                lines.append(f"    One fabric: {said}")
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
    where = f"on {shown(pod.spec.node_name)}" if pod.spec.node_name else "on no node yet"
    return f"{shown(pod.metadata.name)} {where}, {'with' if pod.claims else 'WITHOUT'} its claim"


def _labels(domain: ComputeDomain | None) -> dict[str, str]:
    return (domain.metadata.labels if domain is not None else None) or {}
