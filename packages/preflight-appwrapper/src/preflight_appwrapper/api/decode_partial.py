"""Decoding that does not give up an object for one bad field. Pure.

A typed conversion of the whole comes first, and nearly always succeeds. Where it does not, field by
field and item by item: what cannot be read has its default, and a Struct in a list keeps its place,
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
    (value,) = _readable(type_, raw)
    assert isinstance(value, type_)
    return value


def _readable(wanted: Any, raw: object) -> tuple[Any, ...]:
    """``raw`` as ``wanted``, alone in a tuple; an empty one where nothing of it can be read."""
    try:
        return (msgspec.convert(raw, wanted),)
    except _FAILS:
        pass
    parts = get_args(wanted)
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        given = raw if isinstance(raw, dict) else {}
        values = {
            name: value
            for name, key, type_ in _fields(wanted)
            if given.get(key) is not None
            for value in _readable(type_, given[key])
        }
        return (wanted(**values),)
    if get_origin(wanted) is tuple and isinstance(raw, list | tuple):
        return (tuple(value for item in raw for value in _readable(parts[0], item)),)
    if get_origin(wanted) is dict and isinstance(raw, dict):
        named = [(key, item) for key, item in raw.items() if isinstance(key, str)]
        return ({key: value for key, item in named for value in _readable(parts[1], item)},)
    return ()


@lru_cache(maxsize=64)
def _fields(type_: type) -> tuple[tuple[str, str, Any], ...]:
    info = msgspec.structs.fields(type_)
    return tuple((field.name, field.encode_name, field.type) for field in info)
