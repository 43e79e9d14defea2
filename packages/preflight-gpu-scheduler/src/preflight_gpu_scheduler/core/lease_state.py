"""Whose a lease is: (lease, what is seen of its holder) → what may be done with it.

Every word but RESERVED and OVER is final: whatever happens to the pod afterwards, FREE stays free
and VOID stays void, so an old view that says so may be acted upon. What is *not* final, the absence
of a pod, counts only when it was read from the API server just now: a mirror that is behind may
show a pod's predecessor of the same name, or nothing yet.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from preflight_gpu_scheduler.api.types import Lease, Pod

__all__ = ["FirstSeen", "Holder", "LeaseState", "is_own", "judge", "reason"]


class LeaseState(Enum):
    """The state of a lease; who may do what with it is said beside each."""

    HELD = "held"
    """Its pod is bound to this node with this GPU, and has not ended: it ends with the pod, not
    with time.
    """
    RESERVED = "reserved"
    """Its pod is unbound, its number current, its time not over."""
    OVER = "over"
    """As RESERVED, and its time is over: the controller takes it back, behind the fence."""
    VOID = "void"
    """A reservation that was taken back: no Binding can carry it any more. Busy for everybody until
    the controller has deleted it.
    """
    FREE = "free"
    """Its pod will never run with this GPU (again): whoever wants it deletes it."""
    UNSURE = "unsure"
    """Free if the pod is really not there: read it from the API server, and judge again."""
    LINGERING = "lingering"
    """Its pod vanished, and nobody has seen its containers end: busy until the node's agent has
    reported the GPU without them, or the time for that is over.
    """
    FOREIGN = "foreign"
    """Not made by this system: busy, and nobody's to delete. One that was, and that somebody has
    changed so that it names no holder, is FREE when its time is over.
    """


class Holder(msgspec.Struct, frozen=True):
    """The pod of the holder's name, or None. ``live``: read from the API server after the lease
    was, not from a mirror. ``lingering``: leases, by name, of pods that had this name and vanished,
    and whose containers may still run.
    """

    pod: Pod | None
    live: bool = False
    lingering: frozenset[str] = frozenset()


def judge(lease: Lease, holder: Holder, *, over: bool = False) -> LeaseState:
    """``over``: whether this observer has seen the lease unchanged for longer than it lasts (see
    :class:`FirstSeen`).
    """
    gpu, pod = lease.gpu, holder.pod
    if not lease.ours or gpu is None:
        return LeaseState.FREE if over and lease.locks else LeaseState.FOREIGN
    if pod is None or pod.metadata.uid != lease.holder:
        if lease.metadata.name in holder.lingering:
            return LeaseState.LINGERING
        return LeaseState.FREE if holder.live else LeaseState.UNSURE
    if pod.ended:
        return LeaseState.FREE
    if pod.bound:
        return LeaseState.HELD if _has(pod, *gpu) else LeaseState.FREE
    if pod.deleting:  # nothing binds it any more
        return LeaseState.FREE
    if lease.number < pod.number:
        return LeaseState.VOID
    return LeaseState.OVER if over else LeaseState.RESERVED


def _has(pod: Pod, node: str, gpu: int) -> bool:
    """A Binding names the GPUs it is for, and is stored once: a lease beside them is left over from
    another attempt. Where no Binding of ours is seen the lease is kept: that costs a GPU until the
    pod ends, and the other way could give it twice."""
    if pod.spec.node_name != node:
        return False
    allocated = pod.allocated
    return allocated is None or allocated.node != node or gpu in allocated.ids


def reason(lease: Lease, holder: Holder) -> str:
    """Why a lease that was FREE, UNSURE or VOID was collected (COLLECTED_REASONS): its pod
    is gone (or another one of that name), has ended, is bound to other GPUs, is being deleted
    unbound; or its reservation was taken back.
    """
    pod = holder.pod
    if pod is None or pod.metadata.uid != lease.holder:
        return "gone"
    if pod.ended:
        return "ended"
    if pod.bound:
        return "elsewhere"
    return "deleted" if pod.deleting else "void"


def is_own(lease: Lease, pod: Pod) -> bool:
    """Tell whether ``pod``, in this version, may go on with the lease. A lease of an earlier number
    was taken back.
    """
    return lease.ours and lease.holder == pod.metadata.uid and lease.number == pod.number


class FirstSeen:
    """Since when each key has had its value, by one observer's own clock: nobody compares clocks of
    two machines.

    For a lease the value is (uid, renewTime), for a node's status its ``observedTime``.
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[Any, float]] = {}

    def note(self, key: str, value: Any, now: float) -> float:
        """Seconds for which ``key`` has had ``value``; 0 when that is new."""
        known = self._since.get(key)
        if known is None or known[0] != value:
            self._since[key] = (value, now)
            return 0.0
        return max(0.0, now - known[1])

    def forget(self, key: str) -> None:
        """The next :meth:`note` of ``key`` is the first again."""
        self._since.pop(key, None)

    def __len__(self) -> int:
        return len(self._since)
