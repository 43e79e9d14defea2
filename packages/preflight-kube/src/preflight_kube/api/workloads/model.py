"""What is said of a kind that makes pods: where its pod templates are, and what its controller
writes to the pods. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

Object = dict[str, Any]
Path = tuple[str, ...]
Keys = tuple[str | int, ...]
"""A place in one object: names of fields, and numbers of entries of a list."""


class PodMarks(NamedTuple):
    """What a controller writes to a pod: labels, annotations, variables; and the kind of the pod's
    owner (empty: the object's own).
    """

    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    owner: str = ""
    env: Mapping[str, str] = {}


class WorkloadKind(NamedTuple):
    """``group`` is empty for the core; ``versions`` are those that are known, newest first.

    In ``paths``, the places of pod templates, a star is every entry of a list, a percent sign every
    value of a map. ``written`` says of an object, its name and the part of it that a template is
    for what its controller writes. ``inner``: of a kind whose templates are in other objects,
    these, each with its place; of an object and those beside it. It raises ValueError, without the
    object's name. ``pods`` says of an object and the place of a template how many pods exist
    together that are made from it, and None where none ever is (1 where no number is known); it
    raises ValueError with the path of a number that is none.
    """

    kind: str
    group: str
    versions: tuple[str, ...]
    plural: str
    paths: tuple[Path, ...] = ()
    written: Callable[[Object, str, str], PodMarks] = lambda *_: PodMarks()
    inner: Callable[[Object, Iterable[Object]], Iterator[tuple[str, Object]]] | None = None
    pods: Callable[[Object, Keys], int | None] = lambda *_: 1

    @property
    def title(self) -> str:
        """As kubectl has it where kinds of several groups share a name."""
        shared = self.kind == "Job" and self.group != "batch"
        return f"{self.kind}.{self.group}" if shared else self.kind


def name_of(item: Mapping[str, Any]) -> str:
    """The object's name; empty where it has none."""
    return str(map_of(item.get("metadata")).get("name") or "")


def map_of(value: Any) -> Object:
    """``value`` where it is a map, else an empty one."""
    return value if isinstance(value, dict) else {}


def maps(value: Any) -> list[Object]:
    """The maps in ``value`` where it is a list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def whole(value: Any, otherwise: int) -> int:
    """``value`` where it is a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def at(item: Any, keys: Keys) -> Any:
    """What is there; None where nothing is."""
    for key in keys:
        if isinstance(key, int):
            item = item[key] if isinstance(item, list) and key < len(item) else None
        else:
            item = item.get(key) if isinstance(item, dict) else None
    return item


def dotted(keys: Keys) -> str:
    """``spec.groups[0].template``."""
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return path.removeprefix(".")


def replicas(item: Any, *keys: str | int) -> int:
    """The whole number at ``keys``, 1 where nothing is there. Raises :class:`ValueError` with the
    path of what is not a whole number.
    """
    value = at(item, keys)
    if value is None:
        return 1
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{dotted(keys)} is not a whole number")
    return value


_PARTS: Final = {
    "leaderTemplate": "leader",
    "workerTemplate": "worker",
    "headGroupSpec": "head",
    "submitterPodTemplate": "submitter",
}


class TemplatePlace(NamedTuple):
    """``keys`` lead from the object to ``template``, which may be anything but None; ``part`` is
    what of the object it is for, empty where there is one only.
    """

    keys: Keys
    part: str
    template: Any


def places(item: Object, kind: WorkloadKind) -> Iterator[TemplatePlace]:
    """The templates of an object of this kind, path by path; none where another
    object holds them.
    """
    for path in kind.paths:
        yield from _below(item, path, (), "")


def _below(item: Any, path: Path, keys: Keys, part: str) -> Iterator[TemplatePlace]:
    if not path:
        if item is not None:
            yield TemplatePlace(keys, part, item)
    elif path[0] == "*":
        for i, child in enumerate(item if isinstance(item, list) else []):
            about = map_of(child)
            name = about.get("name") or about.get("groupName")
            yield from _below(child, path[1:], (*keys, i), str(name or i))
    elif path[0] == "%":
        for name, child in map_of(item).items():
            yield from _below(child, path[1:], (*keys, str(name)), str(name))
    elif isinstance(item, dict):
        step = path[0]
        yield from _below(item.get(step), path[1:], (*keys, step), _PARTS.get(step, part))
