"""Gangs: who belongs to one, how many start together, and which GPUs they get on one snapshot, or
why not.

Pure planning; :mod:`~.webhook.gang_start` asks for it, :mod:`.gang_reserve` makes a plan true.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from preflight_kube.api.workloads import labels
from preflight_proto import names as preflight
from preflight_proto.stamp import ContractError, decode_stamp

from preflight_gpu_scheduler.api import messages, names
from preflight_gpu_scheduler.api.allocation import GangStart
from preflight_gpu_scheduler.api.claim import Claim, Want
from preflight_gpu_scheduler.api.types import Pod
from preflight_gpu_scheduler.core.filter_prioritize import NodeView
from preflight_gpu_scheduler.core.gpu_selection import Chosen, choose, mask_of

__all__ = ["Gang", "Member", "gather", "owner", "place", "size", "start"]

MOST_MEMBERS: Final = 4096
Key = tuple[str, str]
_GROUPS: Final = (
    *(labels.COSCHEDULING_GROUP, labels.KAI_GROUP, labels.GROVE_GANG, labels.VOLCANO_JOB),
    *(f"{labels.JOBSET}jobset-uid", f"{labels.JOBSET}jobset-name", f"{labels.LWS}group-key"),
)
"""Labels of a pod that name a gang of which the pods may have several controllers."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of a gang and the claim that it names."""

    pod: Pod
    claim: Claim


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """``size``: None where nobody says how many there are. ``members``: living ones, bound or not,
    by name.
    """

    key: tuple[str, str, str]
    size: int | None
    members: tuple[Member, ...]

    @property
    def open(self) -> tuple[Member, ...]:
        """Those that wait: unbound, and nothing is reserved for them."""
        return tuple(one for one in self.members if one.pod.open)


def gather(
    pods: Iterable[Pod], claims: Mapping[Key, Claim], groups: Mapping[Key, int]
) -> dict[tuple[str, str, str], Gang]:
    """The gangs of ``pods``, by namespace, name and owner. ``claims`` and ``groups`` (a PodGroup's
    minimum) by (namespace, name).
    """
    found: dict[tuple[str, str, str], list[Member]] = {}
    for pod in pods:
        claim = claims.get((pod.metadata.namespace, pod.claim)) if pod.claim else None
        if claim is None or claim.gang is None or pod.ended or pod.deleting:
            continue
        found.setdefault((*claim.gang, owner(pod)), []).append(Member(pod=pod, claim=claim))
    made = {}
    for key, members in found.items():
        ordered = tuple(sorted(members, key=lambda one: one.pod.metadata.name))
        least = size([one.pod for one in ordered], groups.get(key[:2]))
        made[key] = Gang(key=key, size=least, members=ordered)
    return made


def owner(pod: Pod) -> str:
    """Whose gang the pod is of: by the first of these that says it, preflight's stamp, the group
    that a scheduler or a controller of many Jobs names, the pod's controller. Two owners never
    share a gang, though their pods name one claim; pods of nobody are one gang.
    """
    about = pod.metadata
    text = about.said.get(preflight.GANG_ANNOTATION, "")
    with suppress(ContractError):
        if text:
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
    for said in ([_annotated(pod) for pod in pods], [_stamped(pod) for pod in pods]):
        known = {one for one in said if one is not None}
        if known:
            return known.pop() if len(known) == 1 else None
    return group if group is not None and 0 < group <= MOST_MEMBERS else None


def _annotated(pod: Pod) -> int | None:
    text = pod.metadata.said.get(names.GANG_SIZE_ANNOTATION, "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else 0
    return number if 0 < number <= MOST_MEMBERS else None


def _stamped(pod: Pod) -> int | None:
    text = pod.metadata.said.get(preflight.GANG_ANNOTATION, "")
    try:
        found = decode_stamp(text).size if text else None
    except ContractError:
        return None
    return found if found is not None and 0 < found <= MOST_MEMBERS else None


def start(gang: Gang) -> GangStart | str:
    """How those start that wait; or what they wait for.

    Pods that are bound count where the same owner's gang runs already: then as many start together
    as it lacks, and each by itself that comes beyond its size. Nobody else counts.
    """
    if gang.size is None:
        return "how many members the gang has is not known"
    if any(one.pod.reserved is not None and not one.pod.bound for one in gang.members):
        return "members have reservations that are not over"
    bound = [one.pod for one in gang.members if one.pod.bound]
    begun = Counter(pod.start.start for pod in bound if pod.start is not None)
    running, waiting = len(bound), gang.open
    if not gang.key[2]:  # of nobody's pods those are one gang that started together
        ours = {one.pod.start.start for one in waiting if one.pod.start} & begun.keys()
        begun = Counter({name: begun[name] for name in sorted(ours)[:1]})
        running = sum(begun.values())
        waiting = tuple(one for one in waiting if not ours or _of(one.pod) in begun)
    need = max(1, gang.size - running) if running else gang.size
    if len(waiting) < need:
        return f"{need - len(waiting)} of {gang.size} members are missing"
    known = (
        begun
        if running
        else Counter(
            one.pod.start.start for one in waiting if one.pod.start and one.pod.start.need == need
        )
    )
    if known and (running or max(known.values()) >= need):
        return GangStart(start=known.most_common(1)[0][0], need=need)
    uids = "\n".join(sorted(one.pod.metadata.uid for one in waiting))
    return GangStart(start=hashlib.sha256(f"{need} {uids}".encode()).hexdigest()[:16], need=need)


def _of(pod: Pod) -> str:
    return pod.start.start if pod.start is not None else ""


def place(
    members: Sequence[Member],
    candidates: Mapping[str, frozenset[str]],
    nodes: Mapping[str, NodeView],
    need: int,
) -> dict[str, tuple[str, tuple[int, ...]]] | str:
    """Node and GPUs for ``need`` of ``members``, by the pod's uid: first fit by descending count,
    on the node where they fit best; or why not. ``candidates``, by uid: nodes that kube-scheduler
    would have each on; those without any are left out.
    """
    free = {name: view.free for name, view in nodes.items() if not view.blocked}
    least = min((one.claim.spec.devices.count for one in members), default=1)
    among = frozenset[str]().union(*set(candidates.values())) & free.keys()
    if sum(free[name].bit_count() // least for name in among) < need:
        return messages.GANG_TOO_FEW  # most looks at a gang that waits end here
    ordered: dict[frozenset[str], list[str]] = {}
    found: dict[tuple[int, int, Want], Chosen] = {}  # nodes of one kind share their topology object
    made: dict[str, tuple[str, tuple[int, ...]]] = {}
    for member in sorted(
        members, key=lambda one: (-one.claim.spec.devices.count, one.pod.metadata.name)
    ):
        uid, want = member.pod.metadata.uid, member.claim.want
        among = candidates.get(uid, frozenset())
        if len(made) == need:
            break
        if among not in ordered:
            ordered[among] = sorted(among & free.keys())
        best: tuple[int, int, str, tuple[int, ...]] | None = None
        for name in ordered[among]:
            slots, left = nodes[name].slots, free[name]
            key = (id(slots), left, want)
            chosen = found.get(key)
            if chosen is None:
                chosen = found[key] = choose(slots, left, want)
            if chosen.ids and (best is None or (-chosen.score, left.bit_count()) < best[:2]):
                best = (-chosen.score, left.bit_count(), name, chosen.ids)
        if best is None:
            continue
        _, _, name, ids = best
        free[name] &= ~mask_of(nodes[name].slots, ids)
        made[uid] = (name, ids)
    return made if len(made) >= need else messages.GANG_TOO_FEW
