"""Every name that crosses a border: annotations, labels, gate, resource, and the Leases' names."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

GROUP: Final = "gpu.scheduling"
VERSION: Final = "v1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
PREFIX: Final = f"{GROUP}/"

CLAIMS: Final = f"/apis/{API_VERSION}/gpuclaims"
STATUSES: Final = f"/apis/{API_VERSION}/gpunodestatuses"
"""Where they are served, all namespaces together."""

SCHEDULER_NAME: Final = "gpu-scheduler"
LOCK_NAMESPACE: Final = "gpu-scheduler-leases"
COUNT_RESOURCE: Final = PREFIX + "gpu"
PLUGIN_RESOURCES: Final = (
    "nvidia.com/gpu",
    "nvidia.com/mig-",
    "nvidia.com/vgpu",
    "volcano.sh/vgpu",
)
"""How the resources begin by which device plugins hand out GPUs: `gpu.shared`, `gpumem`, too."""
MANAGED_TAINT: Final = PREFIX + "managed"
GATE: Final = PREFIX + "waiting"

CLAIM_ANNOTATION: Final = PREFIX + "claim"
GANG_SIZE_ANNOTATION: Final = PREFIX + "gang-size"
ALLOCATED_ANNOTATION: Final = PREFIX + "allocated"
"""`<node>:<id>,<id>`: written by the Binding, in the same update that assigns the pod."""
RESERVED_ANNOTATION: Final = PREFIX + "reserved"
"""What a gang's plan gave this pod; from now on its leases are taken back behind the fence only."""
RECLAIMED_ANNOTATION: Final = PREFIX + "reclaimed"
"""How many reservations have been taken back from this pod; absent means none."""
NUDGED_ANNOTATION: Final = PREFIX + "nudged"
NVIDIA_ANNOTATION: Final = PREFIX + "nvidia-visible-devices"
CUDA_ANNOTATION: Final = PREFIX + "cuda-visible-devices"
FORGEABLE: Final = (
    *(ALLOCATED_ANNOTATION, RESERVED_ANNOTATION, RECLAIMED_ANNOTATION),
    *(NVIDIA_ANNOTATION, CUDA_ANNOTATION),
)
"""Annotations of a claim pod that only this system writes: one at creation is a forgery."""

UNHEALTHY_ANNOTATION: Final = PREFIX + "unhealthy"

MANAGED_LABEL: Final = PREFIX + "managed"
POD_UID_LABEL: Final = PREFIX + "pod-uid"
POD_ANNOTATION: Final = PREFIX + "pod"
NODE_ANNOTATION: Final = PREFIX + "node"
ID_ANNOTATION: Final = PREFIX + "id"
UUID_ANNOTATION: Final = PREFIX + "uuid"

MOST_ID: Final = 1023
"""The highest id of a GPU on its node."""

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.ASCII)
_LEASE_PREFIX: Final = "gpu-"
_MOST_NAME: Final = 253  # an object's name is a DNS subdomain
_HASH: Final = 32
_HASHED: Final = re.compile(rf"[0-9a-f]{{{_HASH}}}")
_LEASE: Final = re.compile(rf"{_LEASE_PREFIX}(.+)-(0|[1-9][0-9]{{0,3}})", re.ASCII)


def is_object_name(text: str) -> bool:
    """Tell whether an object can have this name, and it can stand in a path: a DNS subdomain."""
    return len(text) <= _MOST_NAME and _NAME.fullmatch(text) is not None


@lru_cache(maxsize=16_384)
def lease_part(node: str) -> str:
    """How a node stands in the names of its GPUs' Leases: by its hash where its name would make one
    longer than 253 characters, or looks like such a hash, so that two GPUs never share a name.
    """
    room = _MOST_NAME - len(f"{_LEASE_PREFIX}-{MOST_ID}")
    if len(node) <= room and not _HASHED.fullmatch(node):
        return node
    return hashlib.sha256(node.encode()).hexdigest()[:_HASH]


def leases(namespace: str) -> str:
    """Where the API server has the Leases of a namespace."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def lease_name(node: str, gpu: int) -> str:
    """The name of the Lease that locks GPU ``gpu`` of ``node``: ``gpu-{node}-{id}``."""
    return f"{_LEASE_PREFIX}{lease_part(node)}-{gpu}"


def split_lease_name(name: str) -> tuple[str, int] | None:
    """(node or its hash, id) of a Lease's name; None where it is none of ours."""
    match = _LEASE.fullmatch(name)
    return (match[1], int(match[2])) if match and int(match[2]) <= MOST_ID else None
