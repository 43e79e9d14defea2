"""Where the size of a gang stands, for each source that the webhook stamps: which object, and which field of it.

Pure. The webhook knows pods; this table knows objects. API versions are discovered, never assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

__all__ = ["SOURCES", "SizeOf", "Source"]


class SizeOf(msgspec.Struct, frozen=True, kw_only=True):
    """What an object says about the size: ``count`` pods, or ``skip`` and why there is none to test, or ``unknown`` and why."""

    count: int | None = None
    skip: str = ""
    unknown: str = ""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of object that knows sizes: its API ``group`` and ``resource``, and ``read(object, stamp id)``."""

    name: str
    group: str
    resource: str
    kind: str
    read: Callable[[Mapping[str, Any], str], SizeOf]


def _policy(policy: Any, kind: str) -> SizeOf:
    """A scheduling policy of the native API: `gang` has a minimum, `basic` schedules pod by pod."""
    if not isinstance(policy, Mapping):
        return SizeOf(unknown=f"its {kind} has no policy")
    gang = policy.get("gang")
    if isinstance(gang, Mapping):
        count = gang.get("minCount")
        if isinstance(count, int) and count > 0:
            return SizeOf(count=count)
        return SizeOf(unknown=f"its {kind} has no minCount")
    if "basic" in policy:
        return SizeOf(skip=f"its {kind} has the policy basic: its pods are not started together")
    return SizeOf(unknown=f"its {kind} has no gang policy")


def _pod_group(found: Mapping[str, Any], _id: str) -> SizeOf:
    spec = found.get("spec") or {}
    return _policy(spec.get("schedulingPolicy"), "PodGroup")


def _workload(found: Mapping[str, Any], raw_id: str) -> SizeOf:
    """The id is `workload/podGroup[/replica]`."""
    group = raw_id.split("/")[1] if "/" in raw_id else ""
    groups = (found.get("spec") or {}).get("podGroups") or []
    for one in groups:
        if isinstance(one, Mapping) and one.get("name") == group:
            return _policy(one.get("policy"), f"Workload's pod group {group}")
    return SizeOf(unknown=f"its Workload has no pod group {group!r}")


SOURCES: Final[Mapping[str, Source]] = {
    source.name: source
    for source in (
        Source(
            name="schedulingGroup", group="scheduling.k8s.io", resource="podgroups", kind="PodGroup", read=_pod_group
        ),
        Source(name="workloadRef", group="scheduling.k8s.io", resource="workloads", kind="Workload", read=_workload),
    )
}
"""By the name in the stamp. A source that is not here knows its size from the pod (the stamp), or not at all."""
