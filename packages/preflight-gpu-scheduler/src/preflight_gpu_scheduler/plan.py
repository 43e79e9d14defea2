"""Gangs: who belongs to one, how many must come, and which GPUs all of them get on one snapshot, or
why not.

Pure planning; :mod:`.gangs` makes a plan true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from preflight_proto import names as preflight
from preflight_proto.stamp import ContractError, decode_stamp

from . import messages, names
from .choice import Chosen, choose
from .claim import Claim, Want
from .gangs import Assignment
from .objects import Node, Pod, Toleration
from .verbs import NodeView

__all__ = [
    "Gang",
    "Member",
    "PlanNode",
    "Turn",
    "gather",
    "missing",
    "plan",
    "size",
    "tolerates",
    "turns",
]

MOST_MEMBERS: Final = 4096
Key = tuple[str, str]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of a gang and the claim that it names."""

    pod: Pod
    claim: Claim


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """``size``: None where nobody says how many there are. ``members``: living ones, bound or not,
    by name.
    """

    key: Key
    size: int | None
    members: tuple[Member, ...]

    @property
    def open(self) -> tuple[Member, ...]:
        """Those that need a plan: unbound, and nothing is reserved for them."""
        return tuple(one for one in self.members if not one.pod.bound and one.pod.reserved is None)

    @property
    def reserved(self) -> tuple[Member, ...]:
        """Those that wait to be bound with what a plan gave them."""
        return tuple(
            one for one in self.members if not one.pod.bound and one.pod.reserved is not None
        )

    @property
    def since(self) -> str:
        """When the youngest member was created: from then on the gang could have been whole. RFC
        3339, in UTC, so it sorts.
        """
        return max((one.pod.metadata.creation_timestamp for one in self.members), default="")


class PlanNode(msgspec.Struct, frozen=True, kw_only=True):
    """``uuids`` by id."""

    node: Node
    view: NodeView
    uuids: Mapping[int, str] = {}


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A gang that is looked at now: its assignments, or ``why`` it has none."""

    gang: Gang
    assignments: tuple[Assignment, ...] = ()
    why: str = ""


def gather(
    pods: Iterable[Pod], claims: Mapping[Key, Claim], groups: Mapping[Key, int]
) -> dict[Key, Gang]:
    """The gangs of ``pods``. ``claims`` and ``groups`` (a PodGroup's minimum) by
    (namespace, name).
    """
    found: dict[Key, list[Member]] = {}
    for pod in pods:
        claim = claims.get((pod.metadata.namespace, pod.claim)) if pod.claim else None
        if claim is None or claim.gang is None or pod.ended or (pod.deleting and not pod.bound):
            continue
        found.setdefault(claim.gang, []).append(Member(pod=pod, claim=claim))
    made = {}
    for key, members in found.items():
        ordered = tuple(sorted(members, key=lambda one: one.pod.metadata.name))
        made[key] = Gang(
            key=key, size=size([one.pod for one in ordered], groups.get(key)), members=ordered
        )
    return made


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


def missing(gang: Gang) -> str:
    """What the gang waits for before it can be planned; empty where it can."""
    if gang.size is None:
        return "how many members the gang has is not known"
    if gang.reserved:
        return "members have reservations of an earlier plan"
    if len(gang.members) < gang.size:
        return f"{gang.size - len(gang.members)} of {gang.size} members are missing"
    return ""


def plan(gang: Gang, nodes: Mapping[str, PlanNode]) -> tuple[Assignment, ...] | str:
    """GPUs for every open member at once, first fit by descending count on the node where they fit
    best; or why not.

    A node does when it is ready, schedulable, tolerated and selected. What else the scheduler asks
    for it asks itself: a member that it cannot place there keeps the gang from being bound, and its
    reservation comes back.
    """
    free = {name: one.view.free for name, one in nodes.items()}
    takers: dict[_Asked, list[str]] = {}  # members of a gang ask for much the same
    found: dict[tuple[int, int, Want], Chosen] = {}  # nodes of one kind share their topology object
    made: list[Assignment] = []
    for member in sorted(
        gang.open, key=lambda one: (-one.claim.spec.devices.count, one.pod.metadata.name)
    ):
        want, asked = member.claim.want, _asked(member)
        if asked not in takers:
            takers[asked] = [
                name
                for name in sorted(nodes)
                if not nodes[name].view.blocked and _takes(nodes[name].node, asked)
            ]
        best: tuple[int, int, str, tuple[int, ...]] | None = None
        for name in takers[asked]:
            slots, left = nodes[name].view.slots, free[name]
            key = (id(slots), left, want)
            chosen = found.get(key)
            if chosen is None:
                chosen = found[key] = choose(slots, left, want)
            if chosen.ids and (best is None or (-chosen.score, left.bit_count()) < best[:2]):
                best = (-chosen.score, left.bit_count(), name, chosen.ids)
        if best is None:
            return f"{messages.TOO_FEW} for member {member.pod.metadata.name}"
        _, _, name, ids = best
        taken = nodes[name]
        free[name] &= ~sum(1 << n for n, slot in enumerate(taken.view.slots) if slot.id in ids)
        uuids = tuple(taken.uuids.get(gpu, "") for gpu in ids)
        made.append(Assignment(pod=member.pod, node=name, ids=ids, uuids=uuids))
    return tuple(made)


def turns(
    gangs: Iterable[Gang],
    nodes: Mapping[str, PlanNode],
    waited: Mapping[Key, float],
    patience: float,
) -> list[Turn]:
    """Which gangs get a plan now, the one that waits longest first. All plans are on one snapshot
    and do not touch each other.

    ``waited``: seconds since each was whole. One that cannot fit for now does not hold up smaller
    ones, until it has waited longer than ``patience`` seconds: then no other is planned before it.
    """
    made: list[Turn] = []
    left = dict(nodes)
    for gang in sorted(gangs, key=lambda one: (-waited.get(one.key, 0.0), one.since, one.key)):
        if not gang.open:
            continue
        why = missing(gang)
        found = why or plan(gang, left)
        if isinstance(found, str):
            made.append(Turn(gang=gang, why=found))
            if not why and waited.get(gang.key, 0.0) > patience:
                break
            continue
        for one in found:
            node = left[one.node]
            used = sum(1 << n for n, slot in enumerate(node.view.slots) if slot.id in one.ids)
            view = msgspec.structs.replace(node.view, free=node.view.free & ~used)
            left[one.node] = msgspec.structs.replace(node, view=view)
        made.append(Turn(gang=gang, assignments=found))
    return made


_Asked = tuple[frozenset[tuple[str, str]], tuple[Toleration, ...]]
"""What a member asks of a node itself: labels, and what it tolerates."""


def _asked(member: Member) -> _Asked:
    spec = member.pod.spec
    wanted = {**(spec.node_selector or {}), **member.claim.spec.selector.match_labels}
    return frozenset(wanted.items()), spec.tolerations or ()


def _takes(node: Node, asked: _Asked) -> bool:
    labels, (wanted, tolerations) = node.metadata.labels or {}, asked
    if (
        not node.ready
        or node.spec.unschedulable
        or any(labels.get(key) != value for key, value in wanted)
    ):
        return False
    taints = [one for one in node.spec.taints or () if one.effect in {"NoSchedule", "NoExecute"}]
    return all(
        any(tolerates(one, taint.key, taint.value, taint.effect) for one in tolerations)
        for taint in taints
    )


def tolerates(toleration: Toleration, key: str, value: str, effect: str) -> bool:
    """As Kubernetes: an empty effect is any, `Exists` without a key is everything, an empty
    operator is `Equal`.
    """
    if toleration.effect not in {"", effect} or (toleration.key and toleration.key != key):
        return False
    if toleration.operator == "Exists":
        return True
    return (
        bool(toleration.key) and toleration.operator in {"", "Equal"} and toleration.value == value
    )
