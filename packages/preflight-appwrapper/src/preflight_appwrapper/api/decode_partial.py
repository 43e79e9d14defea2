"""Decoding that does not give up an object for one bad field. Pure.

A typed conversion of the whole comes first, and nearly always succeeds. Where it does not, field by
field and item by item: what cannot be read has its default, and an item of a list keeps its place,
for some lists run parallel to others.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar, get_args, get_origin

import msgspec

T = TypeVar("T")

_FAILS = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)


def lenient(type_: type[T], raw: object) -> T:
    """``raw`` as the Struct ``type_``, every field of which has a default. Never raises."""
    try:
        return msgspec.convert(raw, type_)
    except _FAILS:
        made = _fields(type_, raw)
        assert isinstance(made, type_)
        return made


class _UnreadableError(Exception):
    pass


@lru_cache(maxsize=64)
def _shape(type_: type) -> tuple[tuple[str, str, Any], ...]:
    info = msgspec.structs.fields(type_)
    return tuple((one.name, one.encode_name, one.type) for one in info)


def _fields(type_: Any, raw: object) -> Any:
    if not isinstance(raw, dict):
        return type_()
    given: dict[str, Any] = {}
    for name, key, wanted in _shape(type_):
        if raw.get(key) is not None:
            try:
                given[name] = _value(wanted, raw[key])
            except _UnreadableError:
                continue
    return type_(**given)


def _value(wanted: Any, raw: object) -> Any:
    try:
        return msgspec.convert(raw, wanted)
    except _FAILS:
        pass
    parts = get_args(wanted)
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        return _fields(wanted, raw)
    if get_origin(wanted) is tuple and isinstance(raw, list | tuple):
        return tuple(made for item in raw for made in _item(parts[0], item))
    if get_origin(wanted) is dict and isinstance(raw, dict):
        return {
            key: made
            for key, item in raw.items()
            if isinstance(key, str)
            for made in _item(parts[1], item)
        }
    raise _UnreadableError


def _item(wanted: Any, raw: object) -> tuple[Any, ...]:
    try:
        return (_value(wanted, raw),)
    except _UnreadableError:
        return ()
