"""How many requests to the API server whatever is under way may still send.

:class:`~.client.Client` counts for whoever set a budget: what it started counts with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

__all__ = ["BudgetSpent", "requests", "spend"]

_left: Final[ContextVar[list[int] | None]] = ContextVar("requests_left", default=None)


class BudgetSpent(Exception):
    """One request more than there may be was about to be sent; the message is one sentence."""


@contextmanager
def requests(most: int) -> Iterator[None]:
    """Let what runs within send ``most`` requests."""
    before = _left.set([most, most])
    try:
        yield
    finally:
        _left.reset(before)


def spend(what: str) -> None:
    """One request is about to be sent. Raises :class:`BudgetSpent`."""
    if (left := _left.get()) is None:
        return
    if left[0] <= 0:
        raise BudgetSpent(f"{what} would be more than the {left[1]} requests that are sent for it")
    left[0] -= 1
