"""The protocol: what is asked of the API server and what it may answer; to acquire all of some
GPUs' leases or none, take over what is free, adopt what is one's own, give back what one made; and
what becomes of a lease: deleted when it is free or void, taken back when its time is over.

It is written as generators (:data:`Steps`): each yields a batch of requests, gets one answer for
each, and returns what came of it. Whoever runs one sends them, side by side or in order, and never
a request twice: so what talks to the API server and what is model-checked is one.

Whoever goes on with a lease that it did not create itself *writes* it first: else one attempt for a
pod could give it back while another, having only read it, binds the pod with it.

The fence: before leases of a living, unbound pod are deleted, the pod's number is raised in the
very version in which it was seen unbound. A Binding prepared before that gets 409; one prepared
after it knows that those leases are void.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, Protocol, TypeVar

import msgspec

from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.allocation import GangStart, Reserved
from preflight_gpu_scheduler.api.types import Lease, Pod
from preflight_gpu_scheduler.core.ledger import Holder, LeaseState, is_own, judge

_TRIES: Final = 3


class ReadLease(msgspec.Struct, frozen=True, kw_only=True):
    """From the API server's store, not from its cache."""

    name: str


class AdoptLease(msgspec.Struct, frozen=True, kw_only=True):
    """An update of nothing but ``renewTime``, in exactly this version, after which whoever created
    it can no longer give it back."""

    lease: Lease


class DeleteLease(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly this object in exactly this version."""

    lease: Lease


class ReadPod(msgspec.Struct, frozen=True, kw_only=True):
    """From the API server's store, not from its cache. ``key``: (namespace, name)."""

    key: tuple[str, str]


class _PodWrite(msgspec.Struct, frozen=True, kw_only=True):
    """One write, for exactly this version of the pod."""

    pod: Pod


class CreateLease(_PodWrite, frozen=True, kw_only=True):
    """The Lease by which a GPU becomes the pod's, in its number; ``uuid``: empty if unknown."""

    node: str
    gpu: int
    uuid: str = ""

    @property
    def name(self) -> str:
        """The name of the Lease that locks this GPU."""
        return names.lease_name(self.node, self.gpu)


def locks(
    pod: Pod, node: str, ids: Iterable[int], uuids: Mapping[int, str]
) -> tuple[CreateLease, ...]:
    """One for each GPU. ``uuids`` by id, as far as they are known."""
    return tuple(CreateLease(pod=pod, node=node, gpu=n, uuid=uuids.get(n, "")) for n in ids)


class BindPod(_PodWrite, frozen=True, kw_only=True):
    """Node and annotations."""

    node: str
    annotations: dict[str, str]


class RaiseReclaimed(_PodWrite, frozen=True, kw_only=True):
    """The fence: of the pod, which was unbound, ``number`` reservations have been taken back."""

    number: int


class ReservePod(_PodWrite, frozen=True, kw_only=True):
    """Write with whom it starts, or what the plan gives it, and take our gate away."""

    reserved: GangStart


LeaseRequest = CreateLease | ReadLease | AdoptLease | DeleteLease
Request = LeaseRequest | ReadPod | BindPod | RaiseReclaimed | ReservePod


class Stored(msgspec.Struct, frozen=True):
    """It was done. ``object``: the object as it is now, where it is one."""

    object: Lease | Pod | None = None


class Missing(msgspec.Struct, frozen=True):
    """404: there is no such object, for certain."""


class Exists(msgspec.Struct, frozen=True):
    """409 of a create: the name is taken."""


class Conflict(msgspec.Struct, frozen=True):
    """409: another uid or version; or it is assigned, gated or being deleted. Not stored."""


class Refused(msgspec.Struct, frozen=True):
    """Another refusal that says for certain that nothing was stored."""

    why: str = ""


class Lost(msgspec.Struct, frozen=True):
    """No answer, or one that leaves open whether it was stored, or will be later."""


Answer = Stored | Missing | Exists | Conflict | Refused | Lost
T = TypeVar("T")
Steps = Generator[tuple[Request, ...], tuple[Answer, ...], T]
Look = Callable[[tuple[str, str]], Holder]
"""What a mirror shows of the pod with this (namespace, name)."""


class Runner(Protocol):
    """Whoever performs steps against an API server."""

    async def run(self, steps: Steps[T], budget: float) -> T:
        """Perform ``steps``; return what came of them. Nothing is sent after ``budget`` seconds."""


def together(requests: tuple[Request, ...]) -> Steps[tuple[Answer, ...]]:
    """Several requests side by side, which do not depend on each other."""
    return (yield requests) if requests else ()


def only(request: Request) -> Steps[Answer]:
    """One request by itself."""
    return (yield (request,))[0]


def read_pod(key: tuple[str, str]) -> Steps[Pod | Lost | None]:
    """The pod of this (namespace, name) as the API server has it; None where there is none, for
    certain; Lost where that is not known.
    """
    answer = yield from only(ReadPod(key=key))
    if isinstance(answer, Stored) and isinstance(answer.object, Pod):
        return answer.object
    return None if isinstance(answer, Missing) else Lost()


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """``created``: leases that this attempt made, by name; ``adopted``: names of the pod's own that
    were there. ``busy``: GPUs that somebody else has. ``broken``: why nothing more can be tried
    now, empty where it can."""

    created: Mapping[str, Lease] = {}
    adopted: frozenset[str] = frozenset()
    busy: tuple[CreateLease, ...] = ()
    broken: str = ""


def take(needs: Iterable[CreateLease], look: Look, at_once: int) -> Steps[Taken]:
    """Try all ``needs``, ``at_once`` side by side; stops at the first batch in which one is busy.
    Sorted order keeps two that want the same GPUs from taking half each for ever.
    """
    created: dict[str, Lease] = {}
    adopted: set[str] = set()
    busy: list[CreateLease] = []
    broken = ""
    ordered = sorted(needs, key=lambda need: need.name)
    for first in range(0, len(ordered), at_once):
        batch = ordered[first : first + at_once]
        answers = yield tuple(batch)
        for need, answer in zip(batch, answers, strict=True):
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
    """Make the leases again that somebody else has deleted of a pod that is bound or planned."""
    now = yield from read_pod(pod.key)
    if isinstance(now, Lost):
        return Taken(broken="the API server does not answer about the pod")
    placed = now.placed if now is not None and now.uid == pod.uid else None
    if now is None or now.ended or placed is None:
        return Taken()
    needs = locks(now, placed.node, placed.ids, dict(zip(placed.ids, now.uuids, strict=False)))
    return (yield from take(needs, look, len(needs)))


def _settle(need: CreateLease, answer: Answer, look: Look) -> Steps[Lease | bool | str]:
    """Settle one GPU: the lease that was created, True where the pod's own was adopted, False
    where it is busy, or why the whole attempt cannot go on. ``answer``: to the create."""
    adopts = False
    for _ in range(_TRIES):
        if isinstance(answer, Missing):  # adopted too late: it was given back meanwhile
            answer, adopts = (yield from only(need)), False
        if isinstance(answer, Stored) and isinstance(answer.object, Lease):
            return True if adopts else answer.object
        if isinstance(answer, Refused):
            return f"the API server refused a Lease: {answer.why}"
        now = yield from only(ReadLease(name=need.name))
        if isinstance(now, Missing):
            if isinstance(answer, Lost):
                return False  # it may come into being at any time: another GPU
            answer = now
            continue
        if not isinstance(now, Stored) or not isinstance(now.object, Lease):
            return "the API server does not answer about a Lease"
        lease = now.object
        if is_own(lease, need.pod):
            answer, adopts = (yield from only(AdoptLease(lease=lease))), True
            continue
        holder = yield from read_holder(lease, look)
        if holder is None or judge(lease, holder) is not LeaseState.FREE:
            return False
        gone = yield from only(DeleteLease(lease=lease))
        if isinstance(gone, Lost):
            return False
        answer = Missing() if isinstance(gone, Stored | Missing) else Exists()
    return isinstance(answer, Stored)


def read_holder(lease: Lease, look: Look) -> Steps[Holder | None]:
    """The lease's pod by the mirror, else by the API server; None where that does not answer."""
    pod = lease.pod
    if pod is None:
        return Holder(None)
    holder = look(pod)
    if judge(lease, holder) is not LeaseState.UNSURE:
        return holder
    now = yield from read_pod(pod)
    return None if isinstance(now, Lost) else Holder(now, live=True)


def give_back(leases: Iterable[Lease]) -> Steps[bool]:
    """Delete these, each in exactly this version; whether it is known of each that this is gone."""
    ordered = sorted(leases, key=lambda lease: lease.name)
    answers = yield from together(tuple(DeleteLease(lease=lease) for lease in ordered))
    return all(isinstance(answer, Stored | Missing | Conflict) for answer in answers)


def relocked(
    node: str, taken: Taken, lease: Callable[[str], Lease | None]
) -> Iterator[tuple[str, str]]:
    """Reason and message for what came of leases that were lost. ``lease``: as a mirror has it."""
    if leases := ", ".join(sorted(taken.created)):
        again = f"somebody deleted Lease {leases}, which locks its GPU; it is made again"
        yield "GpusLockedAgain", again
    if taken.broken:
        lost = f"the Lease of a GPU that it has of {node} is lost and cannot be made again"
        yield "GpusNotLocked", f"{lost}, so no pod is placed there: {taken.broken}"
    for need in taken.busy:
        other = lease(need.name)
        who = "/".join(other.pod) if other is not None and other.pod is not None else "another pod"
        own = f"GPU {need.gpu} of {node} is its own by its Binding, and Lease {need.name} is"
        yield "GpusNotLocked", f"{own} {who}'s; delete one of the two pods"


class Done(Enum):
    """The end of a look at a lease; KEPT stands for now, AGAIN for a try to be repeated."""

    KEPT = "kept"
    COLLECTED = "collected"
    RECLAIMED = "reclaimed"
    AGAIN = "again"


def collect(lease: Lease, look: Look, *, over: bool, stranded: bool = False) -> Steps[Done]:
    """``stranded``: its GPU is not there, so that nobody who waits will ever be bound with it."""
    holder = yield from read_holder(lease, look)
    if holder is None:
        return Done.AGAIN
    state, pod = judge(lease, holder, over=over), holder.pod
    if state in {LeaseState.FREE, LeaseState.VOID}:
        return Done.COLLECTED if (yield from give_back([lease])) else Done.AGAIN
    if state is not LeaseState.OVER or pod is None:
        return Done.KEPT
    reserved = pod.reserved
    if reserved is not None and reserved.first_uid != pod.uid:
        kept = yield from _dissolve(pod, reserved)
        if kept is not None and not (stranded and kept is Done.KEPT):
            return kept
    if not (yield from raise_number(pod, max(pod.number, lease.number))):
        return Done.AGAIN
    return Done.RECLAIMED if (yield from give_back([lease])) else Done.AGAIN


def _dissolve(pod: Pod, reserved: Reserved) -> Steps[Done | None]:
    """Take back the first member's reservation before another's: on that pod's version Binding and
    fence exclude each other. None where the member may be reclaimed; KEPT where the gang is being
    bound: then its members keep what they have.
    """
    first = yield from read_pod((pod.namespace, reserved.first))
    if isinstance(first, Lost):
        return Done.AGAIN
    if first is None or first.uid != reserved.first_uid or first.ended:
        return None
    if first.bound:
        return Done.KEPT
    if first.deleting or not first.planned(reserved.plan):
        return None
    return None if (yield from raise_number(first, first.number)) else Done.AGAIN


def raise_number(pod: Pod, number: int) -> Steps[bool]:
    """Tell whether the pod, unbound in this version, counts ``number`` reservations taken back."""
    answer = yield from only(RaiseReclaimed(pod=pod, number=number))
    return isinstance(answer, Stored)
