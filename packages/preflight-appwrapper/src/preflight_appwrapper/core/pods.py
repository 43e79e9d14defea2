"""What the status of a wrapper's pods says: exit codes, how long preflight's own containers took,
what a check has found, and which pods must leave their nodes. Pure.

All of it follows from the pods and their nodes' labels alone, so that whoever leads next computes
the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

import msgspec
from preflight_proto import names
from preflight_proto.result import from_termination

from preflight_appwrapper.api.rules import Autopilot
from preflight_appwrapper.api.types import ContainerStatus, Pod
from preflight_appwrapper.core.parameters import ExitCodes


class Exit(msgspec.Struct, frozen=True):
    """A container that ended with another code than 0."""

    pod: str
    node: str
    container: str
    code: int


def exits(pod: Pod) -> Iterator[Exit]:
    """Init containers first, as they run; those of preflight have a rule of their own."""
    for one in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        ended = one.state.terminated
        if ended is None or ended.exit_code == 0 or one.name.startswith(names.CONTAINER_PREFIX):
            continue
        yield Exit(pod.name, pod.node, one.name, ended.exit_code)


def terminal(pods: Iterable[Pod], codes: ExitCodes) -> Exit | None:
    """The first exit that ends the retries."""
    return next((one for pod in pods for one in exits(pod) if codes.ends_retries(one.code)), None)


def examined(pods: Iterable[Pod], start: datetime, now: datetime, allowance: float) -> float:
    """Seconds in which a preflight container of any pod ran, at most ``allowance``."""
    total, covered = 0.0, start
    for begin, end in sorted(_runs(pods, now)):
        begin, end = max(begin, covered), min(end, now)  # noqa: PLW2901
        if end > begin:
            total += (end - begin).total_seconds()
            covered = end
    return min(total, max(allowance, 0.0))


def is_examined(pods: Iterable[Pod]) -> bool:
    """Say whether a preflight container of any of the pods runs now."""
    return any(it.state.running for pod in pods if not pod.going for it in _checks(pod))


def _checks(pod: Pod) -> Iterator[ContainerStatus]:
    """The containers of preflight."""
    statuses = pod.status.init_container_statuses
    return (one for one in statuses if one.name.startswith(names.CONTAINER_PREFIX))


def _runs(pods: Iterable[Pod], now: datetime) -> Iterator[tuple[datetime, datetime]]:
    for one in (check for pod in pods if not pod.going for check in _checks(pod)):
        if one.state.running is not None and one.state.running.started_at is not None:
            yield one.state.running.started_at, now
        for ended in (one.state.terminated, one.last_state.terminated):
            if ended is not None and ended.started_at and ended.finished_at:
                yield ended.started_at, ended.finished_at


def sick_resources(labels: Mapping[str, str], autopilot: Autopilot) -> frozenset[str]:
    """The resources of a node with these labels that running pods must leave."""
    if not autopilot.monitor:
        return frozenset()
    return frozenset(
        resource
        for resource, taints in autopilot.taints.items()
        if any(it.effect == "NoExecute" and labels.get(it.key) == it.value for it in taints)
    )


class EvacuationCause(msgspec.Struct, frozen=True):
    """A pod by which its workload leaves a node; ``code``: of a failed check, if that is why."""

    pod: Pod
    why: str
    code: str = ""


def evacuation_cause(
    pods: Iterable[Pod], nodes: Mapping[str, frozenset[str]]
) -> EvacuationCause | None:
    """The first pod, by name, that runs on a resource which ``nodes`` (by name: resources) says it
    must leave; else the first in which a preflight check has failed.
    """
    ordered = sorted(pods, key=lambda it: it.name)
    for pod in ordered:
        if pod.going or pod.status.phase != "Running":
            continue
        for resource in sorted(nodes.get(pod.node, ())):
            if pod.asks(resource):
                why = (
                    f"pod {pod.name} runs on node {pod.node}, whose {resource} is marked NoExecute"
                )
                return EvacuationCause(pod, why)
    return next((failed for pod in ordered if (failed := _failed_check(pod)) is not None), None)


def _failed_check(pod: Pod) -> EvacuationCause | None:
    """What a check says that *failed* in a result of its own: an exit status alone says nothing of
    the hardware, and a check that only observes decides nothing.
    """
    for status in _checks(pod):
        check = status.name.removeprefix(names.CONTAINER_PREFIX)
        for ended in (status.state.terminated, status.last_state.terminated):
            if ended is None or ended.exit_code == 0 or not ended.message.strip():
                continue
            result = from_termination(check, ended.message, ended.exit_code)
            own = result.code != f"EXIT_{ended.exit_code}"
            if result.outcome == "failed" and result.gated and own:
                words = f": {result.reason}" if result.reason else ""
                where = f"in pod {pod.name} on node {pod.node}"
                why = f"check {result.check} failed {where} ({result.code}{words:.200})"
                return EvacuationCause(pod, why, f"{result.code} of {result.check}")
    return None
