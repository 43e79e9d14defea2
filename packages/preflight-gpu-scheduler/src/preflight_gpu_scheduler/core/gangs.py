"""Gangs: who belongs to one, how many start together, which GPUs they get on one snapshot; their
leases acquired over all nodes in sorted order, then each member told; and when it may be bound.

The members of a plan have a *first* one, and its Binding is the commit point. Until it is stored
nobody else of the plan is bound; once it is, nothing is taken back from the others. Binding and
fence compete for the same version of that one pod, so exactly one of them happens.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec
from preflight_kube.api.workloads import labels
from preflight_proto import names as preflight
from preflight_proto.stamp import ContractError, decode_stamp

from preflight_gpu_scheduler.api import messages, names
from preflight_gpu_scheduler.api.allocation import GangStart, Reserved
from preflight_gpu_scheduler.api.claim import Claim, Want
from preflight_gpu_scheduler.api.types import Pod
from preflight_gpu_scheduler.core import protocol
from preflight_gpu_scheduler.core.filter_prioritize import NodeView
from preflight_gpu_scheduler.core.gpu_selection import Chosen, choose, mask_of

MOST_MEMBERS: Final = 4096
Key = tuple[str, str]
Placement = tuple[str, tuple[int, ...]]
"""A node and ids of its GPUs."""
_Fit = tuple[int, int, str, tuple[int, ...], int]
"""How well a member fits on a node, the best first; the node, ids, and what was free there."""
_TRIES: Final = 3
_GROUPS: Final = (
    *(labels.COSCHEDULING_GROUP, labels.KAI_GROUP, labels.GROVE_GANG, labels.VOLCANO_JOB),
    *(f"{labels.JOBSET}jobset-uid", f"{labels.JOBSET}jobset-name", f"{labels.LWS}group-key"),
)
"""Labels of a pod that name a gang of which the pods may have several controllers."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of a gang and the claim that it names."""

    pod: Pod
    claim: Claim


class Gang(msgspec.Struct, frozen=True):
    """``size``: None where nobody says it. ``members``: living ones, bound or not, by name."""

    key: tuple[str, str, str]
    size: int | None
    members: tuple[Member, ...]

    @property
    def reserved(self) -> bool:
        """Tell whether some member has a reservation that is not over."""
        pods = (member.pod for member in self.members)
        return any(pod.reserved is not None and not pod.bound for pod in pods)

    @property
    def open(self) -> tuple[Member, ...]:
        """Those that wait: unbound, and nothing is reserved for them."""
        return tuple(member for member in self.members if member.pod.open)


def gather(
    pods: Iterable[Pod], claims: Mapping[Key, Claim], groups: Mapping[Key, int]
) -> dict[tuple[str, str, str], Gang]:
    """The gangs of ``pods``, by namespace, name and owner. ``groups``: the PodGroups' minima."""
    members: dict[tuple[str, str, str], list[Member]] = {}
    for pod in sorted(pods, key=lambda pod: pod.name):
        claim = claims.get((pod.namespace, pod.claim)) if pod.claim else None
        if claim is None or claim.gang is None or pod.ended or pod.deleting:
            continue
        members.setdefault((*claim.gang, owner(pod)), []).append(Member(pod=pod, claim=claim))
    return {
        key: Gang(key, size([member.pod for member in those], groups.get(key[:2])), tuple(those))
        for key, those in members.items()
    }


def owner(pod: Pod) -> str:
    """The owner of the pod's gang: by the first of these that says it, preflight's stamp, the group
    that a scheduler or a controller of many Jobs names, the pod's controller; empty for nobody.
    """
    about = pod.metadata
    with suppress(ContractError):
        if text := pod.annotation(preflight.GANG_ANNOTATION):
            return f"stamp {decode_stamp(text).id}"
    if pod.spec.scheduling_group is not None and pod.spec.scheduling_group.pod_group_name:
        return f"group {pod.spec.scheduling_group.pod_group_name}"
    for key in _GROUPS:
        if name := (about.labels or {}).get(key, ""):
            return f"{key} {name}"
    return about.owner_references[0].uid if about.owner_references else ""


def size(pods: Sequence[Pod], group: int | None) -> int | None:
    """By the first of these that says it: annotation `gang-size`, preflight's stamp, the PodGroup
    of the gang's name. Members that contradict each other say nothing: a gang that starts too small
    is worse than one that waits."""
    for sizes in ({_annotated(pod) for pod in pods}, {_stamped(pod) for pod in pods}):
        if known := sizes - {None}:
            return known.pop() if len(known) == 1 else None
    return _counted(group)


def _counted(number: int | None) -> int | None:
    return number if number is not None and 0 < number <= MOST_MEMBERS else None


def _annotated(pod: Pod) -> int | None:
    text = pod.annotation(names.GANG_SIZE_ANNOTATION)
    return _counted(int(text)) if text.isascii() and text.isdigit() and len(text) <= 4 else None


def _stamped(pod: Pod) -> int | None:
    text = pod.annotation(preflight.GANG_ANNOTATION)
    with suppress(ContractError):
        return _counted(decode_stamp(text).size) if text else None
    return None


def start(gang: Gang) -> GangStart | str:
    """How those start that wait; or what they wait for. Of a gang that runs already as many start
    together as it lacks, and each by itself that comes beyond its size.
    """
    if gang.size is None:
        return "how many members the gang has is not known"
    if gang.reserved:
        return "members have reservations that are not over"
    bound = [member.pod for member in gang.members if member.pod.bound]
    begun = Counter(pod.start.start for pod in bound if pod.start is not None)
    running, waiting = len(bound), [member.pod for member in gang.open]
    if not gang.key[2]:  # of nobody's pods those are one gang that started together
        ours = {pod.start.start for pod in waiting if pod.start} & begun.keys()
        begun = Counter({name: begun[name] for name in sorted(ours)[:1]})
        running = sum(begun.values())
        waiting = [pod for pod in waiting if not ours or (pod.start and pod.start.start in begun)]
    need = max(1, gang.size - running) if running else gang.size
    if len(waiting) < need:
        return f"{need - len(waiting)} of {gang.size} members are missing"
    asked = [pod.start.start for pod in waiting if pod.start and pod.start.need == need]
    known = begun if running else Counter(asked)
    if known and (running or max(known.values()) >= need):
        return GangStart(start=known.most_common(1)[0][0], need=need)
    uids = "\n".join(sorted(pod.uid for pod in waiting))
    return GangStart(start=hashlib.sha256(f"{need} {uids}".encode()).hexdigest()[:16], need=need)


def place(
    members: Sequence[Member],
    candidates: Mapping[str, frozenset[str]],
    nodes: Mapping[str, NodeView],
    need: int,
) -> dict[str, Placement] | str:
    """Node and GPUs for ``need`` of ``members``, by the pod's uid: first fit by descending count,
    on the node where they fit best; or why not. ``candidates``, by uid: nodes for each.
    """
    free = {name: view.free for name, view in nodes.items() if not view.blocked}
    least = min((member.claim.count for member in members), default=1)
    among = frozenset[str]().union(*set(candidates.values())) & free.keys()
    if sum(free[name].bit_count() // least for name in among) < need:
        return messages.GANG_TOO_FEW  # most looks at a gang that waits end here
    choices: dict[tuple[int, int, Want], Chosen] = {}
    heaps: dict[tuple[frozenset[str], Want], list[_Fit]] = {}
    placed: dict[str, Placement] = {}

    def fit(name: str, want: Want) -> Iterator[_Fit]:
        slots, left = nodes[name].slots, free[name]
        key = (id(slots), left, want)  # nodes of one kind share their topology object
        chosen = choices.get(key)
        if chosen is None:
            chosen = choices[key] = choose(slots, left, want)
        if chosen.ids:
            yield -chosen.score, left.bit_count(), name, chosen.ids, left

    for member in sorted(members, key=lambda each: (-each.claim.count, each.pod.name)):
        uid, want = member.pod.uid, member.claim.want
        among = candidates.get(uid, frozenset())
        if len(placed) == need:
            break
        if (heap := heaps.get((among, want))) is None:
            heap = [node_fit for name in among & free.keys() for node_fit in fit(name, want)]
            heapify(heap)
            heaps[among, want] = heap
        while heap and heap[0][-1] != free[heap[0][2]]:
            heappop(heap)  # another member has got some of these since
        if not heap:
            continue
        _, _, name, ids, _ = heap[0]
        free[name] &= ~mask_of(nodes[name].slots, ids)
        placed[uid] = (name, ids)
        for (others, wanted), ranked in heaps.items():
            if name in others:
                for node_fit in fit(name, wanted):
                    heappush(ranked, node_fit)
    return placed if len(placed) >= need else messages.GANG_TOO_FEW


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One member and its GPUs; ``uuids`` by id, as far as they are known."""

    pod: Pod
    node: str
    ids: tuple[int, ...]
    uuids: Mapping[int, str] = {}


def plan_name(assignments: Iterable[Assignment]) -> str:
    """One for equal plans only: members with their numbers, and what each is to have."""
    parts = sorted(f"{a.pod.uid} {a.pod.number} {a.node} {a.ids}" for a in assignments)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def acquire(
    assignments: Sequence[Assignment], look: protocol.Look, *, at_once: int = 1
) -> protocol.Steps[str]:
    """The leases of all, or none: why not; empty where they are stored. ``at_once``: leases that
    are created side by side; with 1, of two that compete for the same GPUs one always gets on.
    """
    needs = [need for a in assignments for need in protocol.locks(a.pod, a.node, a.ids, a.uuids)]
    taken = yield from protocol.take(needs, look, at_once)
    if taken.broken or taken.busy:
        yield from protocol.give_back(taken.created.values())
        return taken.broken or "other pods took the GPUs meanwhile"
    return ""


def tell(assignments: Sequence[Assignment]) -> protocol.Steps[str]:
    """Write into each member what it has, the first one first, and the others side by side; the
    leases of all are stored. Why not, or empty where all know it. Where somebody cannot be told
    nobody is bound, and collection takes all of it back when the time is over.
    """
    plan, first = plan_name(assignments), min(assignments, key=lambda member: member.pod.uid)
    for batch in ([first], [member for member in assignments if member is not first]):
        writes = tuple(_share(member, plan, first, len(assignments)) for member in batch)
        answers = yield from protocol.together(writes)
        for write, answer in zip(writes, answers, strict=True):
            if not (yield from _confirmed(write, answer)):
                return f"member {write.pod.name} changed meanwhile"
    return ""


def _share(member: Assignment, plan: str, first: Assignment, members: int) -> protocol.ReservePod:
    start = member.pod.start or GangStart()
    reserved = Reserved(
        number=member.pod.number,
        node=member.node,
        ids=tuple(sorted(member.ids)),
        plan=plan,
        members=members,
        first=first.pod.name,
        first_uid=first.pod.uid,
        start=start.start,
        need=start.need,
    )
    return protocol.ReservePod(pod=member.pod, reserved=reserved)


def _confirmed(write: protocol.ReservePod, answer: protocol.Answer) -> protocol.Steps[bool]:
    """Tell whether the pod has what was written; again where it has changed meanwhile."""
    pod, reserved = write.pod, write.reserved
    for _ in range(_TRIES):
        if not isinstance(answer, protocol.Conflict | protocol.Lost):
            break
        current = yield from protocol.read_pod(pod.key)
        if not isinstance(current, Pod) or (current.uid, current.number) != (pod.uid, pod.number):
            return False
        if current.reserved == reserved:  # its answer may have come late, and it be bound
            return True
        if not current.open:
            return False
        answer = yield from protocol.only(protocol.ReservePod(pod=current, reserved=reserved))
    return isinstance(answer, protocol.Stored)


def may_bind(pod: Pod, present: int, begun: bool) -> bool:
    """Tell whether a member that the scheduler has brought to ``bind`` is bound now: the first one
    when all are there, and the others when it is. ``present``: members of its plan for which
    ``bind`` waits, this one among them; ``begun``: whether the plan's first member is bound.
    """
    reserved = pod.reserved
    return reserved is not None and (
        begun or (pod.uid == reserved.first_uid and present >= reserved.members)
    )
