"""Durations of a configuration, and its texts as they may stand in a sentence."""

from __future__ import annotations

from typing import Final

from preflight_proto.durations import parse_duration

__all__ = ["LONGEST", "MOST_DURATION", "duration_problems", "in_one_line"]

LONGEST: Final = 7 * 24 * 3600.0
"""Seconds that a check or a gang may be given; more is a typing error."""
MOST_DURATION: Final = 64
"""Characters."""


def duration_problems(path: str, value: str) -> list[str]:
    """What is wrong with the duration ``value`` at ``path``, in a sentence or none."""
    shown = in_one_line(value)
    try:
        seconds = parse_duration(value) if len(value) <= MOST_DURATION else None
    except OverflowError:
        seconds = None
    except ValueError as error:
        return [f"{path}: {in_one_line(str(error), 200)}."]
    if seconds is None or seconds > LONGEST:
        return [f'{path}: "{shown}" is longer than {LONGEST / 3600:g} hours; set less.']
    return [] if seconds > 0 else [f'{path}: "{shown}" is not longer than nothing; set e.g. 300s.']


def in_one_line(text: str, most: int = 60) -> str:
    """``text`` without line breaks, and not longer than ``most`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"
