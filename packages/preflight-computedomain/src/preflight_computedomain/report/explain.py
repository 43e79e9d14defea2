"""One ComputeDomain as a person wants to see it: its template, claims and who uses them. Pure."""

from __future__ import annotations

from preflight_kube.text import one_line

from preflight_computedomain.api.opaque_config import domain_of
from preflight_computedomain.api.types import ComputeDomain, UsedClaim
from preflight_computedomain.core.template import owner
from preflight_computedomain.report.model import ClusterObjects


def explain(seen: ClusterObjects, namespace: str, name: str) -> list[str]:
    """Lines for a person; none where there is no such ComputeDomain."""
    domains = [item for item in seen.domains if item.metadata.place == (namespace, name)]
    if not domains:
        return []
    [domain] = domains
    claims = [item for item in seen.claims if domain.metadata.uid in map(domain_of, item.configs)]
    lines = [f"  {_claim(seen, item)}" for item in sorted(claims, key=lambda c: c.metadata.name)]
    return [
        _head(domain),
        _template(seen, domain),
        *(lines or ["  no claim: no pod refers to the template yet"]),
        *(f"Not read: {item}" for item in seen.unread),
    ]


def _head(domain: ComputeDomain) -> str:
    about, state = domain.metadata, domain.status.status or "not seen by the controller yet"
    state = "being deleted" if about.deletion_timestamp else state
    mode = one_line(domain.spec.channel.allocation_mode, 200)
    return f"ComputeDomain {about} ({about.uid}): {state}, mode {mode}"


def _template(seen: ClusterObjects, domain: ComputeDomain) -> str:
    about = domain.metadata
    templates = {item.metadata.place: item for item in seen.templates}
    there = templates.get((about.namespace, domain.template))
    if there is None:
        state = "missing"
    elif not (of := owner(there)):
        state = "belongs to something else, and is left alone; delete or rename it"
    elif of != about.uid:
        others = [str(item.metadata) for item in seen.domains if item.metadata.uid == of]
        whose = next(iter(others), f"with the uid {one_line(of, 80)}")
        state = f"is that of the ComputeDomain {whose}, and is left alone; make this one anew with another spec.channel.resourceClaimTemplate.name"
    else:
        state = "being deleted" if there.metadata.deletion_timestamp else "there"
    return f"ResourceClaimTemplate {domain.template}: {state}"


def _claim(seen: ClusterObjects, claim: UsedClaim) -> str:
    pods = {pod.metadata.uid: pod for pod in seen.pods}
    users = []
    for user in claim.status.reserved_for:
        pod = pods.get(user.uid)
        where = "" if pod is None else f" ({pod.status.phase} on {pod.spec.node_name})"
        users.append(f"pod {user.name}{where}")
    nodes = ", ".join(claim.nodes)
    where = f"channel 0 of {nodes}" if nodes else "not allocated: the scheduler has found no node"
    return f"claim {claim.metadata.name}: {where}; {', '.join(users) or 'used by no pod'}"
