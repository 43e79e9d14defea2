"""From what should be to a JSONPatch (RFC 6902) on what is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .injection import Injection
from .objects import Pod

__all__ = ["fresh", "rebuilt"]

Operation = dict[str, Any]


def fresh(pod: Pod, injection: Injection) -> list[Operation]:
    """The patch for a pod that carries nothing of ours."""
    patch: list[Operation] = []
    if pod.spec.init_containers is None:
        patch.append(_add("/spec/initContainers", injection.containers))
    else:
        at = injection.position
        patch += [_add(f"/spec/initContainers/{at + i}", c) for i, c in enumerate(injection.containers)]
    if pod.spec.volumes is None:
        patch.append(_add("/spec/volumes", injection.volumes))
    else:
        patch += [_add("/spec/volumes/-", volume) for volume in injection.volumes]
    if pod.metadata.labels is None:
        patch.append(_add("/metadata/labels", injection.labels))
    else:
        patch += [_add(f"/metadata/labels/{_escape(key)}", value) for key, value in injection.labels.items()]
    return patch


def rebuilt(now: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Operation]:
    """The patch between two whole pods that differ in init containers, volumes, labels and annotations at most."""
    patch: list[Operation] = []
    for section, key in (
        ("spec", "initContainers"),
        ("spec", "volumes"),
        ("metadata", "labels"),
        ("metadata", "annotations"),
    ):
        old, new = (now.get(section) or {}).get(key), (wanted.get(section) or {}).get(key)
        if old == new or (not old and not new):
            continue
        path = f"/{section}/{key}"
        if old is None:
            patch.append(_add(path, new))
        elif isinstance(old, dict) and isinstance(new, dict):
            patch += [{"op": "remove", "path": f"{path}/{_escape(k)}"} for k in old if k not in new]
            patch += [_add(f"{path}/{_escape(k)}", v) for k, v in new.items() if old.get(k) != v]
        else:
            patch.append({"op": "replace", "path": path, "value": new if new is not None else []})
    return patch


def _add(path: str, value: Any) -> Operation:
    return {"op": "add", "path": path, "value": value}


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
