"""Nodes whose labels say that running pods must leave, and what preflight has found
in a pod. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from preflight_proto import names
from preflight_proto.result import Result, from_termination

from preflight_appwrapper.api.rules import Autopilot
from preflight_appwrapper.api.types import Pod

__all__ = ["HardwareFailure", "Sick", "found_by_preflight", "must_leave", "sick_resources"]


class Sick(msgspec.Struct, frozen=True):
    """A running pod that uses a resource of its node which is marked NoExecute."""

    pod: str
    node: str
    resource: str


class HardwareFailure(msgspec.Struct, frozen=True):
    """What a preflight check left behind that failed on the hardware."""

    pod: str
    node: str
    result: Result


def sick_resources(labels: Mapping[str, str], autopilot: Autopilot) -> frozenset[str]:
    """The resources of a node with these labels that running pods must leave."""
    if not autopilot.monitor:
        return frozenset()
    return frozenset(
        resource
        for resource, taints in autopilot.taints.items()
        if any(
            taint.effect == "NoExecute" and labels.get(taint.key) == taint.value for taint in taints
        )
    )


def must_leave(pods: Iterable[Pod], nodes: Mapping[str, frozenset[str]]) -> Sick | None:
    """The first running pod, by name, that uses what ``nodes`` (by name: resources) says it must
    not.
    """
    for pod in sorted(pods, key=lambda it: it.name):
        if pod.going or pod.status.phase != "Running":
            continue
        for resource in sorted(nodes.get(pod.node, ())):
            if pod.asks(resource):
                return Sick(pod.name, pod.node, resource)
    return None


def found_by_preflight(pods: Iterable[Pod]) -> HardwareFailure | None:
    """The first pod, by name, in which a preflight check says *failed* in a result of its own.

    An exit status alone says nothing of the hardware, and a check that only observes decides
    nothing.
    """
    for pod in sorted(pods, key=lambda it: it.name):
        for one in pod.status.init_container_statuses:
            if not one.name.startswith(names.CONTAINER_PREFIX):
                continue
            for ended in (one.state.terminated, one.last_state.terminated):
                if ended is None or ended.exit_code == 0 or not ended.message.strip():
                    continue
                check = one.name.removeprefix(names.CONTAINER_PREFIX)
                result = from_termination(check, ended.message, ended.exit_code)
                if (
                    result.outcome == "failed"
                    and result.gated
                    and result.code != f"EXIT_{ended.exit_code}"
                ):
                    return HardwareFailure(pod.name, pod.node, result)
    return None
