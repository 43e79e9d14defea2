"""An object's conditions: how they are written, read and defined. Pure.

They travel as maps, so that what others wrote stays as it is, in fields that we do not know too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from preflight_kube.api.crd import list_map

_SCHEMA: Final[dict[str, Any]] = {
    "required": ["type", "status", "reason", "message", "lastTransitionTime"],
    "properties": {
        "type": {"type": "string", "maxLength": 316},
        "status": {"enum": ["True", "False", "Unknown"]},
        "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
        "message": {"type": "string", "maxLength": 32768},
        "observedGeneration": {"type": "integer", "minimum": 0},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
    },
}
"""The bounds of Kubernetes' own `metav1.Condition`."""

Conditions = Annotated[
    tuple[Annotated[dict[str, Any], Meta(extra_json_schema=_SCHEMA)], ...],
    Meta(extra_json_schema=list_map("type")),
]
"""The field ``conditions`` of a status, with its schema for a CustomResourceDefinition."""


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One condition; ``last_transition_time`` is RFC 3339, and written by :func:`merge`."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str = ""


def find(conditions: Iterable[Mapping[str, Any]], type_: str) -> Condition | None:
    """The condition of that type; None where there is none, or one that cannot be read."""
    for condition in conditions:
        if condition.get("type") == type_:
            try:
                return msgspec.convert(condition, Condition)
            except msgspec.ValidationError:
                return None
    return None


def merge(
    existing: Iterable[Mapping[str, Any]], wanted: Iterable[Condition], now: str
) -> list[dict[str, Any]]:
    """``existing`` with the ``wanted`` ones in place, each type once; equal to it where nothing is
    to be written.

    ``now`` (RFC 3339, whole seconds) is when a condition came about whose status is another than
    before; a new reason or message alone leaves its time. Others stay, and all keep their order;
    what is new stands last.
    """
    merged = {str(condition.get("type")): dict(condition) for condition in existing}
    for condition in wanted:
        before = merged.get(condition.type, {})
        kept = before.get("lastTransitionTime") if before.get("status") == condition.status else ""
        about: dict[str, Any] = {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": str(kept or now),
        }
        if condition.observed_generation:
            about["observedGeneration"] = condition.observed_generation
        merged[condition.type] = about
    return list(merged.values())
