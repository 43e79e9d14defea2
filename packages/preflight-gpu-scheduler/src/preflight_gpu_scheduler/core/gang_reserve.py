"""Gangs all or nothing: their leases acquired over all nodes in sorted order, then each member
told; and when its binding may begin.

The members of a plan have a *first* one, and its Binding is the commit point. Until it is stored
nobody else of the plan is bound; once it is, nothing is taken back from the others. Binding and
fence compete for the same version of that one pod, so exactly one of them happens, and whoever
comes after, after any crash, finishes what was decided.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from preflight_gpu_scheduler.api.allocation import GangStart, Reserved
from preflight_gpu_scheduler.api.types import Lease, Pod
from preflight_gpu_scheduler.core.leases import Need, give_back, take
from preflight_gpu_scheduler.core.protocol import (
    Conflict,
    Look,
    Lost,
    ReservePod,
    Steps,
    Stored,
    only,
    read_pod,
)
from preflight_gpu_scheduler.core.reclaim import raise_number

__all__ = ["Assignment", "Reservation", "acquire", "may_bind", "plan_name", "tell"]

_TRIES = 3


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One member and its GPUs; ``uuids`` in the order of ``ids``."""

    pod: Pod
    node: str
    ids: tuple[int, ...]
    uuids: tuple[str, ...] = ()

    @property
    def needs(self) -> tuple[Need, ...]:
        """One for each GPU; without a UUID where those of the node are not all known."""
        named = self.uuids if len(self.uuids) == len(self.ids) else ("",) * len(self.ids)
        return tuple(
            Need(pod=self.pod, node=self.node, gpu=gpu, uuid=uuid)
            for gpu, uuid in zip(self.ids, named, strict=True)
        )


class Reservation(msgspec.Struct, frozen=True):
    """``why``: empty where all members hold their GPUs and know it; ``plan``: its name."""

    plan: str = ""
    why: str = ""


def plan_name(assignments: Iterable[Assignment]) -> str:
    """One for equal plans only: members with their numbers, and what each is to have."""
    said = sorted(
        f"{one.pod.metadata.uid} {one.pod.number} {one.node} {one.ids}" for one in assignments
    )
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


def acquire(assignments: Sequence[Assignment], look: Look, *, at_once: int = 1) -> Steps[str]:
    """The leases of all, or none: why not; empty where they are stored.

    ``at_once``: leases that are created side by side. With 1 the order is strictly sorted, and of
    two that compete for the same GPUs one always gets on.
    """
    needs = [need for one in assignments for need in one.needs]
    if len({need.name for need in needs}) != len(needs):
        return "the plan gives one GPU twice"
    taken = yield from take(needs, look, at_once)
    if taken.broken or taken.busy:
        yield from give_back(taken.created.values())
        return taken.broken or "other pods took the GPUs meanwhile"
    return ""


def tell(assignments: Sequence[Assignment], leases: Sequence[Lease]) -> Steps[Reservation]:
    """Write into each member what it has, the first one first. ``leases``: those of all, which are
    stored; where somebody cannot be told they are given back.
    """
    plan, first = plan_name(assignments), min(assignments, key=lambda one: one.pod.metadata.uid)
    told: list[Pod] = []
    for one in sorted(assignments, key=lambda one: one is not first):
        start = one.pod.start or GangStart()
        reserved = Reserved(
            number=one.pod.number,
            node=one.node,
            ids=tuple(sorted(one.ids)),
            plan=plan,
            members=len(assignments),
            first=first.pod.metadata.name,
            first_uid=first.pod.metadata.uid,
            start=start.start,
            need=start.need,
        )
        now = yield from _tell(one.pod, reserved)
        if not isinstance(now, Pod):
            untold = {a.pod.metadata.uid for a in assignments} - {pod.metadata.uid for pod in told}
            if now:  # what became of this one is not known
                untold.discard(one.pod.metadata.uid)
            yield from _undo(told, [lease for lease in leases if lease.holder in untold])
            return Reservation(why=f"member {one.pod.metadata.name} changed meanwhile")
        told.append(now)
    return Reservation(plan=plan)


def _tell(pod: Pod, reserved: Reserved) -> Steps[Pod | bool]:
    """The pod with its answer; else whether it may have one without our knowing."""
    uid, unknown = pod.metadata.uid, False
    for _ in range(_TRIES):
        answer = yield from only(ReservePod(pod=pod, reserved=reserved))
        if isinstance(answer, Stored) and isinstance(answer.found, Pod):
            return answer.found
        if not isinstance(answer, Conflict | Lost | Stored):
            return unknown
        unknown = unknown or not isinstance(answer, Conflict)
        found = yield from read_pod(pod.key)
        if not isinstance(found, Pod):
            return isinstance(found, Lost)
        if found.metadata.uid != uid or found.number != pod.number or found.ended:
            return False
        if (
            found.reserved == reserved
        ):  # before all else: its answer may have come late, and be bound already
            return found
        if found.bound:
            return True
        if found.deleting:
            return False
        pod = found
    return unknown


def _undo(told: Sequence[Pod], leases: Sequence[Lease]) -> Steps[None]:
    """Those that have an answer are fenced, the first one first, and their leases are void:
    collection deletes them. Those that have none have theirs deleted at once. A fence that does not
    hold, as the member changed meanwhile, is set by collection when the time is over."""
    for n, pod in enumerate(told):
        if pod.bound or (not (yield from raise_number(pod, pod.number)) and n == 0):
            break  # the others must not be fenced before the first one
    yield from give_back(leases)


def may_bind(pod: Pod, present: int, begun: bool) -> bool:
    """Whether a member that the scheduler has brought to ``bind`` is bound now. ``present``:
    members of its plan for which ``bind`` waits at this moment, this one among them; ``begun``:
    whether the plan's first member is bound.

    The whole gang has arrived when as many wait as the plan has members; the first one is bound
    first, and the others when it is.
    """
    reserved = pod.reserved
    if reserved is None:
        return False
    return begun or (pod.metadata.uid == reserved.first_uid and present >= reserved.members)
