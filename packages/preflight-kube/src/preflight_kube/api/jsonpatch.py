"""Operations of a JSON Patch (RFC 6902), and the JSON Pointers in them (RFC 6901). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Operation = dict[str, Any]


def pointer(*keys: str | int) -> str:
    """The pointer to what is below ``keys``; ``-`` is the place behind the last item of a list."""
    return "".join(["/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys])


def keys(pointer: str) -> list[str]:
    """The keys of a pointer."""
    return [key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")[1:]]


def add(path: str, value: Any) -> Operation:
    """Set a key, or insert an item before the one at ``path``. What it is in must exist."""
    return {"op": "add", "path": path, "value": value}


def replace(path: str, value: Any) -> Operation:
    """Put ``value`` in the place of what must be at ``path``."""
    return {"op": "replace", "path": path, "value": value}


def remove(path: str) -> Operation:
    """Remove what must be at ``path``."""
    return {"op": "remove", "path": path}


def test(path: str, value: Any) -> Operation:
    """Refuse the whole patch unless ``value`` is at ``path``; for an API server null is also what
    is not there.
    """
    return {"op": "test", "path": path, "value": value}


def set_annotation(key: str, value: str) -> Operation:
    """Set one annotation beside others; the object must have one already."""
    return add(pointer("metadata", "annotations", key), value)


def set_annotations(values: Mapping[str, str], *, annotated: bool) -> list[Operation]:
    """Set annotations of an object that has some (``annotated``), or had none when it was read,
    which is tested.
    """
    if annotated:
        return [set_annotation(key, value) for key, value in values.items()]
    whole = pointer("metadata", "annotations")
    return [test(whole, None), add(whole, dict(values))] if values else []
