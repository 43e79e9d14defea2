"""Objects for tests, with no more said than a test is about."""

from __future__ import annotations

from typing import Any

from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.claim import Claim, Devices, Selector, Spec, Topology
from preflight_gpu_scheduler.api.types import (
    Condition,
    Lease,
    LeaseSpec,
    Metadata,
    Node,
    NodeStatus,
    Pod,
    PodSchedulingGate,
    PodSpec,
    PodStatus,
)
from preflight_gpu_scheduler.core.filter_prioritize import NodeView
from preflight_gpu_scheduler.core.gpu_selection import Slot

EIGHT = tuple(Slot(n, "nvlink-0" if n < 4 else "nvlink-4", 450.0) for n in range(8))


def pod(
    name: str = "p",
    *,
    annotations: dict[str, str] | None = None,
    gated: bool = False,
    phase: str = "Pending",
    created: str = "",
    **spec: Any,
) -> Pod:
    about = {names.CLAIM_ANNOTATION: "two", **(annotations or {})}
    metadata = Metadata(
        name=name,
        namespace="team",
        uid=f"uid-{name}",
        resource_version="7",
        annotations=about,
        creation_timestamp=created,
    )
    gates = (PodSchedulingGate(name="other"), PodSchedulingGate(name=names.GATE)) if gated else None
    return Pod(
        metadata=metadata,
        spec=PodSpec(scheduling_gates=gates, **spec),
        status=PodStatus(phase=phase),
    )


def claim(
    count: int = 2, *, gang: str = "", labels: dict[str, str] | None = None, mode: Any = "Preferred"
) -> Claim:
    spec = Spec(
        devices=Devices(count=count),
        gang_ref=gang,
        selector=Selector(match_labels=labels or {}),
        topology=Topology(mode=mode),
    )
    return Claim(namespace="team", name="two", uid="c", spec=spec)


def node(
    name: str = "node-a",
    *,
    ready: bool = True,
    labels: dict[str, str] | None = None,
    allocatable: dict[str, Any] | None = None,
    conditions: tuple[Condition, ...] = (),
    annotations: dict[str, str] | None = None,
) -> Node:
    found = (Condition(type="Ready", status="True" if ready else "False"), *conditions)
    return Node(
        metadata=Metadata(name=name, labels=labels, annotations=annotations),
        status=NodeStatus(conditions=found, allocatable=allocatable, capacity=allocatable),
    )


def view(free: int = 0xFF, **more: Any) -> NodeView:
    return NodeView(slots=EIGHT, free=free, **more)


def lease(where: str, gpu: int, holder: str = "uid-p", number: int = 1, name: str = "p") -> Lease:
    about = {names.POD_ANNOTATION: f"team/{name}", names.NODE_ANNOTATION: where}
    metadata = Metadata(
        name=names.lease_name(where, gpu),
        uid=f"lease {gpu} of {where} for {holder}",
        resource_version="1",
        labels={names.MANAGED_LABEL: "true"},
        annotations=about,
    )
    return Lease(
        metadata=metadata, spec=LeaseSpec(holder_identity=holder, lease_transitions=number)
    )
