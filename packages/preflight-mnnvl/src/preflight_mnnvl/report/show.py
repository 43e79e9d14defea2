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
    waiting = len(asking) - sum(bool(claim.node) for _, claim in made)
    wrong = []
    if without := [pod for pod in pods if not pod.claims]:
        wrong.append(f"{_named(without)} without the claim")
    if foreign := [pod for pod, claim in made if claim.domain != uid]:
        wrong.append(f"{_named(foreign)} with the claim of another domain")
    if len(known) > 1:
        of = ", ".join(sorted(map(shown, known)))
        wrong.append(f"nodes of {len(known)} NVLink cliques ({of})")
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
    nodes = (domain and domain.status and domain.status.nodes) or ()
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
    ``cliques``: those of pods, and of nodes (:func:`one_fabric`).
    """
    wants = wanted(world.members()[0], world.domains)
    found = plans(world, config, support, now)
    of_clique: dict[Key, list[Pod]] = {}
    for pod in sorted(pods, key=lambda pod: pod.metadata.name):
        key = (pod.metadata.namespace, pod.metadata.label(POD_OF) or "")
        of_clique.setdefault(key, []).append(pod)
    by_set: dict[Key, list[Key]] = {}
    for key in found:
        domain, want = world.domains.get(key), wants.get(key)
        if want is not None:
            sets = {want.domain.pcs, *(loser.domain.pcs for loser in want.losers)}
        else:
            sets = {(domain and domain.metadata.label(PCS_NAME[0])) or ""}
        for name in sets:
            by_set.setdefault((key[0], name), []).append(key)
    lines: list[str] = []
    for (namespace, pcs), keys in sorted(by_set.items()):
        if only and pcs != only:
            continue
        gone = "" if (namespace, pcs) in world.sets else " (not there)"
        lines.append(f"PodCliqueSet {shown(namespace)}/{shown(pcs)}{gone}")
        here = {name: claim for (space, name), claim in claims.items() if space == namespace}
        for key in keys:
            domain = world.domains.get(key)
            lines += _domain(key, found[key], domain)
            if (want := wants.get(key)) is None:
                continue
            own = [pod for one in want.members for pod in of_clique.get((namespace, one.name), ())]
            lines.append(f"    One fabric: {one_fabric(domain, own, here, cliques)}")
            for member in (*want.members, *want.losers):
                lines.append(f"    PodClique {member.name}")
                if member in want.losers:
                    lines[-1] += (
                        f", BLOCKED: it has the claim of this domain, and is of {member.domain}; delete or rename one of them"
                    )
                lines += [
                    f"      {_pod(pod)}" for pod in of_clique.get((namespace, member.name), ())
                ]
    lines += [
        f"ignored  PodClique {shown(one.namespace)}/{shown(one.name)}: {one.why}"
        for one in world.members()[1]
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
