"""All of some GPUs' leases, or none: acquire, take over what is free by the table, adopt what is
one's own, give back what one made.

Whoever goes on with a lease that it did not create itself *writes* it first. Without that write two
attempts for one pod could undo each other: one gives back what it created while the other, having
only read it, binds the pod with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.types import Lease, Pod
from preflight_gpu_scheduler.core.lease_state import LeaseState, Sight, is_own, judge
from preflight_gpu_scheduler.core.protocol import (
    AdoptLease,
    Answer,
    Conflict,
    CreateLease,
    DeleteLease,
    Exists,
    Look,
    Lost,
    Missing,
    ReadLease,
    Refused,
    Steps,
    Stored,
    only,
    read_pod,
)

__all__ = ["Need", "Taken", "creation", "give_back", "look_again", "relock", "take"]

_TRIES = 3


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU that ``pod``, in this very version, is to have. ``known``: its lease where a mirror
    shows one of the pod's own.
    """

    pod: Pod
    node: str
    gpu: int
    uuid: str = ""
    known: Lease | None = None

    @property
    def name(self) -> str:
        """Of the Lease that locks this GPU."""
        return names.lease_name(self.node, self.gpu)


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """``created``: leases that this attempt made and nobody else has written since, as far as it
    knows, by name; ``adopted``: names of the pod's own that were there. ``busy``: needs that
    somebody else has. ``broken``: why nothing more can be tried now, empty where it can."""

    created: Mapping[str, Lease] = {}
    adopted: frozenset[str] = frozenset()
    busy: tuple[Need, ...] = ()
    broken: str = ""


def creation(need: Need) -> CreateLease:
    """The request that makes this GPU the pod's, in the pod's current number."""
    pod = need.pod
    return CreateLease(
        name=need.name,
        node=need.node,
        gpu=need.gpu,
        uuid=need.uuid,
        pod=pod.key,
        holder=pod.metadata.uid,
        number=pod.number,
    )


def take(needs: Sequence[Need], look: Look, at_once: int) -> Steps[Taken]:
    """Try all ``needs``, in sorted order of the leases' names, ``at_once`` side by side; stops at
    the first batch in which one is busy.

    Sorted order is what keeps two that want the same GPUs from taking half each for ever.
    """
    created: dict[str, Lease] = {}
    adopted: set[str] = set()
    busy: list[Need] = []
    broken = ""
    ordered = sorted(needs, key=lambda need: need.name)
    for first in range(0, len(ordered), at_once):
        batch = ordered[first : first + at_once]
        answers = yield tuple(
            creation(need) if need.known is None else AdoptLease(lease=need.known) for need in batch
        )
        for need, answer in zip(batch, answers, strict=True):
            stored = answer.found if isinstance(answer, Stored) else None
            if isinstance(stored, Lease):
                got: Lease | bool | str = stored if need.known is None else True
            else:
                got = yield from _settle(need, answer, look)
            if isinstance(got, Lease):
                created[need.name] = got
            elif got is True:
                adopted.add(need.name)
            elif got is False:
                busy.append(need)
            else:
                broken = got
        if busy or broken:
            break
    return Taken(created=created, adopted=frozenset(adopted), busy=tuple(busy), broken=broken)


def relock(pod: Pod, look: Look) -> Steps[Taken]:
    """Make the leases again that somebody else has deleted of a pod that is bound, or that a plan
    gave its GPUs. ``busy``: GPUs whose leases another pod has. Nothing where the pod has none.
    """
    found = yield from read_pod(pod.key)
    if isinstance(found, Lost):
        return Taken(broken="the API server does not answer about the pod")
    if found is None or found.metadata.uid != pod.metadata.uid or found.ended:
        return Taken()
    if (placed := found.placed) is None:
        return Taken()
    uuids = dict(zip(placed.ids, found.uuids, strict=False))
    needs = [
        Need(pod=found, node=placed.node, gpu=gpu, uuid=uuids.get(gpu, "")) for gpu in placed.ids
    ]
    return (yield from take(needs, look, len(needs)))


def _settle(need: Need, answer: Answer, look: Look) -> Steps[Lease | bool | str]:
    """After an answer that was not a success: the lease created after all, True where the pod's own
    was adopted, False where it is busy, or why the whole attempt cannot go on."""
    for _ in range(_TRIES):
        if isinstance(answer, Refused):
            return f"the API server refused a Lease: {answer.why}"
        if isinstance(answer, Missing):  # adopted too late: it was given back meanwhile
            answer = yield from only(creation(need))
        if isinstance(answer, Stored):
            return (
                answer.found
                if isinstance(answer.found, Lease)
                else "a Lease was stored without an answer"
            )
        if isinstance(answer, Refused):
            continue
        found = yield from only(ReadLease(name=need.name))
        if isinstance(found, Missing):
            if isinstance(answer, Lost):
                return False  # it may come into being at any time: another GPU
            answer = Missing()
            continue
        if not isinstance(found, Stored) or not isinstance(found.found, Lease):
            return "the API server does not answer about a Lease"
        lease = found.found
        if is_own(lease, need.pod):
            answer = yield from only(AdoptLease(lease=lease))
            if isinstance(answer, Stored):
                return True
            continue
        sight = yield from look_again(lease, look)
        if sight is None or judge(lease, sight) is not LeaseState.FREE:
            return False
        gone = yield from only(DeleteLease(lease=lease))
        if isinstance(gone, Lost):
            return False
        answer = Missing() if isinstance(gone, Stored | Missing) else Exists()
    return False


def look_again(lease: Lease, look: Look) -> Steps[Sight | None]:
    """The lease's pod by the mirror where that suffices, else by the API server; None where that
    does not answer.
    """
    pod = lease.pod
    if pod is None:
        return Sight(None)
    sight = look(pod)
    if judge(lease, sight) is not LeaseState.UNSURE:
        return sight
    found = yield from read_pod(pod)
    return None if isinstance(found, Lost) else Sight(found, live=True)


def give_back(leases: Iterable[Lease]) -> Steps[tuple[Lease, ...]]:
    """Delete these, each only if it is still the one that was created or judged. The ones about
    which no answer came.
    """
    ordered = tuple(sorted(leases, key=lambda lease: lease.metadata.name))
    if not ordered:
        return ()
    answers = yield tuple(DeleteLease(lease=lease) for lease in ordered)
    return tuple(
        lease
        for lease, answer in zip(ordered, answers, strict=True)
        if not isinstance(answer, Stored | Missing | Conflict)
    )
