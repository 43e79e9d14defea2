"""The fields of Kubernetes objects that the gang controller reads, and no others.

msgspec skips what is not named here without building it: memory follows these fields, not the
cluster. What anybody may write into them without a limit of Kubernetes' own (annotations, owners,
how many containers) has one here.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final

import msgspec
from preflight_kube.api.node_health import NodeCondition, speaks_against
from preflight_proto import names
from preflight_proto.stamp import configmap_name, gang_id

GANG_ID_ANNOTATION: Final = names.PREFIX + "gang-id"
GANG_SOURCE_ANNOTATION: Final = names.PREFIX + "gang-source"
"""On a gang's ConfigMap: the raw id and the source, from which its name follows."""
POD_GROUP_ANNOTATION: Final = "pod-group-name"
"""What KAI writes after admission: the PodGroup of a gang by owner, which keeps its name."""

_LABELS: Final = (names.GANG_LABEL, names.CHECKED_LABEL, names.MANAGED_BY_LABEL)
_ANNOTATIONS: Final = {
    names.GANG_ANNOTATION: 4096,  # an id and a few names of 253 at most
    # Ours name eight missing members, each with what the scheduler says of it.
    names.ROSTER_ANNOTATION: 32 * 1024,
    names.INSTANCE_TYPE_ANNOTATION: 64,  # these two: only whether they are there
    names.TOPOLOGY_ANNOTATION: 64,
    names.CLAIMS_ANNOTATION: 1,  # as these two: the audit reads it anew
    GANG_ID_ANNOTATION: 1024,
    GANG_SOURCE_ANNOTATION: 64,
    POD_GROUP_ANNOTATION: 253,
}
"""Those that are read, and the characters that are kept of each. One that is longer is none of
ours, and is cut: then it is refused for what it is, instead of not being there."""
_MOST_CONTAINERS: Final = 128
"""Init containers of a pod that are looked at: workloads have tens."""
_MOST_OWNER: Final = 1024
"""Characters of an owner reference's texts: names have 253."""
_MOST_MESSAGE: Final = 4096
"""Characters: a kubelet's limit of a termination message (MaxContainerTerminationMessageLength)."""
_MOST_WORDS: Final = 400
"""Characters of what a condition says: eight of them must fit into a roster."""


class _Object(msgspec.Struct, rename="camel", frozen=True, gc=False, kw_only=True):
    pass


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


class OwnerReference(_Object, frozen=True, kw_only=True):
    """One owner of an object; ``controller``: whether it made the object."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


class Metadata(_Object, frozen=True, kw_only=True):
    """Labels and annotations that are read; ``annotated``: any at all. Of owners the controller."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    annotated: bool = False

    def __post_init__(self) -> None:
        put, labels, annotations = msgspec.structs.force_setattr, self.labels, self.annotations
        put(self, "annotated", bool(annotations))
        put(self, "labels", {key: labels[key] for key in _LABELS if key in labels})
        read = ((key, most) for key, most in _ANNOTATIONS.items() if key in annotations)
        put(self, "annotations", {key: _shortened(annotations[key], most) for key, most in read})
        owners = (owner for owner in self.owner_references if owner.controller)
        fitting = (o for o in owners if len(o.api_version + o.kind + o.name + o.uid) <= _MOST_OWNER)
        put(self, "owner_references", tuple(fitting)[:1])


class _Named(_Object, frozen=True, kw_only=True):
    name: str


class Container(_Object, frozen=True, kw_only=True):
    """``volume_mounts``: those of our volumes."""

    name: str
    volume_mounts: tuple[_Named, ...] = ()

    def __post_init__(self) -> None:
        ours = (one for one in self.volume_mounts if one.name.startswith(names.VOLUME_PREFIX))
        msgspec.structs.force_setattr(self, "volume_mounts", tuple(ours)[:_MOST_CONTAINERS])


SHOWN: Final = {
    names.NODE_VOLUME: (names.INSTANCE_TYPE_ANNOTATION, names.TOPOLOGY_ANNOTATION),
    names.GANG_VOLUME: (names.TOPOLOGY_ANNOTATION,),
}
"""By volume of the webhook's, which annotations about the node it shows in files."""


class PodSpec(_Object, frozen=True, kw_only=True):
    """``volumes``: those that show something of the node."""

    node_name: str = ""
    host_network: bool = False
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[_Named, ...] = ()

    def __post_init__(self) -> None:
        put = msgspec.structs.force_setattr
        put(self, "volumes", tuple(volume for volume in self.volumes if volume.name in SHOWN))
        put(self, "init_containers", self.init_containers[:_MOST_CONTAINERS])


def _cut(
    one: ContainerWaiting | ContainerTerminated | PodCondition | PodStatus,
    most: int = _MOST_MESSAGE,
) -> None:
    put = msgspec.structs.force_setattr
    put(one, "message", _shortened(one.message, most))
    put(one, "reason", one.reason[:_MOST_OWNER])


class ContainerWaiting(_Object, frozen=True, kw_only=True):
    """Why a container has not started yet."""

    reason: str = ""
    message: str = ""

    def __post_init__(self) -> None:
        _cut(self)


class ContainerTerminated(_Object, frozen=True, kw_only=True):
    """How a container ended; ``message`` is what it wrote as its termination message."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    container_id: str = msgspec.field(name="containerID", default="")

    def __post_init__(self) -> None:
        _cut(self)


class ContainerState(_Object, frozen=True, kw_only=True):
    """One of the three is set, or none before the kubelet has said anything."""

    waiting: ContainerWaiting | None = None
    running: _Object | None = None
    terminated: ContainerTerminated | None = None


class ContainerStatus(_Object, frozen=True, kw_only=True):
    """A container's state now, and that of the run before."""

    name: str
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodCondition(_Object, frozen=True, kw_only=True):
    """What somebody says of a pod, such as the scheduler why it has no node."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None

    def __post_init__(self) -> None:
        _cut(self, _MOST_WORDS)


_CONDITIONS: Final = frozenset({"PodScheduled", "DisruptionTarget"})


class PodStatus(_Object, frozen=True, kw_only=True):
    """A pod's status as its kubelet writes it, with the conditions that are read."""

    phase: str = "Pending"
    pod_ip: str = msgspec.field(name="podIP", default="")
    reason: str = ""
    message: str = ""
    start_time: datetime | None = None
    conditions: tuple[PodCondition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()

    def __post_init__(self) -> None:
        _cut(self, _MOST_WORDS)
        put, read = msgspec.structs.force_setattr, {it.type: it for it in self.conditions}
        put(self, "conditions", tuple(read[key] for key in sorted(_CONDITIONS & read.keys())))
        put(self, "init_container_statuses", self.init_container_statuses[:_MOST_CONTAINERS])


class Pod(_Object, frozen=True, kw_only=True):
    """A pod, as far as gangs and results of checks need it."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class ConfigMap(_Object, frozen=True, kw_only=True):
    """Its metadata, and of one that is a gang's by its name, what makes the record."""

    metadata: Metadata
    data: dict[str, str] = {}
    binary_data: dict[str, bytes] = {}

    def __post_init__(self) -> None:
        put, ours = msgspec.structs.force_setattr, self.gang is not None
        for field in ("data", "binary_data"):
            kept = getattr(self, field)
            put(self, field, {key: kept[key] for key in _RECORD if key in kept} if ours else {})

    @property
    def gang(self) -> str | None:
        """The gang (:func:`gang_id`) whose ConfigMap this is, if its name follows from that."""
        about = self.metadata
        raw = about.annotations.get(GANG_ID_ANNOTATION, "")
        source = about.annotations.get(GANG_SOURCE_ANNOTATION, "")
        if about.name != configmap_name(about.namespace, raw, source):
            return None
        return gang_id(source, raw)


_RECORD: Final = ("generation", "members")


class NodeMetadata(_Object, frozen=True, kw_only=True):
    """A node's name, identity and labels."""

    name: str
    uid: str = ""
    creation_timestamp: datetime | None = None
    labels: dict[str, str] = {}


class NodeStatus(_Object, frozen=True, kw_only=True):
    """``capacity``: of GPUs."""

    capacity: dict[str, str] = {}
    conditions: tuple[NodeCondition, ...] = ()


class Node(_Object, frozen=True, kw_only=True):
    """A node's labels, its GPUs and what speaks against it; other reports make no difference."""

    metadata: NodeMetadata
    status: NodeStatus = NodeStatus()


def node_with(
    labels: Collection[str], gpus: Collection[str] = (), sick: Collection[str] = ()
) -> type[Node]:
    """A :class:`Node` that keeps ``labels``, of its capacity ``gpus``, and what makes it ``sick``.

    A node has about fifty labels, and a cluster thousands of nodes.
    """
    wanted, resources, patterns = frozenset(labels), frozenset(gpus), tuple(sick)

    class KeptNode(Node, frozen=True, kw_only=True):
        def __post_init__(self) -> None:
            put, about, status = msgspec.structs.force_setattr, self.metadata, self.status
            put(about, "labels", {k: v for k, v in about.labels.items() if k in wanted})
            capacity = {k: v for k, v in status.capacity.items() if k in resources and v != "0"}
            bad = tuple(one for one in status.conditions if speaks_against(one, patterns))
            put(self, "status", NodeStatus(capacity=capacity, conditions=bad[:_MOST_CONTAINERS]))

    return KeptNode
