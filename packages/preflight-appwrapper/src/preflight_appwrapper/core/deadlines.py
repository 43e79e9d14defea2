"""Ends of periods: never early, and about a second late at most. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_LAST: Final = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)


def deadline(since: datetime, seconds: float) -> datetime:
    """The moment at which it is acted: the end of the period, one second later where ``since`` is a
    whole second, which may have been cut. A period of zero is over at once.
    """
    if seconds <= 0:
        return since
    try:
        return since + timedelta(seconds=seconds + (0 if since.microsecond else 1))
    except OverflowError:
        return _LAST


def expired(since: datetime, seconds: float, now: datetime) -> bool:
    """Say whether :func:`deadline` has come."""
    return seconds <= 0 or now >= deadline(since, seconds)
