"""What fits into one message, and into a reader, however large the gang is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from .frames import MAX_MESSAGE
from .messages import VerdictMessage, encode

__all__ = ["few", "fitting"]

NAMED: Final = 16
"""Members that one sentence names."""
REASON: Final = 8 * 1024
DETAIL: Final = 1024
"""Characters of a reason, and of each further text, where the whole does not fit."""


def few(names: Sequence[str], separator: str = ", ") -> str:
    """The first names, and how many there are besides."""
    if len(names) <= NAMED:
        return separator.join(names)
    return f"{separator.join(names[:NAMED])} and {len(names) - NAMED} more"


def fitting(verdict: VerdictMessage, rank: int) -> VerdictMessage:
    """The verdict as this member gets it: all of it, or, where that is too much for one message,
    without what concerns others alone.
    """
    if len(encode(verdict)) <= MAX_MESSAGE:
        return verdict
    return msgspec.structs.replace(
        verdict,
        reason=_cut(verdict.reason, REASON),
        metadata={name: _cut(text, DETAIL) for name, text in verdict.metadata.items()},
        named={one: _cut(text, DETAIL) for one, text in verdict.named.items() if one == rank},
        evidence={one: _cut(text, DETAIL) for one, text in verdict.evidence.items() if one == rank},
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
