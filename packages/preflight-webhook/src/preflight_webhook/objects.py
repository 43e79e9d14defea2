"""The fields of Kubernetes objects that the webhook reads, and no others.

msgspec skips what is not named here without building it; that is most of the webhook's speed.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = [
    "Amount",
    "Container",
    "Metadata",
    "Mount",
    "Os",
    "Owner",
    "Pod",
    "Request",
    "Resources",
    "Review",
    "SchedulingGroup",
    "Spec",
    "Variable",
    "Volume",
    "WorkloadRef",
]

Amount = str | int | float
Amounts = dict[str, Amount]


class _Object(msgspec.Struct, rename="camel", gc=False):
    pass


class Resources(_Object):
    requests: Amounts | None = None
    limits: Amounts | None = None


class Mount(_Object):
    name: str = ""


class Container(_Object):
    """``resources`` stays as it came: it is read only for pods whose like has not been seen (see :mod:`.admission`).
    So does ``env``, which few sources of gangs look into."""

    name: str = ""
    resources: msgspec.Raw = msgspec.Raw(b"null")
    env: msgspec.Raw = msgspec.Raw(b"null")
    restart_policy: str | None = None
    volume_mounts: list[Mount] | None = None


class Variable(_Object):
    """One variable of a container; without a ``value`` where it comes from elsewhere (``valueFrom``)."""

    name: str = ""
    value: str | None = None


class Volume(_Object):
    name: str = ""


class Os(_Object):
    name: str = ""


class SchedulingGroup(_Object):
    """The PodGroup of a pod (Kubernetes 1.36)."""

    pod_group_name: str | None = None


class WorkloadRef(_Object):
    """The Workload of a pod and its group in it (Kubernetes 1.35)."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str | None = None


class Spec(_Object):
    containers: list[Container]
    init_containers: list[Container] | None = None
    volumes: list[Volume] | None = None
    resources: msgspec.Raw = msgspec.Raw(b"null")
    os: Os | None = None
    scheduling_group: SchedulingGroup | None = None
    workload_ref: WorkloadRef | None = None
    scheduler_name: str = ""


class Owner(_Object):
    kind: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(_Object):
    name: str = ""
    generate_name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[Owner] | None = None


class Pod(_Object):
    spec: Spec
    metadata: Metadata = msgspec.field(default_factory=Metadata)


class Kind(_Object):
    kind: str
    group: str = ""
    version: str = ""


class Request(_Object):
    uid: Annotated[str, msgspec.Meta(min_length=1)]
    kind: Kind
    operation: str = "CREATE"
    namespace: str = ""
    object: msgspec.Raw = msgspec.Raw()
    dry_run: bool = False


class Review(_Object):
    request: Request
    api_version: str
    kind: str
