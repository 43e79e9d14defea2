"""The CustomResourceDefinitions of GpuClaim and GpuNodeStatus, of the Structs that are read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from preflight_kube.api import crd as definitions
from preflight_kube.api.crd import Column, Int32

from preflight_gpu_scheduler.api import claim, names
from preflight_gpu_scheduler.api import gpu_node_status as inventory


class PodAllocation(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The GPUs of one pod."""

    pod: str = ""
    pod_uid: str = msgspec.field(name="podUID", default="")
    node_name: str = ""
    gpu_ids: Annotated[tuple[Int32, ...], Meta(max_length=64)] = ()
    phase: str = ""


class ClaimStatus(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """What the controller has seen of the claim's pods. nodeName, gpuIds and allocated are there
    only while one pod has GPUs.
    """

    phase: Literal["Pending", "Reserved", "Bound", "Failed"] = "Pending"
    message: str = ""
    pods: Int32 = 0
    allocations: Annotated[tuple[PodAllocation, ...], Meta(max_length=100)] = ()
    node_name: str = ""
    gpu_ids: Annotated[tuple[Int32, ...], Meta(max_length=64)] = ()
    allocated: str = ""


class GpuNodeStatusSpec(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The node that it is of."""

    node_name: Annotated[str, Meta(max_length=253)] = ""


class GpuNodeStatusStatus(inventory.InventoryStatus, rename="camel", frozen=True, kw_only=True):
    """What the node's agent has seen. usable: how many GPUs can be given away, for people."""

    usable: Annotated[int, Meta(ge=0)] | None = None


def crds() -> list[dict[str, Any]]:
    """Both, ready for `kubectl apply --server-side`."""
    gpu_claim = definitions.crd(
        names.GROUP,
        "GpuClaim",
        names.VERSION,
        spec=claim.Spec,
        status=ClaimStatus,
        short_names=["gclaim"],
        description="GPUs that a pod wants: each pod that names this claim gets that many of its own.",
        rules=claim.RULES,
        columns=(
            Column("Req", ".spec.devices.count", "integer"),
            Column("Policy", ".spec.devices.policy"),
            Column("Phase", ".status.phase"),
            Column("Allocated", ".status.allocated"),
            Column("Age", ".metadata.creationTimestamp", "date"),
            Column("Message", ".status.message", priority=1),
        ),
    )
    gpu_node_status = definitions.crd(
        names.GROUP,
        "GpuNodeStatus",
        names.VERSION,
        spec=GpuNodeStatusSpec,
        status=GpuNodeStatusStatus,
        plural="gpunodestatuses",
        short_names=["gns"],
        scope="Cluster",
        description="The GPUs of the node of the same name, as its agent, or a person, wrote them.",
        columns=(
            Column("Node", ".spec.nodeName"),
            Column("Devices", ".status.total", "integer"),
            Column("Usable", ".status.usable", "integer"),
            Column("Heartbeat", ".status.observedTime", "date"),
        ),
    )
    return [gpu_claim, gpu_node_status]
