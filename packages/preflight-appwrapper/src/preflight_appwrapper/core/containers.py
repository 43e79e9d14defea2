"""Containers of pods: with which exit codes they ended, whether one of them ends the retries, and
how long preflight's own took, which does not count against the warm-up. Pure.

All of it follows from the pods' status alone, so that whoever leads next computes the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec
from preflight_proto import names

from preflight_appwrapper.api.types import ContainerStatus, Pod
from preflight_appwrapper.core.parameters import ExitCodes

__all__ = ["Exit", "examined", "exits", "is_examined", "terminal"]


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
    """Seconds between ``start`` and ``now`` in which a preflight container of any of the pods ran,
    at most ``allowance``.
    """
    total, covered = 0.0, start
    for begin, end in sorted(_runs(pods, now)):
        begin, end = max(begin, covered), min(end, now)  # noqa: PLW2901
        if end > begin:
            total += (end - begin).total_seconds()
            covered = end
    return min(total, max(allowance, 0.0))


def is_examined(pods: Iterable[Pod]) -> bool:
    """Say whether a preflight container of any of the pods runs now."""
    return any(one.state.running is not None for one in _checks(pods))


def _checks(pods: Iterable[Pod]) -> Iterator[ContainerStatus]:
    """The containers of preflight in pods that are not being deleted."""
    for pod in pods:
        if not pod.going:
            for one in pod.status.init_container_statuses:
                if one.name.startswith(names.CONTAINER_PREFIX):
                    yield one


def _runs(pods: Iterable[Pod], now: datetime) -> Iterator[tuple[datetime, datetime]]:
    for one in _checks(pods):
        if one.state.running is not None and one.state.running.started_at is not None:
            yield one.state.running.started_at, now
        for ended in (one.state.terminated, one.last_state.terminated):
            if ended is not None and ended.started_at and ended.finished_at:
                yield ended.started_at, ended.finished_at
