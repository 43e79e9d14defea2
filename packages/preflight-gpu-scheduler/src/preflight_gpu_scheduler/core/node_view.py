"""From mirrored objects to what filter sees of a node: its usable GPUs, which of them could be had,
or why none is given here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from preflight_gpu_scheduler.api import messages
from preflight_gpu_scheduler.api.gpu_node_status import CONFLICT_DEVICE_PLUGIN, Inventory, assumed
from preflight_gpu_scheduler.api.types import Lease, Node, Pod
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.core import gpu_selection
from preflight_gpu_scheduler.core.gpu_selection import Topology
from preflight_gpu_scheduler.core.lease_state import LeaseState, is_own, judge
from preflight_gpu_scheduler.core.protocol import Look

__all__ = ["NodeView", "busy_ids", "known", "own_ids", "view"]


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node as a pod without leases finds it. ``free``: mask over ``slots``. ``blocked``: one of
    :mod:`~.api.messages` where no pod gets a GPU here at all, whatever is free."""

    slots: Topology = ()
    free: int = 0
    labels: Mapping[str, str] = {}
    blocked: str = ""


def busy_ids(
    leases: Iterable[Lease], look: Look, numbers: Mapping[str, int] | None = None
) -> frozenset[int]:
    """GPUs of one node whose leases cannot be taken over. Of a lease whose pod the mirror does not
    show, its taker asks the API server.

    ``numbers``: ids by UUID as the node's status has them now. A GPU that has got another id since
    its lease was made is busy under both: nobody who takes the new one meets that lease.
    """
    found = set()
    for lease in leases:
        if lease.gpu is None:
            # Not one GPU's by what it says; a create under its name fails, and the choice goes on
            # without it.
            continue
        pod, gpu = lease.pod, lease.gpu[1]
        state = LeaseState.FOREIGN if pod is None else judge(lease, look(pod))
        if state not in {LeaseState.FREE, LeaseState.UNSURE}:
            found.add(gpu)
        now = (numbers or {}).get(lease.uuid, gpu)
        if now != gpu and state is not LeaseState.FREE:
            found.add(now)
    return frozenset(found)


def own_ids(leases: Iterable[Lease], pod: Pod) -> Mapping[str, tuple[int, ...]]:
    """Ids by node of the leases with which ``pod``, in this version, may go on."""
    found: dict[str, list[int]] = {}
    for lease in leases:
        if (gpu := lease.gpu) is not None and is_own(lease, pod):
            found.setdefault(gpu[0], []).append(gpu[1])
    return {node: tuple(sorted(ids)) for node, ids in found.items()}


def known(found: Inventory | None, node: str, config: Config) -> Inventory | None:
    """What is to be believed of the GPUs of ``node``, of which this status was ``found``."""
    assume = found is None and config.missing_node_status == "assume16"
    return assumed(node) if assume else found


def view(
    node: Node | None,
    inventory: Inventory | None,
    busy: Collection[int],
    config: Config,
    *,
    over: Collection[str] = (),
    unlocked: bool = False,
    stale: bool = False,
) -> NodeView:
    """``busy``: ids with leases, those that pods have by their Bindings, and those that this
    process holds in memory. ``over``: uids of pods that are known to have ended, though the status
    may not say so yet. ``unlocked``: whether the lease of a GPU of a bound pod is missing.
    ``stale``: the status has not changed for too long; one that says no time at all, as written by
    hand, is never stale.
    """
    if node is None:
        return NodeView(blocked=messages.NODE_UNKNOWN)
    if inventory is None:
        return NodeView(blocked=messages.NO_STATUS)
    labels = node.metadata.labels or {}
    why = ""
    if inventory.problems:
        why = messages.STATUS_NOT_VALID
    elif stale and inventory.observed is not None:
        why = messages.STATUS_STALE
    elif inventory.reason:
        why = messages.GPUS_UNKNOWN
    elif inventory.conflicts and config.device_plugin == "refuse":
        why = messages.PLUGIN if CONFLICT_DEVICE_PLUGIN in inventory.conflicts else messages.DRIVER
    elif unlocked:
        why = messages.UNLOCKED
    slots = gpu_selection.topology(inventory.devices)
    # Whoever the agent sees has the GPU, whatever leases say; and a process on one that no pod of
    # ours was given: somebody works there whom no lease knows.
    used = {
        one.id
        for one in inventory.devices
        if set(one.in_use_by) - set(over) or (one.processes and not one.in_use_by)
    }
    taken = used | set(busy)
    free = gpu_selection.mask_of(slots, (slot.id for slot in slots if slot.id not in taken))
    return NodeView(slots=slots, free=free, labels=labels, blocked=why)
