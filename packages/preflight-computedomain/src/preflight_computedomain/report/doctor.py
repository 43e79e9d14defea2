"""What is wrong about ComputeDomains in a cluster, from what was read of it, and what to do about
it.

Pure. Nothing is said of IMEX: nobody here asks it.
"""

from __future__ import annotations

from typing import Final

from preflight_kube.text import one_line

from preflight_computedomain.api.names import DAEMON_DEVICE, DEVICE, FINALIZER, LABEL, fits_as_name
from preflight_computedomain.api.opaque_config import domain_of
from preflight_computedomain.core.sharing import Sharing
from preflight_computedomain.core.template import owner
from preflight_computedomain.report.model import ClusterObjects, is_daemon_template

__all__ = ["RUNBOOK", "before_uninstall", "report"]

CLIQUE_LABEL: Final = "nvidia.com/gpu.clique"
"""GPU feature discovery gives it to nodes whose GPUs are in an NVLink clique."""

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
    parts = {
        "Not read, so nothing is said of it": seen.unread,
        "Leftovers of driver-managed mode (remove them; see --runbook)": _leftovers(seen),
        "Nodes": _nodes(seen),
        "ComputeDomains": _domains(seen),
        "NVLink cliques with jobs that reach each other's memory (run one ComputeDomain at a time)": _shared(
            seen
        ),
        "Claims whose ComputeDomain has gone (delete their pods)": _stale(seen),
    }
    lines: list[str] = []
    for heading, found in parts.items():
        if found:
            lines += [f"{heading}:", *(f"  {one}" for one in found), ""]
    sound = not lines
    offered = sum(any(_name(one) == DEVICE for one in each.spec.devices) for each in seen.slices)
    lines.append(
        f"{len(seen.domains)} ComputeDomains; {offered} nodes offer {DEVICE}; {'no problem found' if sound else 'see above'}."
    )
    return lines, sound


def before_uninstall(seen: ClusterObjects) -> tuple[list[str], bool]:
    """What would never end once controller and plugins are gone, and whether there is nothing."""
    held = [
        f"ComputeDomain {one.metadata.namespace}/{one.metadata.name}: delete it, and wait until it is gone"
        for one in seen.domains
    ]
    held += [
        f"ResourceClaimTemplate {one.metadata.namespace}/{one.metadata.name} has the finalizer {FINALIZER}: delete its ComputeDomain"
        for one in seen.templates
        if FINALIZER in one.metadata.finalizers
    ]
    held += [
        f"ResourceClaim {one.metadata.namespace}/{one.metadata.name} on {', '.join(one.nodes)}: delete its pod, and wait until it is gone"
        for one in seen.claims
        if one.nodes
    ]
    lines = [f"Not read: {one}" for one in seen.unread] + sorted(held)
    if lines:
        return [*lines, "Do not uninstall yet."], False
    return ["Nothing is held: `helm uninstall` leaves nothing behind that cannot be deleted."], True


def _leftovers(seen: ClusterObjects) -> list[str]:
    found = [f"DaemonSet {one.metadata.namespace}/{one.metadata.name}" for one in seen.daemons]
    found += [
        f"ResourceClaimTemplate {one.metadata.namespace}/{one.metadata.name} (a daemon's)"
        for one in seen.templates
        if is_daemon_template(one)
    ]
    found += [
        f"ComputeDomainClique {one.metadata.namespace}/{one.metadata.name}" for one in seen.cliques
    ]
    found += [
        f"label {LABEL} on node {one.metadata.name}"
        for one in seen.nodes
        if LABEL in one.metadata.labels
    ]
    return sorted(found)


def _nodes(seen: ClusterObjects) -> list[str]:
    found = [
        f"ResourceSlice {one.metadata.name} offers {DAEMON_DEVICE}: a plugin of driver-managed mode has written it; replace that plugin"
        for one in seen.slices
        if any(_name(each) == DAEMON_DEVICE for each in one.spec.devices)
    ]
    offered = {one.spec.node_name for one in seen.slices}
    missing = {
        one.metadata.name: "is in an NVLink clique, and has neither a ResourceSlice nor a plugin: is it among the nodes of the DaemonSet?"
        for one in seen.nodes
        if one.metadata.labels.get(CLIQUE_LABEL)
    }
    missing |= {
        one.spec.node_name: f"has no ResourceSlice: look at the log of its plugin, pod {one.metadata.namespace}/{one.metadata.name} "
        f"({one.status.phase or 'not started'})"
        for one in seen.plugins
        if one.spec.node_name
    }
    found += [f"{node} {what}" for node, what in missing.items() if node not in offered]
    return sorted(found)


def _domains(seen: ClusterObjects) -> list[str]:
    found = []
    templates = {(one.metadata.namespace, one.metadata.name): one for one in seen.templates}
    for one in seen.domains:
        about = one.metadata
        name = f"{about.namespace}/{about.name}"
        there = templates.get((about.namespace, one.template))
        if one.spec.channel.allocation_mode == "All":
            found.append(
                f"{name} has allocationMode All: pods with its claim do not start; make it anew with Single"
            )
        if about.deletion_timestamp:
            found.append(
                f"{name} is being deleted, and held by {', '.join(about.finalizers) or 'nothing'}"
            )
        elif not fits_as_name(one.template):
            found.append(
                f"{name} asks for a ResourceClaimTemplate {one_line(one.template, 80)!r}, which cannot be an object's name; make it anew"
            )
        elif there is not None and owner(there) != about.uid:
            found.append(
                f"{name} cannot have its ResourceClaimTemplate {one.template}, which belongs to something else"
            )
        elif one.status.status != "Ready":
            found.append(f"{name} is not Ready: is compute-domain-controller running?")
    return sorted(found)


def _shared(seen: ClusterObjects) -> list[str]:
    sharing = Sharing()
    for node in seen.nodes:
        sharing.node(node.metadata.name, node.metadata.labels.get(CLIQUE_LABEL, ""))
    for slice_ in seen.slices:
        sharing.slice(slice_)
    for claim in seen.claims:
        sharing.claim(claim)
    names = {
        one.metadata.uid: f"{one.metadata.namespace}/{one.metadata.name}" for one in seen.domains
    }
    return [
        f"{one_line(clique, 64)}: {', '.join(sorted(names.get(uid, f'one that has been deleted ({one_line(uid, 80)})') for uid in uids))}"
        for clique, uids in sharing.shared().items()
    ]


def _stale(seen: ClusterObjects) -> list[str]:
    known = {(one.metadata.namespace, one.metadata.uid) for one in seen.domains}
    found = []
    for one in seen.claims:
        uids = {uid for uid in map(domain_of, one.configs) if uid}
        about = one.metadata
        if uids and one.nodes and not any((about.namespace, uid) in known for uid in uids):
            found.append(f"{about.namespace}/{about.name} on {', '.join(one.nodes)}")
    return sorted(found)


def _name(device: object) -> str:
    return str(device.get("name", "")) if isinstance(device, dict) else ""
