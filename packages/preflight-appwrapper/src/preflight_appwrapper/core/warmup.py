"""The time that preflight's own init containers take, which does not count against the warm-up.
Pure.

Computed from the pods' status alone, so that whoever leads next computes the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from preflight_proto import names

from preflight_appwrapper.api.types import Pod

__all__ = ["examined", "is_examined"]


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
    """Whether a preflight container of any of the pods runs now."""
    return any(
        one.state.running is not None
        for pod in pods
        if not pod.going
        for one in pod.status.init_container_statuses
        if one.name.startswith(names.CONTAINER_PREFIX)
    )


def _runs(pods: Iterable[Pod], now: datetime) -> Iterator[tuple[datetime, datetime]]:
    for pod in pods:
        if pod.going:
            continue
        for one in pod.status.init_container_statuses:
            if not one.name.startswith(names.CONTAINER_PREFIX):
                continue
            if one.state.running is not None and one.state.running.started_at is not None:
                yield one.state.running.started_at, now
            for ended in (one.state.terminated, one.last_state.terminated):
                if (
                    ended is not None
                    and ended.started_at is not None
                    and ended.finished_at is not None
                ):
                    yield ended.started_at, ended.finished_at
