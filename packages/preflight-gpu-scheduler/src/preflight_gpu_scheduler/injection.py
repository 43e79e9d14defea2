"""What a container gets: its variables by reference to annotations that the Binding writes, and the
counted resource.

Admission comes before scheduling, and a container's environment cannot change afterwards: so the
variables refer. An annotation that is not there gives an empty string, and an empty string no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from . import names

__all__ = ["REFERENCES", "VOID", "literal", "total", "with_count", "with_variables"]

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


def total(spec: Mapping[str, Any], resource: str) -> int | None:
    """How many of ``resource`` the pod asks for, as the scheduler counts; None where an amount is
    no whole number.
    """
    try:
        main = sum(_amount(one, resource) for one in spec.get("containers") or ())
        sidecars = sum(
            _amount(one, resource)
            for one in spec.get("initContainers") or ()
            if one.get("restartPolicy") == "Always"
        )
        first = max((_amount(one, resource) for one in spec.get("initContainers") or ()), default=0)
    except ValueError:
        return None
    return max(main + sidecars, first)


def _amount(container: Container, resource: str) -> int:
    asked = [part[resource] for part in parts(container) if resource in part]
    numbers = []
    for one in asked:
        if (
            isinstance(one, bool)
            or not isinstance(one, str | int)
            or not str(one).isascii()
            or not str(one).isdigit()
        ):
            raise ValueError(resource)
        numbers.append(int(str(one)[:10]))
    return max(numbers, default=0)


def parts(container: Container) -> list[Mapping[str, Any]]:
    """The limits and requests that are there."""
    resources = container.get("resources")
    found = (
        [resources.get(part) for part in ("limits", "requests")]
        if isinstance(resources, dict)
        else []
    )
    return [one for one in found if isinstance(one, dict)]


def with_count(container: Container, resource: str, count: int) -> dict[str, Any]:
    """The container's resources with ``count`` of ``resource``, request and limit."""
    resources = dict(container.get("resources") or {})
    for part in ("limits", "requests"):
        resources[part] = {**(resources.get(part) or {}), resource: str(count)}
    return resources
