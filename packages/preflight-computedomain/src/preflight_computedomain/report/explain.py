"""One ComputeDomain as a person wants to see it: its template, and of each claim where it is and
who uses it.

Pure.
"""

from __future__ import annotations

from preflight_kube.text import one_line

from preflight_computedomain.api.opaque_config import domain_of
from preflight_computedomain.api.types import ComputeDomain, UsedClaim
from preflight_computedomain.core.template import owner
from preflight_computedomain.report.model import ClusterObjects

__all__ = ["explain"]


def explain(seen: ClusterObjects, namespace: str, name: str) -> list[str]:
    """Lines for a person; none where there is no such ComputeDomain."""
    domain = next(
        (
            one
            for one in seen.domains
            if (one.metadata.namespace, one.metadata.name) == (namespace, name)
        ),
        None,
    )
    if domain is None:
        return []
    lines = [_head(domain), _template(seen, domain)]
    claims = [one for one in seen.claims if domain.metadata.uid in map(domain_of, one.configs)]
    lines += [f"  {_claim(seen, one)}" for one in sorted(claims, key=lambda one: one.metadata.name)]
    if not claims:
        lines.append("  no claim: no pod refers to the template yet")
    lines += [f"Not read: {one}" for one in seen.unread]
    return lines


def _head(domain: ComputeDomain) -> str:
    about = domain.metadata
    state = (
        "being deleted"
        if about.deletion_timestamp
        else domain.status.status or "not seen by the controller yet"
    )
    return f"ComputeDomain {about.namespace}/{about.name} ({about.uid}): {state}, mode {one_line(domain.spec.channel.allocation_mode, 200)}"


def _template(seen: ClusterObjects, domain: ComputeDomain) -> str:
    about, name = domain.metadata, domain.template
    there = next(
        (
            one
            for one in seen.templates
            if (one.metadata.namespace, one.metadata.name) == (about.namespace, name)
        ),
        None,
    )
    if there is None:
        state = "missing"
    elif owner(there) != about.uid:
        state = "belongs to something else, and is left alone; delete or rename it"
    else:
        state = "being deleted" if there.metadata.deletion_timestamp else "there"
    return f"ResourceClaimTemplate {name}: {state}"


def _claim(seen: ClusterObjects, claim: UsedClaim) -> str:
    pods = {one.metadata.uid: one for one in seen.pods}
    users = []
    for one in claim.status.reserved_for:
        pod = pods.get(one.uid)
        users.append(
            f"pod {one.name}"
            + (f" ({pod.status.phase} on {pod.spec.node_name})" if pod is not None else "")
        )
    where = (
        f"channel 0 of {', '.join(claim.nodes)}"
        if claim.nodes
        else "not allocated: the scheduler has found no node"
    )
    return f"claim {claim.metadata.name}: {where}; {', '.join(users) or 'used by no pod'}"
