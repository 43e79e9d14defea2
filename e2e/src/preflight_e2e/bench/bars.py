"""What a bench's figures are held against."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Bar(NamedTuple):
    """One figure that must hold."""

    says: str
    value: float
    holds: bool


class BenchMeasurement(NamedTuple):
    """What a bench has measured, by its name. ``bars``: what it is held against, shown in ``form``
    (a format specification); ``shown``: whether the figures are printed where no file takes them.
    """

    figures: dict[str, Any]
    bars: Iterable[Bar] = ()
    form: str = ""
    shown: bool = True


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
