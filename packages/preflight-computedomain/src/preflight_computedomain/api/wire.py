"""A check whether bytes are a message of protocol buffers: betterproto2 takes one that is cut, and
reads numbers where text should be.

Pure. The format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

__all__ = ["TEXT", "VARINT", "Shape", "fits"]

VARINT: Final = 0
TEXT: Final = 2
_FIXED: Final = {1: 8, 5: 4}
Shape: TypeAlias = "Mapping[int, int | Shape]"
"""By a field's number how it is encoded: :data:`VARINT`, :data:`TEXT`, or the shape of the message
in it.
"""


def fits(data: bytes, shape: Shape) -> bool:
    """Tell whether ``data`` is whole, and its fields are of ``shape``; fields that it does not name
    may be anything whole.
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if at < 0 or not 0 < number < 1 << 29:
            return False
        start = at
        if kind == VARINT:
            _, at = _varint(data, at)
        elif kind == TEXT:
            length, start = _varint(data, at)
            at = start + length if start >= 0 else -1
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:
            return False
        if not 0 <= at <= len(data) or not _as_expected(data[start:at], kind, shape.get(number)):
            return False
    return True


def _as_expected(value: bytes, kind: int, expected: int | Shape | None) -> bool:
    if expected is None:
        return True
    if isinstance(expected, int):
        return kind == expected and (kind != TEXT or _utf8(value))
    return kind == TEXT and fits(value, expected)


def _utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at ``at``, and where it ends; -1 where it does not."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            return 0, -1
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    return 0, -1
