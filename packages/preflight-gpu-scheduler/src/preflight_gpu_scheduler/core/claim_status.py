"""A GpuClaim's status: what its pods have, as people and `kubectl get gclaim` see it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from preflight_gpu_scheduler.api.claim import Claim
from preflight_gpu_scheduler.api.types import Lease, Pod
from preflight_gpu_scheduler.core.gpu_selection import Topology, choose

__all__ = ["could_ever", "status"]

MOST_SHOWN: Final = 100


def could_ever(claim: Claim, nodes: Iterable[tuple[Topology, dict[str, str]]]) -> bool:
    """Whether some node, with all its usable GPUs free, could meet the claim. ``nodes``: topology
    and labels.
    """
    wanted = claim.spec.selector.match_labels
    return any(
        not choose(slots, (1 << len(slots)) - 1, claim.want).why
        for slots, labels in nodes
        if all(labels.get(key) == value for key, value in wanted.items())
    )


def status(
    claim: Claim, pods: Iterable[Pod], leases: Collection[Lease], *, possible: bool = True
) -> dict[str, Any]:
    """``pods``: living ones that name the claim; ``leases``: theirs. ``possible``:
    :func:`could_ever` of the nodes that are known.
    """
    by_holder: dict[str, list[Lease]] = {}
    for lease in leases:
        by_holder.setdefault(lease.holder, []).append(lease)
    living = sorted((pod for pod in pods if not pod.ended), key=lambda pod: pod.metadata.name)
    every = [_allocation(pod, by_holder.get(pod.metadata.uid, [])) for pod in living]
    allocations = [allocation for allocation in every if allocation is not None]
    bound, total = sum(one["phase"] == "Bound" for one in allocations), len(living)
    if allocations:
        phase = "Bound" if bound == total else "Reserved"
    else:
        phase = "Pending" if possible else "Failed"
    status: dict[str, Any] = {
        "phase": phase,
        "pods": total,
        "allocations": allocations[:MOST_SHOWN],
        "message": _message(claim, phase, bound, total),
    }
    if len(allocations) == 1:
        node, ids = allocations[0]["nodeName"], allocations[0]["gpuIds"]
        allocated = f"{node}:{','.join(map(str, ids))}"
        status |= {"nodeName": node, "gpuIds": ids, "allocated": allocated}
    return status


def _allocation(pod: Pod, leases: list[Lease]) -> dict[str, Any] | None:
    allocated = pod.allocated if pod.bound else None
    if allocated is not None:
        node, ids, phase = allocated.node, list(allocated.ids), "Bound"
    else:
        places = sorted(
            gpu for one in leases if one.number == pod.number and (gpu := one.gpu) is not None
        )
        if pod.bound or not places:
            return None
        node, phase = places[0][0], "Reserved"
        ids = [gpu for where, gpu in places if where == node]
    return {
        "pod": pod.metadata.name,
        "podUID": pod.metadata.uid,
        "nodeName": node,
        "gpuIds": ids,
        "phase": phase,
    }


def _message(claim: Claim, phase: str, bound: int, total: int) -> str:
    if phase == "Failed":
        return f"no node that is known could ever give {claim.spec.devices.count} GPUs as this claim wants them"
    return f"{bound} of {total} pods are bound" if total else "no pod names this claim"
