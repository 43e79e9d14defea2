"""What becomes of one lease: deleted when it is free or void, taken back behind the fence when its
time is over. The controller's steps.

The fence: a scheduler that was stopped may wake up and bind a pod with GPUs that have been given
away. So before leases of a living, unbound pod are deleted, the pod's number is raised in the very
version in which it was seen unbound. A Binding prepared before that gets 409; one prepared after it
knows that those leases are void.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from preflight_gpu_scheduler.api.allocation import Reserved
from preflight_gpu_scheduler.api.types import Lease, Pod
from preflight_gpu_scheduler.core.lease_state import LeaseState, judge
from preflight_gpu_scheduler.core.leases import give_back, look_again
from preflight_gpu_scheduler.core.protocol import (
    Look,
    Lost,
    RaiseReclaimed,
    Steps,
    Stored,
    only,
    read_pod,
)

__all__ = ["Done", "collect", "raise_number"]


class Done(Enum):
    """What came of a lease; KEPT stands for now, and AGAIN for a try that has to be repeated."""

    KEPT = "kept"
    COLLECTED = "collected"
    RECLAIMED = "reclaimed"
    AGAIN = "again"


def collect(lease: Lease, siblings: Iterable[Lease], look: Look, *, over: bool) -> Steps[Done]:
    """``siblings``: the other leases of the same holder that a mirror shows; those that a raised
    number makes void go with it.
    """
    sight = yield from look_again(lease, look)
    if sight is None:
        return Done.AGAIN
    state = judge(lease, sight, over=over)
    if state in {LeaseState.FREE, LeaseState.VOID}:
        left = yield from give_back([lease])
        return Done.AGAIN if left else Done.COLLECTED
    if state is not LeaseState.OVER or sight.pod is None:
        return Done.KEPT
    return (yield from _reclaim(lease, tuple(siblings), sight.pod, look))


def _reclaim(lease: Lease, siblings: tuple[Lease, ...], pod: Pod, look: Look) -> Steps[Done]:
    reserved = pod.reserved
    if reserved is not None and reserved.first_uid != pod.metadata.uid:
        kept = yield from _dissolve(pod, reserved, look)
        if kept is not None:
            return kept
    number = max(pod.number, lease.number)
    if not (yield from raise_number(pod, number)):
        return Done.AGAIN
    mine = [
        one
        for one in siblings
        if one.ours and one.holder == pod.metadata.uid and one.number <= number
    ]
    by_name = {one.metadata.name: one for one in (*mine, lease)}
    left = yield from give_back(by_name.values())
    return Done.AGAIN if left else Done.RECLAIMED


def _dissolve(pod: Pod, reserved: Reserved, look: Look) -> Steps[Done | None]:
    """Before a member's reservation is taken back, that of the first one is: on that pod's version
    Binding and fence exclude each other.

    None where the member may be reclaimed; KEPT where the gang is being bound: then its members
    keep what they have.
    """
    key = (pod.metadata.namespace, reserved.first)
    first = look(key).pod
    if first is None or not _settled(first, reserved):
        # A mirror may be behind: at a time before the first one was reserved. It is reserved before
        # all others.
        answer = yield from read_pod(key)
        if not isinstance(answer, Pod):
            return Done.AGAIN if isinstance(answer, Lost) else None
        first = answer
    if first.metadata.uid != reserved.first_uid or first.ended:
        return None
    if first.bound:
        return Done.KEPT
    planned = first.reserved
    if first.deleting or planned is None or planned.plan != reserved.plan:
        return None
    return None if (yield from raise_number(first, first.number)) else Done.AGAIN


def _settled(first: Pod, reserved: Reserved) -> bool:
    """Whether this view of the first member, however old, says enough."""
    if first.metadata.uid != reserved.first_uid:
        return False
    planned = first.reserved
    return (
        first.bound
        or first.ended
        or first.deleting
        or (planned is not None and planned.plan == reserved.plan)
    )


def raise_number(pod: Pod, number: int) -> Steps[bool]:
    """Whether the pod, unbound in this very version, now counts ``number`` reservations as taken
    back.
    """
    answer = yield from only(RaiseReclaimed(pod=pod, number=number))
    return isinstance(answer, Stored)
