"""How an allow-list is read: rows from the top, of which the first about a thing decides. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


def _never(_: Any) -> bool:
    return False


class AllowRow(NamedTuple):
    """A thing of which ``what`` holds is refused, ``unless`` that holds too or there is no ``why``,
    in which ``{0}`` is the thing, and ``{1}`` what is so of it.
    """

    what: Callable[[Any], object]
    why: str = ""
    unless: Callable[[Any], object] = _never


def refusal(rows: Iterable[AllowRow], thing: object) -> str:
    """Why the thing is refused; empty where it is allowed, as is what no row is about."""
    for what, why, unless in rows:
        if detail := what(thing):
            return "" if unless(thing) else why.format(thing, detail)
    return ""
