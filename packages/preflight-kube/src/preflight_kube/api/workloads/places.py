"""Where in an object its pod templates are, and how many pods are made from each. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from preflight_kube.api.workloads.model import Keys, Object, Path, WorkloadKind, map_of

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


def pods_at(item: Object, kind: WorkloadKind, keys: Keys) -> int | None:
    """How many pods exist together that are made from the template at ``keys``, by the object
    itself; None where none is ever made from it. A kind of which no number is known has one.

    Raises :class:`ValueError` with the path of a number that is none.
    """
    return 1 if kind.pods is None else kind.pods(item, keys)


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
