"""What the controller writes besides leases: gates, capacity, nudges, the status of claims."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import heapify, heapreplace
from typing import Any, Final

from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.allocation import Allocation
from preflight_gpu_scheduler.api.claim import Claim
from preflight_gpu_scheduler.api.gpu_node_status import Inventory
from preflight_gpu_scheduler.api.types import Lease, Node, Pod
from preflight_gpu_scheduler.core.filter_prioritize import NodeView, own_ids
from preflight_gpu_scheduler.core.gpu_selection import choose

MAX_WOKEN: Final = 16


def opens(pod: Pod, claim: Claim | None) -> bool:
    """Tell whether a pod's gate goes: its claim is there, and its gang, if any, may start."""
    waits = bool(pod.claim) if claim is None else claim.gang is not None and pod.start is None
    return pod.gated and not waits


def capacity(inventory: Inventory, leased: Collection[int], *, given: bool = True) -> int:
    """GPUs that the scheduler may count on a node: the usable ones, unless none there is ``given``,
    and those that are not given any more but whose pod still runs, as it has counted these."""
    return sum((given and it.usable) or it.id in leased for it in inventory.devices)


def capacity_patch(node: Node, resource: str, wanted: int) -> dict[str, Any] | None:
    """A merge patch of `nodes/status`; None where it says so already, and where the kubelet has not
    written a capacity yet: of ours alone the API server would make its allocatable. An empty
    ``resource`` switches counting off.
    """
    capacity = node.status.capacity
    if not resource or capacity is None or str(capacity.get(resource)) == str(wanted):
        return None
    return {"status": {"capacity": {resource: str(wanted)}}}


def wake_unschedulable(
    waiting: Iterable[tuple[Pod, Claim]],
    freed: Mapping[str, int],
    *,
    most: int = MAX_WOKEN,
    again: bool = False,
) -> tuple[Pod, ...]:
    """The oldest waiting pods that could fit into what became free: ``freed`` GPUs by node. A pod
    of higher priority comes first. ``again``: those that were not woken for longest, each as if it
    were alone; who was before them may not fit for other reasons.
    """
    left = [(-count, node) for node, count in freed.items()]  # the one with most of them first
    heapify(left)
    chosen: list[Pod] = []

    def turn(item: tuple[Pod, Claim]) -> tuple[str, int, str, tuple[str, str]]:
        pod = item[0]
        last = pod.annotation(names.NUDGED_ANNOTATION) if again else ""
        return last, -(pod.spec.priority or 0), pod.metadata.creation_timestamp or "", pod.key

    for pod, claim in sorted(waiting, key=turn):
        gathers = claim.gang is not None and pod.reserved is None
        if pod.bound or pod.gated or pod.ended or pod.deleting or gathers:
            continue
        if len(chosen) == most or not left or -left[0][0] < claim.count:
            continue
        if not again:
            heapreplace(left, (left[0][0] + claim.count, left[0][1]))
        chosen.append(pod)
    return tuple(chosen)


MOST_SHOWN: Final = 100


def could_ever(claim: Claim, nodes: Iterable[NodeView]) -> bool:
    """Tell whether some node could meet the claim with all its GPUs free, and none sick."""
    wanted = claim.spec.selector.match_labels
    fit = (node.well or node.slots for node in nodes if not node.other(wanted))
    kinds = {id(slots): slots for slots in fit}.values()
    return any(not choose(slots, (1 << len(slots)) - 1, claim.want).why for slots in kinds)


def status(
    claim: Claim,
    pods: Iterable[Pod],
    held_by: Callable[[str], Iterable[Lease]],
    *,
    possible: bool = True,
) -> dict[str, Any]:
    """``pods``: those that name the claim; ``held_by``: the leases of each, by its uid.
    ``possible``: :func:`could_ever`."""
    living = sorted((pod for pod in pods if not pod.ended), key=lambda pod: pod.name)
    allocations = [shown for pod in living if (shown := _allocation(pod, held_by)) is not None]
    bound, total = sum(allocation["phase"] == "Bound" for allocation in allocations), len(living)
    message = f"{bound} of {total} pods are bound" if total else "no pod names this claim"
    never = f"no node that is known could ever give {claim.count} GPUs as this claim wants them"
    phase = "Bound" if bound == total else "Reserved"
    if not allocations:
        phase, message = ("Pending", message) if possible else ("Failed", never)
    status: dict[str, Any] = {
        "phase": phase,
        "pods": total,
        "allocations": allocations[:MOST_SHOWN],
        "message": message,
    }
    if len(allocations) == 1:
        node, ids = allocations[0]["nodeName"], allocations[0]["gpuIds"]
        allocated = str(Allocation(node, tuple(ids)))
        status |= {"nodeName": node, "gpuIds": ids, "allocated": allocated}
    return status


def _allocation(pod: Pod, held_by: Callable[[str], Iterable[Lease]]) -> dict[str, Any] | None:
    has, phase = pod.allocated, "Bound"
    if not pod.bound:
        own, phase = own_ids(held_by(pod.uid), pod), "Reserved"
        has = Allocation(*min(own.items())) if own else None
    if has is None:
        return None
    about = {"pod": pod.name, "podUID": pod.uid}
    return {**about, "nodeName": has.node, "gpuIds": list(has.ids), "phase": phase}
