"""What there is, for people: set → domain → owner → nodes → pods, with the state that the
controller's own decision gives it, and whether the pods of a domain share one fabric. Pure.

Nobody asks IMEX: of its daemons is told what the ComputeDomain's status has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from preflight_mnnvl.api.names import CLAIM, PCS_NAME
from preflight_mnnvl.api.types import ComputeDomain, Key, Metadata, shown
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.reconcile import DomainPlan, plans
from preflight_mnnvl.core.snapshot import World, wanted
from preflight_mnnvl.core.support import Support

__all__ = ["DRIVER", "ChannelClaim", "Pod", "cliques_of", "one_fabric", "show"]

DRIVER: Final = "compute-domain.nvidia.com"
MOST_NAMED: Final = 5


class _PodSpec(msgspec.Struct, rename="camel", gc=False):
    node_name: str | None = None
    resource_claims: list[dict[str, object]] | None = None


class _ClaimStatus(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    resource_claim_name: str | None = None


class _PodStatus(msgspec.Struct, rename="camel", gc=False):
    resource_claim_statuses: list[_ClaimStatus] | None = None


class Pod(msgspec.Struct, rename="camel", gc=False):
    """As far as it is shown."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)

    @property
    def claims(self) -> bool:
        """Whether it asks for our claim."""
        return any(one.get("name") == CLAIM for one in self.spec.resource_claims or ())

    @property
    def claim(self) -> str:
        """The name of the claim that was made for it; empty for none yet."""
        made = self.status.resource_claim_statuses or ()
        return next((one.resource_claim_name or "" for one in made if one.name == CLAIM), "")


class ChannelClaim(NamedTuple):
    """``domain``: the uid of the ComputeDomain that its configuration names. ``node``: where it is
    allocated; empty for nowhere yet.
    """

    domain: str
    node: str

    @classmethod
    def read(cls, claim: Mapping[str, Any]) -> ChannelClaim:
        """Of a ResourceClaim as the API server has it."""
        configs = ((claim.get("spec") or {}).get("devices") or {}).get("config") or ()
        opaque = [one.get("opaque") or {} for one in configs]
        uids = [
            str((one.get("parameters") or {}).get("domainID") or "")
            for one in opaque
            if one.get("driver") == DRIVER
        ]
        allocated = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
        results = [one for one in allocated.get("results") or () if one.get("driver") == DRIVER]
        return cls(next(iter(uids), ""), next((str(one.get("pool")) for one in results), ""))


def cliques_of(slices: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """By node, the NVLink clique that the driver's ResourceSlices say; NVIDIA's say none."""
    found = {}
    for one in slices:
        spec = one.get("spec") or {}
        for device in spec.get("devices") or ():
            attribute = (device.get("attributes") or {}).get("cliqueID") or {}
            if clique := attribute.get("string"):
                found[str(spec.get("nodeName"))] = str(clique)
    return found


def one_fabric(
    domain: ComputeDomain | None,
    pods: Sequence[Pod],
    claims: Mapping[str, ChannelClaim],
    cliques: Mapping[str, str],
) -> str:
    """`yes`, `no` or `not known yet`, and why. ``claims``: the namespace's by name; ``cliques``: by
    node, as far as they are known.
    """
    uid = domain.metadata.uid if domain is not None else ""
    asking = [pod for pod in pods if pod.claims]
    made = [(pod, claim) for pod in asking if (claim := claims.get(pod.claim)) is not None]
    nodes = {claim.node for _, claim in made if claim.node}
    known = {cliques[node] for node in nodes if node in cliques}
    without = [pod for pod in pods if not pod.claims]
    foreign = [pod for pod, claim in made if claim.domain != uid]
    waiting = len(asking) - sum(bool(claim.node) for _, claim in made)
    wrong = [
        *([f"{_named(without)} without the claim"] if without else ()),
        *([f"{_named(foreign)} with the claim of another domain"] if foreign else ()),
        *(
            [f"nodes of {len(known)} NVLink cliques ({', '.join(sorted(map(shown, known)))})"]
            if len(known) > 1
            else ()
        ),
    ]
    if wrong:
        return f"no: {'; '.join(wrong)}"
    if not pods or waiting:
        return f"not known yet: {waiting} of {len(pods)} pods wait for their claim"
    if unknown := len(nodes - cliques.keys()):
        return f"not known: the NVLink clique of {unknown} of {len(nodes)} nodes is not known; {_daemons(domain)}"
    of = "".join(map(shown, known))
    return (
        f"yes: {len(pods)} pods, {len(nodes)} nodes of the NVLink clique {of}; {_daemons(domain)}"
    )


def _daemons(domain: ComputeDomain | None) -> str:
    nodes = (
        domain.status.nodes if domain is not None and domain.status is not None else None
    ) or ()
    if not nodes:
        return "its daemons are the hosts' and are not asked"
    ready = sum(one.status == "Ready" for one in nodes)
    return f"its daemons are ready on {ready} of {len(nodes)} nodes"


def _named(pods: Sequence[Pod]) -> str:
    names = sorted(shown(pod.metadata.name) for pod in pods)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"


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
    found = plans(world, config, support, now)
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


def _domain(key: Key, turn: DomainPlan, domain: ComputeDomain | None) -> list[str]:
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
