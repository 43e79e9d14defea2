"""The events of a watch: lines of bounded length, each with one object, decoded by itself."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar, cast, get_args

import msgspec
from anyio import to_thread

from preflight_kube.client.decoding import (
    MOST_BYTES,
    Undecodable,
    Unreadable,
    decode,
    decoded,
    identified,
    metadata_of,
    unreadable,
)
from preflight_kube.errors import KubeError, Status, refused

T = TypeVar("T")

_BEGINS: Final = re.compile(rb'\s*\{\s*"type"\s*:\s*"([A-Z]+)"')
_OBJECT: Final = 3
"""Levels: the event, its object, that one's metadata."""


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Versioned(msgspec.Struct):
    metadata: _Meta


class _Frame(msgspec.Struct):
    type: str
    object: msgspec.Raw


_FRAME: Final = msgspec.json.Decoder(_Frame)
_STATUS: Final = msgspec.json.Decoder(Status)
_VERSIONED: Final = msgspec.json.Decoder(_Versioned)

Kind = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
_KINDS: Final = frozenset(get_args(Kind))


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One event of a watch. ``object`` is None for a bookmark, which only moves
    ``resource_version``, and where the object cannot be read: then ``unreadable`` says which.
    ``resource_version`` is empty where it could not be found out."""

    type: Kind
    object: T | None
    resource_version: str
    unreadable: Unreadable | None = None


async def events(
    pieces: AsyncIterator[bytes], decoder: msgspec.json.Decoder[T], path: str
) -> AsyncIterator[WatchEvent[T]]:
    """What ``pieces`` report, in order.

    Raises :class:`~.errors.KubeError`: by what the server says at the end of a watch, for a line
    that is not an event, or that breaks off.
    """
    line = _Line()
    async for piece in pieces:
        first, *others = piece.split(b"\n")
        line.add(first)
        for other in others:
            yield await line.event(decoder, path)
            line = _Line()
            line.add(other)
    if line.begun:  # an API server ends each event with a line feed
        raise _no_event(path)


class _Line:
    """A line that is being received; of what is too long only the beginning is kept, in which an
    API server names an object.
    """

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self._size = 0

    @property
    def begun(self) -> bool:
        return any(piece and not piece.isspace() for piece in self._kept)

    def add(self, piece: bytes) -> None:
        if self._size <= MOST_BYTES:
            self._kept.append(piece)
        self._size += len(piece)

    async def event(self, decoder: msgspec.json.Decoder[T], path: str) -> WatchEvent[T]:
        data = b"".join(self._kept)
        if self._size > MOST_BYTES:
            return await _passed_over(data, f"it has more than {MOST_BYTES} bytes", path)
        try:
            frame = _FRAME.decode(data)
        except RecursionError:
            return await _passed_over(data, "it is nested too deeply", path)
        except ValueError:  # a MsgspecError, or a UnicodeDecodeError
            frame = decoded(_FRAME, data, path)
        if frame.type == "ERROR":
            status = decoded(_STATUS, frame.object, path)
            raise refused(f"watch {path}", status.code, status)
        kind = _kind(frame.type, path)
        version = decoded(_VERSIONED, frame.object, path).metadata.resource_version
        if kind == "BOOKMARK":
            return WatchEvent(kind, None, version)
        try:
            return WatchEvent(kind, decode(decoder, frame.object), version)
        except Undecodable as error:
            return WatchEvent(kind, None, version, unreadable(frame.object, str(error)))


def _kind(kind: str, path: str) -> Kind:
    if kind not in _KINDS:
        raise _no_event(path)
    return cast(Kind, kind)


def _no_event(path: str) -> KubeError:
    return KubeError(
        f"watch {path}: a line is not an event of an API server's; does a proxy stand in between?"
    )


async def _passed_over(data: bytes, why: str, path: str) -> WatchEvent[T]:
    begins = _BEGINS.match(data)
    kind = _kind(begins[1].decode() if begins is not None else "", path)
    metadata = await to_thread.run_sync(metadata_of, data, _OBJECT)
    return WatchEvent(kind, None, metadata.get("resourceVersion", ""), identified(metadata, why))
