"""Problems of ComputeDomains in a cluster, and what to do about them; and one of them in full.
Pure; nobody asks IMEX.
"""

from __future__ import annotations

from typing import Final

from preflight_kube.text import one_line

from preflight_computedomain.api import names
from preflight_computedomain.api.opaque_config import domain_of
from preflight_computedomain.api.types import CLIQUE_LABEL, ComputeDomain, Slice, UsedClaim
from preflight_computedomain.core.sharing import Sharing
from preflight_computedomain.core.template import owner
from preflight_computedomain.report.live import ClusterObjects

_SHARED: Final = (
    "NVLink cliques with jobs that reach each other's memory (run one ComputeDomain at a time)"
)
RUNBOOK: Final = """How to change between driver-managed and host-managed IMEX:

  1. Drain the workloads: delete the pods whose claims come from a ComputeDomain.
  2. Delete all ComputeDomains:  kubectl delete computedomains --all -A
  3. Change the mode: for host-managed, start nvidia-imex on the hosts, with the same nodes_config.cfg on all nodes of a domain, switch NVIDIA's
     own part off (resources.computeDomains.enabled=false of its chart), and install this chart; for driver-managed, the other way round, with
     nvidia-imex stopped and masked.
  4. Remove what the other mode has left (this command lists it); neither mode adopts or removes it.
  5. Make the ComputeDomains and the pods anew.

Before `helm uninstall`: steps 1 and 2, while controller and plugins still run. Without the controller a ComputeDomain and its namespace cannot be
deleted (its finalizer stays), and without the plugin a pod that has a claim cannot end. `doctor --before-uninstall` says what is left.
"""


def report(seen: ClusterObjects) -> tuple[list[str], bool]:
    """Lines for a person, and whether all is well."""
    if why := _not_ours(seen):
        return [f"{why}, and no pod of this plugin is there: nothing of it is judged."], True
    parts = {
        "Not read, so nothing is said of it": seen.unread,
        "Leftovers of driver-managed mode (remove them; see --runbook)": _leftovers(seen),
        "Nodes": _nodes(seen),
        "ComputeDomains": _domains(seen),
        _SHARED: _shared(seen),
        "Claims whose ComputeDomain has gone (delete their pods)": _stale(seen),
    }
    lines: list[str] = []
    for heading, problems in parts.items():
        if problems:
            lines += [f"{heading}:", *(f"  {line}" for line in problems), ""]
    sound = not lines
    offered = sum(_offers(item, names.DEVICE) for item in seen.slices)
    lines.append(
        f"{len(seen.domains)} ComputeDomains; {offered} nodes offer {names.DEVICE}; {'no problem found' if sound else 'see above'}."
    )
    return lines, sound


def before_uninstall(seen: ClusterObjects) -> tuple[list[str], bool]:
    """The objects that would never end without the programs, and whether there is none."""
    held = [
        *(
            f"ComputeDomain {item.metadata}: delete it, and wait until it is gone"
            for item in seen.domains
        ),
        *(
            f"ResourceClaimTemplate {item.metadata} has the finalizer {names.FINALIZER}: delete its ComputeDomain"
            for item in seen.templates
            if names.FINALIZER in item.metadata.finalizers
        ),
        *(
            f"ResourceClaim {item.metadata} on {', '.join(item.nodes)}: delete its pod, and wait until it is gone"
            for item in seen.claims
            if item.nodes
        ),
    ]
    lines = [f"Not read: {item}" for item in seen.unread] + sorted(held)
    if lines:
        return [*lines, "Do not uninstall yet."], False
    return ["Nothing is held: `helm uninstall` leaves nothing behind that cannot be deleted."], True


def _not_ours(seen: ClusterObjects) -> str:
    """Why a cluster without our plugin needs none; empty where that is not known."""
    if seen.plugins or seen.unread:
        return ""
    if not seen.served:
        return "The definition of ComputeDomain is not installed"
    driven = any(_offers(item, names.DAEMON_DEVICE) for item in seen.slices)
    return "NVIDIA's own driver manages IMEX here" if driven else ""


def _leftovers(seen: ClusterObjects) -> list[str]:
    daemons = [
        item
        for item in seen.templates
        if item.metadata.labels.get(names.TARGET_LABEL) == names.DAEMON
    ]
    nodes = [item for item in seen.nodes if names.LABEL in item.metadata.labels]
    return sorted(
        [
            *(f"DaemonSet {item.metadata}" for item in seen.daemons),
            *(f"ResourceClaimTemplate {item.metadata} (a daemon's)" for item in daemons),
            *(f"ComputeDomainClique {item.metadata}" for item in seen.cliques),
            *(f"label {names.LABEL} on node {item.metadata}" for item in nodes),
        ]
    )


def _nodes(seen: ClusterObjects) -> list[str]:
    wrong = [
        f"ResourceSlice {item.metadata} offers {names.DAEMON_DEVICE}: a plugin of driver-managed mode has written it; replace that plugin"
        for item in seen.slices
        if _offers(item, names.DAEMON_DEVICE)
    ]
    missing = {
        item.metadata.name: "is in an NVLink clique, and has neither a ResourceSlice nor a plugin: is it among the nodes of the DaemonSet?"
        for item in seen.nodes
        if item.metadata.labels.get(CLIQUE_LABEL)
    } | {
        pod.spec.node_name: f"has no ResourceSlice: look at the log of its plugin, pod {pod.metadata} ({pod.status.phase or 'not started'})"
        for pod in seen.plugins
        if pod.spec.node_name
    }
    offered = {item.spec.node_name for item in seen.slices}
    return sorted(
        [*wrong, *(f"{node} {what}" for node, what in missing.items() if node not in offered)]
    )


def _domains(seen: ClusterObjects) -> list[str]:
    problems = []
    templates = {item.metadata.place: item for item in seen.templates}
    for domain in seen.domains:
        about, wanted = domain.metadata, domain.template
        there = templates.get((about.namespace, wanted))
        if domain.spec.channel.allocation_mode == "All":
            problems.append(
                f"{about} has allocationMode All: pods with its claim do not start; make it anew with Single"
            )
        if about.deletion_timestamp:
            holders = ", ".join(about.finalizers) or "nothing"
            problems.append(f"{about} is being deleted, and held by {holders}")
        elif not names.fits_as_name(wanted):
            problems.append(
                f"{about} asks for a ResourceClaimTemplate {one_line(wanted, 80)!r}, which cannot be an object's name; make it anew"
            )
        elif there is not None and owner(there) != about.uid:
            problems.append(
                f"{about} cannot have its ResourceClaimTemplate {wanted}, which belongs to something else"
            )
        elif domain.status.status != "Ready":
            problems.append(f"{about} is not Ready: is compute-domain-controller running?")
    return sorted(problems)


def _shared(seen: ClusterObjects) -> list[str]:
    homes = {domain.metadata.uid: domain.metadata.namespace for domain in seen.domains}
    sharing = Sharing(lambda uid: homes.get(uid, ""))
    for node in seen.nodes:
        sharing.node(node.metadata.name, node.metadata.labels.get(CLIQUE_LABEL, ""))
    for item in seen.slices:
        sharing.slice(item)
    for claim in seen.claims:
        sharing.claim(claim)
    places = {domain.metadata.uid: str(domain.metadata) for domain in seen.domains}

    def shown(uid: str) -> str:
        return places.get(uid, f"one that has been deleted ({one_line(uid, 80)})")

    return [
        f"{one_line(clique, 64)}: {', '.join(sorted(map(shown, uids)))}"
        for clique, uids in sharing.shared().items()
    ]


def _stale(seen: ClusterObjects) -> list[str]:
    known = {(domain.metadata.namespace, domain.metadata.uid) for domain in seen.domains}
    stale = []
    for claim in seen.claims:
        about = claim.metadata
        theirs = {(about.namespace, uid) for uid in map(domain_of, claim.configs) if uid}
        if theirs and claim.nodes and not theirs & known:
            stale.append(f"{about} on {', '.join(claim.nodes)}")
    return sorted(stale)


def _offers(item: Slice, device: str) -> bool:
    return any(isinstance(each, dict) and each.get("name") == device for each in item.spec.devices)


# --- one ComputeDomain: its template, claims and who uses them


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
