"""The fields of Kubernetes objects that the webhook reads, and no others.

msgspec skips what is not named here without building it; that is most of the webhook's speed.
"""

from __future__ import annotations

from typing import Final

import msgspec

Amount = str | int | float
Amounts = dict[str, Amount]


NULL: Final = msgspec.Raw(b"null")
"""What a part that stays as it came is where the object does not have it."""


class _Object(msgspec.Struct, rename="camel", gc=False):
    pass


class NameOnly(_Object):
    """What is read by its name alone: a container's use of a claim or a volume, a Secret by which
    images are pulled, the operating system that the pod asks for.
    """

    name: str = ""


class ResourceRequirements(_Object):
    """What a container or a pod asks for."""

    requests: Amounts | None = None
    limits: Amounts | None = None
    claims: list[NameOnly] | None = None


class Container(_Object):
    """What is Raw stays as it came: it is read only for pods whose like has not been seen (see
    :mod:`..core.admit`).
    """

    name: str = ""
    resources: msgspec.Raw = NULL
    env: msgspec.Raw = NULL
    env_from: msgspec.Raw = NULL
    restart_policy: str | None = None
    volume_mounts: msgspec.Raw = NULL
    security_context: msgspec.Raw = NULL


class EmptyDirVolumeSource(_Object):
    """An emptyDir; ``medium``: Memory for a tmpfs."""

    medium: str | None = None


class Volume(_Object):
    """A volume, as far as checks may share it."""

    name: str = ""
    empty_dir: EmptyDirVolumeSource | None = None


class SchedulingGroup(_Object):
    """The PodGroup of a pod (Kubernetes 1.36)."""

    pod_group_name: str | None = None


class WorkloadRef(_Object):
    """The Workload of a pod and its group in it (Kubernetes 1.35)."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str | None = None


class ClaimEntry(_Object):
    """One of the pod's resource claims: an object that others may use too, or a template for one of
    its own.
    """

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(_Object):
    """A pod's spec; what is Raw is decoded where it is needed."""

    containers: list[Container]
    init_containers: list[Container] | None = None
    volumes: list[Volume] | None = None
    resources: msgspec.Raw = NULL
    security_context: msgspec.Raw = NULL
    os: NameOnly | None = None
    scheduling_group: SchedulingGroup | None = None
    workload_ref: WorkloadRef | None = None
    scheduler_name: str = ""
    resource_claims: list[ClaimEntry] | None = None
    image_pull_secrets: list[NameOnly] | None = None
    host_aliases: msgspec.Raw = NULL
    dns_config: msgspec.Raw = NULL
    dns_policy: str | None = None
    host_network: bool | None = None
    hostname: str | None = None
    hostname_override: str | None = None
    subdomain: str | None = None


class OwnerReference(_Object):
    """Who owns the pod; ``controller``: whether it made it."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(_Object):
    """A pod's metadata at admission: without a uid, often without a name."""

    name: str = ""
    generate_name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class Pod(_Object):
    """A pod as it comes to admission."""

    spec: PodSpec
    metadata: Metadata = msgspec.field(default_factory=Metadata)
