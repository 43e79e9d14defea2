"""What a bench's figures are held against."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Bar", "all_hold", "at_least", "at_most", "below"]


class Bar(NamedTuple):
    """One figure that must hold."""

    says: str
    value: float
    holds: bool


def at_least(says: str, value: float, least: float) -> Bar:
    return Bar(f"{says} at least {least:g}", value, value >= least)


def at_most(says: str, value: float, most: float) -> Bar:
    return Bar(f"{says} at most {most:g}", value, value <= most)


def below(says: str, value: float, most: float) -> Bar:
    return Bar(f"{says} below {most:g}", value, value < most)


def all_hold(bars: Iterable[Bar], form: str = "") -> bool:
    """Print each bar, its value in ``form`` (a format specification); whether all hold."""
    checked = list(bars)
    for bar in checked:
        print(f"{'holds' if bar.holds else 'MISSED'}: {bar.says} (is {bar.value:{form}})")
    return all(bar.holds for bar in checked)
