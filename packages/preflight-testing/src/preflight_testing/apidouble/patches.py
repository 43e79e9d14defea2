"""The three patch formats, as a kube-apiserver applies them. Values given in are never changed."""

from __future__ import annotations

from typing import Any

import msgspec


class DoesNotApply(Exception):
    """The patch cannot be applied to this object: the real server answers 422
    without saying why.
    """


def copied(value: Any) -> Any:
    """A deep copy of JSON, a good deal faster than the general one."""
    return msgspec.json.decode(msgspec.json.encode(value))


def json_patch(target: Any, operations: list[dict[str, Any]]) -> Any:
    """RFC 6902, all operations or none.

    Two habits of the real server's library: ``test`` with null holds where nothing is, if only the
    parent is there, and ``replace`` adds a missing member of an object.
    """
    result = copied(target)
    for step in operations:
        try:
            _apply(result, step)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise DoesNotApply(f"{step}: {error}") from error
    return result


def _apply(document: Any, step: dict[str, Any]) -> None:
    parent, key = _locate(document, step["path"])
    match step["op"]:
        case "test":
            if (parent.get(key) if isinstance(parent, dict) else parent[key]) != step.get("value"):
                raise ValueError("something else is there")
        case "add":
            _add(parent, key, copied(step.get("value")))
        case "replace":
            parent[key] = copied(step.get("value"))
        case "remove":
            del parent[key]
        case "copy" | "move" as op:
            origin, name = _locate(document, step["from"])
            _add(parent, key, origin.pop(name) if op == "move" else copied(origin[name]))
        case other:
            raise ValueError(f"unknown op {other!r}")


def _locate(document: Any, pointer: str) -> tuple[Any, Any]:
    """The container that ``pointer`` leads into, and the key within it."""
    *way, last = [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]
    for token in way:
        document = document[int(token) if isinstance(document, list) else token]
    if isinstance(document, list):
        return document, len(document) if last == "-" else int(last)
    return document, last


def _add(parent: Any, key: Any, value: Any) -> None:
    if not isinstance(parent, list):
        parent[key] = value
    elif key <= len(parent):
        parent.insert(key, value)
    else:
        raise IndexError(key)


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    kept = target if isinstance(target, dict) else {}
    merged = {
        name: merge_patch(kept.get(name), value)
        for name, value in patch.items()
        if value is not None
    }
    return {name: value for name, value in kept.items() if name not in patch} | merged


def strategic_patch(target: Any, patch: Any) -> Any:
    """Strategic merge of maps, and of conditions by their type; other lists and directives are not
    implemented.
    """
    if not isinstance(patch, dict):
        return patch
    kept, merged = target if isinstance(target, dict) else {}, dict[str, Any]()
    for name, value in patch.items():
        if name.startswith("$") or (isinstance(value, list) and name != "conditions"):
            raise NotImplementedError("strategic merge of lists or with $ directives")
        if isinstance(value, list):
            types = {each["type"]: each for each in kept.get(name) or ()}
            types |= {
                each["type"]: strategic_patch(types.get(each["type"]), each) for each in value
            }
            merged[name] = list(types.values())
        elif value is not None:
            merged[name] = strategic_patch(kept.get(name), value)
    return {name: value for name, value in kept.items() if name not in patch} | merged
