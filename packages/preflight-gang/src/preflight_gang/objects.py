"""The fields of Kubernetes objects that the gang controller reads, and no others.

msgspec skips what is not named here without building it: memory follows these fields, not the cluster.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

__all__ = [
    "Condition",
    "ConfigMap",
    "ContainerState",
    "ContainerStatus",
    "Metadata",
    "OwnerReference",
    "Pod",
    "Running",
    "Terminated",
    "Waiting",
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


class PodSpec(_Object, frozen=True, kw_only=True):
    node_name: str = ""
    host_network: bool = False
    init_containers: tuple[Container, ...] = ()


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
