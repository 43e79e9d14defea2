"""The fields of Kubernetes objects that this system reads, and no others. What anybody may write
without a limit of Kubernetes' own has one here.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any, Final

import msgspec
from preflight_proto import names as preflight

from preflight_gpu_scheduler.api import allocation, names

_KEPT: Final = {
    names.CLAIM_ANNOTATION: 253,
    names.GANG_SIZE_ANNOTATION: 16,
    names.ALLOCATED_ANNOTATION: 1024,
    names.NVIDIA_ANNOTATION: 8256,
    names.RESERVED_ANNOTATION: allocation.MOST_RESERVED_TEXT,
    names.RECLAIMED_ANNOTATION: 16,
    names.NUDGED_ANNOTATION: 64,
    names.POD_ANNOTATION: 512,
    names.NODE_ANNOTATION: 253,
    names.UUID_ANNOTATION: 128,
    names.UNHEALTHY_ANNOTATION: 8192,
    preflight.GANG_ANNOTATION: 4096,
}
"""Annotations that are read, and the characters that are kept of each. A longer one is none of
ours: it keeps one too many, and so is refused for what it is."""
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_SPREAD: Final = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet"})
"""Owners whose pods kube-scheduler spreads over nodes and zones where nothing else is said."""
_INSUFFICIENT: Final = re.compile(r"\bInsufficient ([\w./-]{0,317}\w)", re.ASCII)
_MOST_LABELS: Final = 256
_MOST_RESOURCES: Final = 64
"""Extended resources of a pod, and that it is said to lack; others count as not asked for."""
_MOST_CONDITIONS: Final = 64
_MOST_MESSAGE: Final = 32_768  # as much as Kubernetes lets a condition say


class _Object(msgspec.Struct, rename="camel", frozen=True, gc=False, kw_only=True):
    pass


class _Owner(_Object, frozen=True, kw_only=True):
    kind: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(_Object, frozen=True, kw_only=True):
    """``annotations``: those that are read. ``labels``: at most 256."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[_Owner, ...] | None = None

    def __post_init__(self) -> None:
        put = msgspec.structs.force_setattr
        if self.annotations:
            kept = {
                k: v if len(v) <= _KEPT[k] else v[: _KEPT[k] + 1]
                for k, v in self.annotations.items()
                if k in _KEPT
            }
            put(self, "annotations", kept)
        if self.labels and len(self.labels) > _MOST_LABELS:
            put(self, "labels", dict(sorted(self.labels.items())[:_MOST_LABELS]))
        if self.owner_references:  # one at most is the controller
            kept_owners = tuple(owner for owner in self.owner_references if owner.controller)[:1]
            put(self, "owner_references", kept_owners or None)


class _NamedObject(_Object, frozen=True, kw_only=True):
    metadata: Metadata

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        return self.metadata.uid

    def annotation(self, key: str) -> str:
        """The text of an annotation that is read; empty where it is not there."""
        return (self.metadata.annotations or {}).get(key, "")


class PodSchedulingGate(_Object, frozen=True, kw_only=True):
    """A gate that keeps a pod from being scheduled."""

    name: str = ""


class _Requests(_Object, frozen=True, kw_only=True):
    requests: dict[str, Any] | None = None


class _Container(_Object, frozen=True, kw_only=True):
    resources: _Requests | None = None
    restart_policy: str | None = None


class _ContainerStatus(_Object, frozen=True, kw_only=True):
    """``state``: running, terminated or waiting; what there is more of it is left out."""

    state: Any = None

    def __post_init__(self) -> None:
        state = next(iter(self.state), "") if isinstance(self.state, dict) else self.state or ""
        msgspec.structs.force_setattr(self, "state", state)


class _Group(_Object, frozen=True, kw_only=True):
    pod_group_name: str = ""


class PodSpec(_Object, frozen=True, kw_only=True):
    """``asked``: how many of each extended resource all containers ask for, which are not kept
    themselves; None for no whole number. ``scheduling_gates``: ours. ``affinity``,
    ``topology_spread_constraints``: whether there are any.
    """

    node_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[PodSchedulingGate, ...] | None = None
    priority: int | None = None
    containers: tuple[_Container, ...] | None = None
    init_containers: tuple[_Container, ...] | None = None
    scheduling_group: _Group | None = None
    affinity: Any = None
    topology_spread_constraints: Any = None
    asked: dict[str, int | None] | None = None

    def __post_init__(self) -> None:
        put = msgspec.structs.force_setattr
        gates = tuple(gate for gate in self.scheduling_gates or () if gate.name == names.GATE)
        put(self, "scheduling_gates", gates[:1] or None)
        for field in ("affinity", "topology_spread_constraints"):
            put(self, field, True if getattr(self, field) else None)
        main, init = self.containers or (), self.init_containers or ()
        parts = [part for each in (*main, *init) for part in allocation.resource_lists(each)]
        # Extended resources have a domain.
        if named := dict.fromkeys(key for part in parts for key in part if "/" in key):
            kept = islice(named, _MOST_RESOURCES)
            put(self, "asked", {key: allocation.total(main, init, key) for key in kept})
        put(self, "containers", None)
        put(self, "init_containers", None)


class _Said(_Object, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class PodStatus(_Object, frozen=True, kw_only=True):
    """``start_time``: None before a kubelet has taken note of the pod. ``conditions``: a hash of
    why no node does, as kube-scheduler says it; 0 where it does not. ``insufficient``: resources of
    which it says that nodes lack them.
    """

    phase: str = ""
    start_time: str | None = None
    container_statuses: tuple[_ContainerStatus, ...] | None = None
    init_container_statuses: tuple[_ContainerStatus, ...] | None = None
    conditions: tuple[_Said, ...] | int | None = None
    insufficient: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        every = self.conditions if isinstance(self.conditions, tuple) else ()
        messages = tuple(
            condition.message for condition in every if condition.reason == "Unschedulable"
        )
        if not isinstance(self.conditions, int):
            lacks = tuple(set(_INSUFFICIENT.findall(" ".join(messages))))[:_MOST_RESOURCES]
            msgspec.structs.force_setattr(self, "insufficient", lacks)
            msgspec.structs.force_setattr(self, "conditions", hash(messages) if messages else 0)

    @property
    def running(self) -> bool:
        """Tell whether some container runs, by the last word of the kubelet."""
        every = (*(self.container_statuses or ()), *(self.init_container_statuses or ()))
        return any(container.state == "running" for container in every)


class Pod(_NamedObject, frozen=True, kw_only=True):
    """A pod as far as anybody here reads it; what its annotations say is in properties."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)."""
        return self.metadata.namespace, self.metadata.name

    @property
    def claim(self) -> str:
        """The name of its GpuClaim; empty where it has none."""
        return self.annotation(names.CLAIM_ANNOTATION)

    @property
    def ended(self) -> bool:
        """Tell whether it has completed or failed, and none of its containers runs."""
        return self.status.phase in _ENDED and not self.status.running

    @property
    def stopped(self) -> bool:
        """Tell whether nothing of it runs, by the last word of the kubelet."""
        states = {status.state for status in self.status.container_statuses or ()}
        return self.ended or (states == {"terminated"} and not self.status.running)

    @property
    def deleting(self) -> bool:
        """Tell whether its deletion has been asked for; its containers may still run."""
        return self.metadata.deletion_timestamp is not None

    @property
    def bound(self) -> bool:
        """Tell whether it has a node."""
        return bool(self.spec.node_name)

    @property
    def reclaimed(self) -> int:
        """How many of its reservations were taken back; what is no number counts as none."""
        text = self.annotation(names.RECLAIMED_ANNOTATION)
        return int(text) if allocation.NUMBER.fullmatch(text) else 0

    @property
    def number(self) -> int:
        """That of its current reservation: what its leases must carry."""
        return self.reclaimed + 1

    @property
    def reserved(self) -> allocation.Reserved | None:
        """The share that a gang's plan gave it, unless that has been taken back."""
        reserved = allocation.parse_reserved(self.annotation(names.RESERVED_ANNOTATION))
        return reserved if reserved is not None and reserved.number == self.number else None

    def planned(self, plan: str) -> bool:
        """Tell whether it has what this plan gave it."""
        return self.reserved is not None and self.reserved.plan == plan

    @property
    def start(self) -> allocation.GangStart | None:
        """With whom it starts, where it is a gang's member whose gang may start."""
        return allocation.parse_start(self.annotation(names.RESERVED_ANNOTATION))

    @property
    def open(self) -> bool:
        """Tell whether it may be bound yet, and nothing is reserved for it."""
        return not (self.bound or self.ended or self.deleting or self.reserved is not None)

    @property
    def allocated(self) -> allocation.Allocation | None:
        """The GPUs that its Binding gave it; None where that is not said, or cannot be read."""
        return allocation.parse_allocated(self.annotation(names.ALLOCATED_ANNOTATION))

    @property
    def placed(self) -> allocation.Allocation | allocation.Reserved | None:
        """The GPUs that are its own: by its Binding, or by a plan while it may be bound."""
        if not self.bound:
            return None if self.deleting else self.reserved
        allocated = self.allocated
        return allocated if allocated and allocated.node == self.spec.node_name else None

    @property
    def uuids(self) -> tuple[str, ...]:
        """The UUIDs of its GPUs, in the order of their ids; empty where its Binding knew none."""
        text = self.annotation(names.NVIDIA_ANNOTATION)
        if text in {"", "all"} or len(text) > _KEPT[names.NVIDIA_ANNOTATION]:
            return ()
        return tuple(text.split(","))

    def counted(self, resource: str) -> int | None:
        """How many of ``resource`` it was admitted with; None where that is no whole number."""
        return (self.spec.asked or {}).get(resource, 0)

    @property
    def particular(self) -> bool:
        """Tell whether the scheduler may like some nodes better than others for it."""
        own = self.spec.affinity or self.spec.topology_spread_constraints
        owners = self.metadata.owner_references or ()
        return bool(own) or any(owner.kind in _SPREAD for owner in owners)

    @property
    def gated(self) -> bool:
        """Tell whether our gate keeps it from being scheduled."""
        return bool(self.spec.scheduling_gates)


class LeaseSpec(_Object, frozen=True, kw_only=True):
    """``lease_duration_seconds``: for how long a holder that is not bound keeps the GPU;
    ``lease_transitions``: the number of its reservation.
    """

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    renew_time: str | None = None


class Lease(_NamedObject, frozen=True, kw_only=True):
    """One GPU's lock: ``holder`` says whose it is, annotations what it is about."""

    spec: LeaseSpec = LeaseSpec()

    @property
    def holder(self) -> str:
        """The pod's uid; empty where nobody holds it."""
        return self.spec.holder_identity or ""

    @property
    def number(self) -> int:
        """The number of the reservation; 0 where it is none of ours."""
        number = self.spec.lease_transitions or 0
        return number if number <= allocation.MOST_NUMBER else 0

    @property
    def pod(self) -> tuple[str, str] | None:
        """(namespace, name) of the holder; None where it is not said."""
        namespace, slash, name = self.annotation(names.POD_ANNOTATION).partition("/")
        return (namespace, name) if slash and namespace and name else None

    @property
    def gpu(self) -> tuple[str, int] | None:
        """(node, id); None where annotations and name do not agree, as in one made by hand."""
        node, place = self.annotation(names.NODE_ANNOTATION), names.split_lease_name(self.name)
        if place is None or not node or names.lease_name(node, place[1]) != self.name:
            return None
        return node, place[1]

    @property
    def node(self) -> str:
        """The node of the GPU, else as it stands in the name; empty where it is of no GPU."""
        place = self.gpu or names.split_lease_name(self.metadata.name)
        return place[0] if place is not None else ""

    @property
    def uuid(self) -> str:
        """The GPU's UUID when the lease was made; empty where it was not known."""
        return self.annotation(names.UUID_ANNOTATION)

    @property
    def ours(self) -> bool:
        """Tell whether it was made by this system, by all it says."""
        return bool(self.holder and self.number > 0 and self.pod and self.locks)

    @property
    def locks(self) -> bool:
        """Tell whether this system made it for a GPU, whatever somebody has changed in it since."""
        labels = self.metadata.labels or {}
        return self.gpu is not None and labels.get(names.MANAGED_LABEL) == "true"


class Condition(_Object, frozen=True, kw_only=True):
    """``message``: at most as much as Kubernetes lets a condition say."""

    type: str = ""
    status: str = ""
    message: str = ""

    def __post_init__(self) -> None:
        if len(self.message) > _MOST_MESSAGE:
            msgspec.structs.force_setattr(self, "message", self.message[:_MOST_MESSAGE])


class NodeStatus(_Object, frozen=True, kw_only=True):
    """``capacity``, ``allocatable``: quantities as they came. ``conditions``: those that hold."""

    capacity: dict[str, Any] | None = None
    allocatable: dict[str, Any] | None = None
    conditions: tuple[Condition, ...] | None = ()

    def __post_init__(self) -> None:
        holds = tuple(
            condition for condition in self.conditions or () if condition.status == "True"
        )
        msgspec.structs.force_setattr(self, "conditions", holds[:_MOST_CONDITIONS])


class Node(_NamedObject, frozen=True, kw_only=True):
    """A node as far as anybody here reads it."""

    status: NodeStatus = NodeStatus()
