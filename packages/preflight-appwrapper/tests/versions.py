"""What must hold of every version of everything, in the order of resourceVersions: as the
specification has it, not as the code does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from preflight_appwrapper.api.names import LABEL

Json = dict[str, Any]

FOLLOWS: dict[str, set[str]] = {
    "": {"Suspended", "Terminating"},
    "Suspended": {"Resuming", "Terminating"},
    "Resuming": {"Running", "Suspending", "Resetting", "Failed", "Terminating"},
    "Running": {"Suspending", "Resetting", "Failed", "Succeeded", "Terminating"},
    "Suspending": {"Suspended", "Terminating"},
    "Resetting": {"Resuming", "Suspending", "Terminating"},
    "Failed": {"Terminating"},
    "Succeeded": {"Terminating"},
    "Terminating": set(),
}
HOLDS_QUOTA = {"Resuming", "Running", "Suspending", "Resetting"}


@dataclass
class Seen:
    """One version of an object. ``at``: when the watch told of it, in seconds since the epoch."""

    version: int
    what: str
    type: str
    object: Json
    at: float = 0.0


def condition(wrapper: Json, type_: str) -> Json:
    found = [one for one in wrapper.get("status", {}).get("conditions", []) if one["type"] == type_]
    return found[0] if found else {}


@dataclass
class _Wrapper:
    """What was last seen of one. ``times``: of each condition that it has ever had."""

    phase: str = ""
    count: int = 0
    quota: bool = False
    times: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)


def problems(history: Iterable[Seen]) -> list[str]:
    """Versions at which something was left although a wrapper said that nothing is, or a quota was
    another than it must be; and what went back. Of a wrapper whose creation was not seen, the first
    version is taken as it is.
    """
    deployed: dict[str, str] = {}
    left: dict[str, tuple[str, str]] = {}
    wrappers: dict[str, _Wrapper] = {}
    found = []
    for one in sorted(history, key=lambda it: it.version):
        metadata = one.object["metadata"]
        if one.what == "wrappers":
            says = condition(one.object, "ResourcesDeployed").get("status", "False")
            deployed[metadata["name"]] = "False" if one.type == "DELETED" else says
            known = metadata["uid"] in wrappers or one.type == "ADDED"
            last = wrappers.setdefault(metadata["uid"], _Wrapper())
            wrong = list(_wrong(last, one.object))
            found += [f"{one.version}: {metadata['name']}: {it}" for it in wrong if known]
        elif (owner := metadata.get("labels", {}).get(LABEL)) is not None:
            if one.type == "DELETED":
                left.pop(metadata["uid"], None)
            else:
                left[metadata["uid"]] = (owner, f"{one.what} {metadata['name']}")
        for owner, what in left.values():
            if deployed.get(owner, "True") != "True":
                found.append(
                    f"{one.version}: {what} although ResourcesDeployed of {owner} is not True"
                )
    return found


def _wrong(last: _Wrapper, wrapper: Json) -> Iterator[str]:
    status = wrapper.get("status", {})
    phase, count = status.get("phase", ""), status.get("resettingCount", 0)
    if phase != last.phase and phase not in FOLLOWS[last.phase]:
        yield f"{phase or 'no phase'} after {last.phase or 'no phase'}"
    if count < last.count:
        yield f"resettingCount goes back from {last.count} to {count}"
    quota = condition(wrapper, "QuotaReserved").get("status") == "True"
    if quota != _reserves(last, phase, condition(wrapper, "ResourcesDeployed").get("status")):
        yield f"QuotaReserved is {quota} in {phase or 'no phase'}"
    yield from _times(last, "", status.get("conditions", []))
    for i, one in enumerate(status.get("componentStatus", [])):
        yield from _times(last, f"componentStatus[{i}].", one.get("conditions", []))
    last.phase, last.count, last.quota = phase, count, quota


def _reserves(last: _Wrapper, phase: str, deployed: str | None) -> bool:
    """Whether the quota is to be held. Failed and Terminating hold what they came with until
    everything is deleted.
    """
    if phase in {"Failed", "Terminating"}:
        return last.quota and deployed == "True"
    return phase in HOLDS_QUOTA


def _times(last: _Wrapper, where: str, conditions: Iterable[Json]) -> Iterator[str]:
    now = {f"{where}{one['type']}": one for one in conditions}
    for name, one in now.items():
        at = one["lastTransitionTime"]
        before = last.times.get(name, at)
        if at < before:
            yield f"lastTransitionTime of {name} goes back from {before} to {at}"
        if last.statuses.get(name) == one["status"] and at != before:
            yield f"lastTransitionTime of {name} moves from {before} to {at}, and its status does not"
        last.times[name] = at
    for name in [it for it in last.statuses if it.rpartition(".")[0] == where.removesuffix(".")]:
        del last.statuses[name]
    last.statuses.update({name: one["status"] for name, one in now.items()})
