"""The fields of Kubernetes objects that the gang controller reads, and no others.

msgspec skips what is not named here without building it: memory follows these fields, not the cluster.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final

import msgspec
from preflight_proto import names

__all__ = [
    "Condition",
    "ConfigMap",
    "ContainerState",
    "ContainerStatus",
    "Metadata",
    "Node",
    "OwnerReference",
    "Pod",
    "Running",
    "Terminated",
    "Volume",
    "Waiting",
    "node_with",
]


class _Object(msgspec.Struct, rename="camel", frozen=True, gc=False, kw_only=True):
    pass


class OwnerReference(_Object, frozen=True, kw_only=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


class Metadata(_Object, frozen=True, kw_only=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()


class Mount(_Object, frozen=True, kw_only=True):
    name: str


class Container(_Object, frozen=True, kw_only=True):
    name: str
    volume_mounts: tuple[Mount, ...] = ()


class FieldRef(_Object, frozen=True, kw_only=True):
    field_path: str = ""


class ShownField(_Object, frozen=True, kw_only=True):
    field_ref: FieldRef | None = None


class ShownFields(_Object, frozen=True, kw_only=True):
    items: tuple[ShownField, ...] = ()


class ProjectedSource(_Object, frozen=True, kw_only=True):
    downward_api: ShownFields | None = msgspec.field(name="downwardAPI", default=None)


class Projected(_Object, frozen=True, kw_only=True):
    sources: tuple[ProjectedSource, ...] = ()


class Volume(_Object, frozen=True, kw_only=True):
    """A volume, as far as it shows fields of its pod."""

    name: str
    downward_api: ShownFields | None = msgspec.field(name="downwardAPI", default=None)
    projected: Projected | None = None

    def shows(self, annotation: str) -> bool:
        sources = [self.downward_api, *(s.downward_api for s in (self.projected.sources if self.projected else ()))]
        path = f"metadata.annotations['{annotation}']"
        return any(i.field_ref is not None and i.field_ref.field_path == path for s in sources if s for i in s.items)


_SAME: Final[dict[tuple[Volume, ...], tuple[Volume, ...]]] = {}
_MOST_SAME: Final = 256


class PodSpec(_Object, frozen=True, kw_only=True):
    """``volumes``: only ours that show something of the node. Pods have them from one template, so equal ones are one object."""

    node_name: str = ""
    host_network: bool = False
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()

    def __post_init__(self) -> None:
        kept = tuple(v for v in self.volumes if v.name.startswith(names.VOLUME_PREFIX) and _shows_the_node(v))
        if len(_SAME) < _MOST_SAME:
            kept = _SAME.setdefault(kept, kept)
        msgspec.structs.force_setattr(self, "volumes", _SAME.get(kept, kept))


def _shows_the_node(volume: Volume) -> bool:
    return volume.shows(names.INSTANCE_TYPE_ANNOTATION) or volume.shows(names.TOPOLOGY_ANNOTATION)


class Waiting(_Object, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class Running(_Object, frozen=True, kw_only=True):
    started_at: datetime | None = None


class Terminated(_Object, frozen=True, kw_only=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    container_id: str = msgspec.field(name="containerID", default="")


class ContainerState(_Object, frozen=True, kw_only=True):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Object, frozen=True, kw_only=True):
    name: str
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class Condition(_Object, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class PodStatus(_Object, frozen=True, kw_only=True):
    phase: str = "Pending"
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(_Object, frozen=True, kw_only=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class ConfigMap(_Object, frozen=True, kw_only=True):
    metadata: Metadata
    data: dict[str, str] = {}
    binary_data: dict[str, bytes] = {}


class NodeMetadata(_Object, frozen=True, kw_only=True):
    name: str
    labels: dict[str, str] = {}


class Node(_Object, frozen=True, kw_only=True):
    """A node's labels; what else it reports, every few minutes, makes no difference here."""

    metadata: NodeMetadata


def node_with(labels: Collection[str]) -> type[Node]:
    """A :class:`Node` that keeps ``labels`` alone: a node has about fifty, and a cluster thousands of nodes."""
    wanted = frozenset(labels)

    class Known(Node, frozen=True, kw_only=True):
        def __post_init__(self) -> None:
            kept = {key: value for key, value in self.metadata.labels.items() if key in wanted}
            msgspec.structs.force_setattr(self.metadata, "labels", kept)

    return Known
