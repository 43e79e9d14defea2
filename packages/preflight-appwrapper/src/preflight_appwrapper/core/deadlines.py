"""When a period is over, on timestamps of whole seconds: never early, about a second late at most.
Pure.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ["deadline", "expired", "text"]

_LAST: Final = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)


def deadline(since: datetime, seconds: float) -> datetime:
    """The moment at which it is acted: one second after the period, except that a period of zero is
    over at once.
    """
    if seconds <= 0:
        return since
    try:
        return since + timedelta(seconds=seconds + 1)
    except OverflowError:
        return _LAST


def expired(since: datetime, seconds: float, now: datetime) -> bool:
    """Whether :func:`deadline` has come."""
    return seconds <= 0 or now >= deadline(since, seconds)


def text(at: datetime) -> str:
    """In UTC, as Kubernetes writes times."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
