"""JSON objects among other text, in time linear in its length: the output comes from over the
network.

A tool's warnings may stand before, between and after the objects, and may hold braces and quotes of
their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

MAX_DEPTH: Final = 64
"""Levels of nesting; DCGM's documents have nine."""
MAX_STARTS: Final = 256
"""Places tried that turned out to begin no object. More is noise, and each may cost a look at all
the rest.
"""

_START: Final = re.compile(r'\{(?=\s*+["}])')
_TOKEN: Final = re.compile(r'"(?:[^"\\\n]|\\.)*+"|["{}\[\]]')


def objects(text: str, holding: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Every JSON object on the outermost level of ``text``, in order; what is not an object is
    passed over.

    ``holding``: only those in whose text one of these words stands; the others are not even
    decoded.
    """
    position = starts = 0
    while starts < MAX_STARTS and (start := _START.search(text, position)):
        end, closed = _end(text, start.start())
        if closed:
            candidate = text[start.start() : end]
            if holding and not any(word in candidate for word in holding):
                position = end
                continue
            if (value := _decoded(candidate)) is not None:
                yield value
                position = end
                continue
            end = start.start()
        starts += 1
        # Too deep: nothing inside can be meant either. Else the brace was somebody's punctuation.
        position = end if end > start.start() else start.end()


def _end(text: str, start: int) -> tuple[int, bool]:
    """Where the object that begins at ``start`` ends, and that it does; else where to look on, or
    ``start`` for right after it.
    """
    depth = 0
    for token in _TOKEN.finditer(text, start):
        mark = token[0]
        if mark in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                return token.end(), False
        elif mark in "}]":
            depth -= 1
            if depth == 0:
                return token.end(), True
        elif mark == '"':
            return start, False  # a string without an end
    return start, False


def _decoded(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
