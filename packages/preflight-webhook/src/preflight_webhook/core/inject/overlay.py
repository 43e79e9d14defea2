"""One object laid over another: what an operator sets for a check over what we would inject."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["overlaid"]

_KEYS: Final = {
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
}
"""Lists whose entries are known by a field, as in Kubernetes' strategic merge patch; other lists
are replaced.
"""


def overlaid(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``under`` with ``over`` on top: maps merge, keyed lists merge by key, null removes, anything
    else replaces.
    """
    merged = dict(under)
    for key, value in over.items():
        there = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(there, Mapping):
            merged[key] = overlaid(there, value)
        elif key in _KEYS and isinstance(value, list) and isinstance(there, list):
            merged[key] = _joined(there, value, _KEYS[key])
        else:
            merged[key] = value
    return merged


def _joined(under: list[Any], over: list[Any], by: str) -> list[Any]:
    named = {_key(entry, by, i): entry for i, entry in enumerate(under)}
    named |= {_key(entry, by, len(under) + i): entry for i, entry in enumerate(over)}
    return list(named.values())


def _key(entry: Any, by: str, position: int) -> Any:
    return entry.get(by, position) if isinstance(entry, Mapping) else position
