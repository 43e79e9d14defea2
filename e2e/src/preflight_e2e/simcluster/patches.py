"""The three patch formats, as a kube-apiserver applies them. Values given in are never changed."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

_MISSING = object()


class DoesNotApply(Exception):
    """The patch cannot be applied to this object: the real server answers 422 without saying why."""


def json_patch(target: dict[str, Any], operations: list[dict[str, Any]]) -> dict[str, Any]:
    """RFC 6902, all operations or none.

    Two habits of the real server's library: ``test`` with null holds where nothing is, if only the parent is there,
    and ``replace`` adds a missing member of an object.
    """
    result: Any = deepcopy(target)
    for operation in operations:
        op, path = operation.get("op"), _tokens(operation["path"])
        if op == "test":
            found = _get(result, path)
            if (None if found is _MISSING else found) != operation.get("value"):
                raise DoesNotApply(f"test {operation['path']}")
        elif op in {"add", "replace"}:
            _set(result, path, deepcopy(operation.get("value")), insert=op == "add")
        elif op == "remove":
            _take(result, path)
        elif op in {"move", "copy"}:
            origin = _tokens(operation["from"])
            value = _take(result, origin) if op == "move" else deepcopy(_get(result, origin))
            if value is _MISSING:
                raise DoesNotApply(f"{op} {operation['from']}")
            _set(result, path, value, insert=True)
        else:
            raise DoesNotApply(f"unknown op {op!r}")
    return result  # type: ignore[no-any-return]


def _tokens(pointer: str) -> list[str]:
    if not pointer.startswith("/"):
        raise DoesNotApply(f"path {pointer!r}")
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/")]


def _parent(target: Any, path: list[str]) -> Any:
    for token in path[:-1]:
        target = _child(target, token)
    if not isinstance(target, dict | list):
        raise DoesNotApply("/" + "/".join(path))
    return target


def _child(target: Any, token: str) -> Any:
    if isinstance(target, dict):
        return target.get(token, _MISSING)
    if isinstance(target, list):
        return target[_index(target, token)]
    return _MISSING


def _index(target: list[Any], token: str, *, end: int = 0) -> int:
    if token == "-" and end:
        return len(target)
    if not token.isdecimal() or int(token) >= len(target) + end:
        raise DoesNotApply(f"index {token}")
    return int(token)


def _get(target: Any, path: list[str]) -> Any:
    return _child(_parent(target, path), path[-1])


def _set(target: Any, path: list[str], value: Any, *, insert: bool) -> None:
    parent = _parent(target, path)
    if isinstance(parent, dict):
        parent[path[-1]] = value
    elif insert:
        parent.insert(_index(parent, path[-1], end=1), value)
    else:
        parent[_index(parent, path[-1])] = value


def _take(target: Any, path: list[str]) -> Any:
    parent = _parent(target, path)
    if _child(parent, path[-1]) is _MISSING:
        raise DoesNotApply("/" + "/".join(path))
    return parent.pop(path[-1] if isinstance(parent, dict) else _index(parent, path[-1]))


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result


def strategic_patch(target: Any, patch: Any) -> Any:
    """Strategic merge as far as it is a merge of maps; lists and directives are not implemented."""
    if _beyond_maps(patch):
        raise NotImplementedError("strategic merge of lists or with $ directives")
    return merge_patch(target, patch)


def _beyond_maps(patch: Any) -> bool:
    if isinstance(patch, dict):
        return any(str(name).startswith("$") or _beyond_maps(value) for name, value in patch.items())
    return isinstance(patch, list)
