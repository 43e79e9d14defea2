"""The one place where objects that anybody may have written are decoded: each by itself, none of
them at the cost of the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from preflight_kube.errors import KubeError
from preflight_kube.text import one_line

T = TypeVar("T")

MOST_BYTES: Final = 4 * 1024 * 1024
"""Of one object, and of one page of a list. An API server takes requests of 3 MiB at most
(MaxRequestBodyBytes in k8s.io/apiserver), and etcd 1.5 MiB; what it answers can be longer, because
it writes `<`, `>` and `&` with six bytes each."""
_MOST_WITH_NULLS: Final = 1024 * 1024
"""Bytes of an object that is looked through for nulls: for that it is built whole, which takes up
to thirty times as much.
"""
_MOST_NAME: Final = 4096
"""Characters: names have 253 at most."""
_MARK: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{]|[\]}]', re.DOTALL)
"""A string, or a bracket outside of one."""


class Undecodable(ValueError):
    """It cannot be read; the message says why and fits behind what it is about."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells an object from others; empty where it could not be found out."""

    name: str = ""
    namespace: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that is there, and cannot be read. ``metadata`` stands where objects have theirs,
    so the same key finds it.
    """

    metadata: Identity
    why: str


def decode(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw) -> T:
    """One object. A null that its type does not allow is as if it were not there, as everywhere in
    Kubernetes.

    Raises :class:`Undecodable`, and nothing else, whatever the bytes are.
    """
    try:
        try:
            return decoder.decode(data)
        except msgspec.ValidationError:
            text = bytes(data)
            if b"null" not in text or len(text) > _MOST_WITH_NULLS:
                raise
            return msgspec.convert(_without_nulls(msgspec.json.decode(text)), decoder.type)
    except RecursionError:
        raise Undecodable("it is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
        raise Undecodable(one_line(str(error), 200)) from None


def decoded(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw, path: str) -> T:
    """An answer that stands for itself. Raises :class:`KubeError`."""
    try:
        return decode(decoder, data)
    except Undecodable as error:
        raise KubeError(f"{path}: the API server's answer cannot be read ({error}).") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value if inner is not None]
    return value


# --- what is still found out about what cannot be read


def metadata_of(data: bytes | msgspec.Raw, depth: int = 2) -> dict[str, str]:
    """The strings of the first object called ``metadata`` that opens ``depth`` levels deep; empty
    where the text ends before it does.

    Takes for granted that the text is JSON, however deep or cut off, as an API server writes it. In
    a thread of its own where the text may be long.
    """
    try:
        metadata = msgspec.json.decode(_metadata(bytes(data), depth))
    except (msgspec.MsgspecError, ValueError):
        return {}
    return {key: text for key, text in metadata.items() if isinstance(text, str)}


def _metadata(text: bytes, depth: int) -> bytes:
    """That object, with null in place of what is nested in it."""
    kept: list[bytes] = []
    begins, level, key = -1, 0, b""
    for mark in _MARK.finditer(text):
        sign = mark[0][:1]
        if sign == b'"':
            if level == depth - 1:
                key = mark[0]
        elif sign in b"[{":
            level += 1
            if begins < 0:
                if level == depth and key == b'"metadata"':
                    begins = mark.start()
            elif level == depth + 1:
                kept += [text[begins : mark.start()], b"null"]
        else:
            level -= 1
            if begins >= 0 and level == depth:
                begins = mark.end()
            elif begins >= 0 and level < depth:
                return b"".join([*kept, text[begins : mark.end()]])
    return b""


def identified(metadata: Mapping[str, str], why: str) -> Unreadable:
    """By what :func:`metadata_of` has found; nothing that is longer than names are."""
    texts = [metadata.get(key, "") for key in ("name", "namespace", "uid")]
    return Unreadable(Identity(*("" if len(text) > _MOST_NAME else text for text in texts)), why)


def unreadable(data: bytes | msgspec.Raw, why: str) -> Unreadable:
    """By the object's own bytes."""
    return identified(metadata_of(data), why)
