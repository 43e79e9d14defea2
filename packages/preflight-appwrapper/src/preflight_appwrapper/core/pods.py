"""Exit codes, preflight's time, failed checks and marked nodes, of a wrapper's pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec
from preflight_proto import names
from preflight_proto.result import from_termination

from preflight_appwrapper.api.rules import Autopilot
from preflight_appwrapper.api.types import ContainerStatus, Pod
from preflight_appwrapper.core.parameters import ExitCodes

_KILLED: Final = frozenset({"Evicted", "Preempting", "Terminated"})
"""Reasons of pods that a kubelet ends for its node: pressure, a critical pod, a shutdown."""
_LOST: Final = frozenset({"ContainerStatusUnknown", "Unknown"})
"""A kubelet's, and containerd's, reasons of containers of whose end they know nothing, after a
reboot say; the code beside them is made up."""


class Exit(msgspec.Struct, frozen=True):
    """A container that ended with another code than 0."""

    pod: str
    node: str
    container: str
    code: int
    reason: str = ""


def exits(pod: Pod) -> Iterator[Exit]:
    """Init containers first, as they run; those of preflight have a rule of their own."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        ended, ours = status.state.terminated, status.name.startswith(names.CONTAINER_PREFIX)
        if ended is not None and ended.exit_code != 0 and not ours:
            yield Exit(pod.name, pod.node, status.name, ended.exit_code, ended.reason)


def terminal(pods: Iterable[Pod], codes: ExitCodes) -> Exit | None:
    """The first exit that ends the retries."""
    # What a kubelet has killed, or lost with its node, did not choose its code.
    own = (pod for pod in pods if not pod.going and pod.status.reason not in _KILLED)
    ends = (ended for pod in own for ended in exits(pod) if ended.reason not in _LOST)
    return next((ended for ended in ends if codes.ends_retries(ended.code)), None)


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
    return any(check.state.running for pod, check in _checks(pods) if not pod.going)


def _checks(pods: Iterable[Pod]) -> Iterator[tuple[Pod, ContainerStatus]]:
    """The containers of preflight."""
    return (
        (pod, status)
        for pod in pods
        for status in pod.status.init_container_statuses
        if status.name.startswith(names.CONTAINER_PREFIX)
    )


def _runs(pods: Iterable[Pod], now: datetime) -> Iterator[tuple[datetime, datetime]]:
    for check in (check for pod, check in _checks(pods) if not pod.going):
        if check.state.running is not None and check.state.running.started_at is not None:
            yield check.state.running.started_at, now
        for ended in (check.state.terminated, check.last_state.terminated):
            if ended is not None and ended.started_at and ended.finished_at:
                yield ended.started_at, ended.finished_at


def last_progress(pods: Iterable[Pod], otherwise: datetime) -> datetime:
    """Return when a container last began its first run, or ended; ``otherwise``: the earliest."""
    times = [otherwise]
    for pod in pods:
        for known in (*pod.status.init_container_statuses, *pod.status.container_statuses):
            running, ended = known.state.running, known.state.terminated
            if running is not None and known.last_state.terminated is None:
                times.append(running.started_at or otherwise)
            if ended is not None:
                times.append(ended.finished_at or otherwise)
    return max(times)


def sick_resources(labels: Mapping[str, str], autopilot: Autopilot) -> frozenset[str]:
    """The resources of a node with these labels that running pods must leave."""
    if not autopilot.monitor:
        return frozenset()
    return frozenset(
        resource
        for resource, taints in autopilot.taints.items()
        if any(t.effect == "NoExecute" and labels.get(t.key) == t.value for t in taints)
    )


class EvacuationCause(msgspec.Struct, frozen=True):
    """A pod by which its workload leaves a node; ``code``: of a failed check, if that is why."""

    pod: Pod
    why: str
    code: str = ""


def evacuation_cause(
    pods: Sequence[Pod], nodes: Mapping[str, frozenset[str]]
) -> EvacuationCause | None:
    """The first pod that must leave a resource of its node; else the first with a failed check."""
    on = [pod for pod in pods if pod.node in nodes] if nodes else []
    for pod in sorted(on, key=lambda pod: pod.name):
        if pod.status.phase != "Running" or pod.going:
            continue
        if resource := next(filter(pod.asks, sorted(nodes[pod.node])), ""):
            what = f"node {pod.node}, whose {resource} is marked NoExecute"
            return EvacuationCause(pod, f"pod {pod.name} runs on {what}")
    return _failed_check(pods)


def _failed_check(pods: Iterable[Pod]) -> EvacuationCause | None:
    """By a check with a result of its own: an exit status alone says nothing of the hardware."""
    for pod, status in sorted(_checks(pods), key=lambda check: check[0].name):
        check = status.name.removeprefix(names.CONTAINER_PREFIX)
        # One that has passed since, on another try, has not failed.
        ended = status.state.terminated or status.last_state.terminated
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
