"""What a container gets: its variables by reference to annotations that the Binding writes, and the
counted resource.

Admission comes before scheduling, and a container's environment cannot change afterwards: so the
variables refer. An annotation that is not there gives an empty string, and an empty string no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from preflight_gpu_scheduler.api import names

__all__ = ["REFERENCES", "VOID", "literal", "with_count", "with_variables"]

Entry = dict[str, Any]
Container = Mapping[str, Any]

CUDA: Final = "CUDA_VISIBLE_DEVICES"
NVIDIA: Final = "NVIDIA_VISIBLE_DEVICES"
ORDER: Final = "CUDA_DEVICE_ORDER"


def _reference(variable: str, annotation: str) -> Entry:
    # The API server writes the version into what is stored; without it a second call would see
    # another entry than the first one made.
    field = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"}
    return {"name": variable, "valueFrom": {"fieldRef": field}}


REFERENCES: Final = (
    _reference(NVIDIA, names.NVIDIA_ANNOTATION),
    _reference(CUDA, names.CUDA_ANNOTATION),
    {"name": ORDER, "value": "PCI_BUS_ID"},
)
VOID: Final = ({"name": NVIDIA, "value": "void"},)


def literal(ids: str) -> tuple[Entry, ...]:
    """For a pod without a claim whose `allocated` somebody else wrote."""
    return ({"name": CUDA, "value": ids},)


def with_variables(env: Sequence[Any], entries: Sequence[Entry]) -> list[Any]:
    """``env`` with exactly ``entries``: the first of a name is replaced in place, further ones of
    it go, others are appended in order.
    """
    wanted = {entry["name"]: entry for entry in entries}
    made: list[Any] = []
    done: set[str] = set()
    for entry in env:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name not in wanted:
            made.append(entry)
        elif name not in done:
            made.append(wanted[name])
            done.add(name)
    return [*made, *(entry for name, entry in wanted.items() if name not in done)]


def with_count(container: Container, resource: str, count: int) -> dict[str, Any]:
    """The container's resources with ``count`` of ``resource``, request and limit."""
    resources = dict(container.get("resources") or {})
    for part in ("limits", "requests"):
        resources[part] = {**(resources.get(part) or {}), resource: str(count)}
    return resources
