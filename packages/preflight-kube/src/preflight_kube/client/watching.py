"""The events of a watch: lines of bounded length, each with one object, decoded by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar, cast, get_args

import msgspec

from preflight_kube.client.decoding import (
    MOST_BYTES,
    Undecodable,
    Unreadable,
    about,
    decode,
    decoded,
    metadata_paths,
    scanned,
    unreadable,
)
from preflight_kube.client.json_scan import Path, Scanner
from preflight_kube.errors import KubeError, Status, refused

__all__ = ["WatchEvent", "events"]

T = TypeVar("T")

_TYPE: Final[Path] = ("type",)
_VERSION: Final[Path] = ("object", "metadata", "resourceVersion")
_WANTED: Final = [_TYPE, *metadata_paths("object")]


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
        await line.add(first)
        for other in others:
            yield await line.event(decoder, path)
            line = _Line()
            await line.add(other)
    if line.begun:  # an API server ends each event with a line feed
        raise _no_event(path)


class _Line:
    """A line that is being received; what is too long is not kept, but its identity is."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self._size = 0
        self._scanner: Scanner | None = None

    @property
    def begun(self) -> bool:
        return self._scanner is not None or any(
            not piece.isspace() for piece in self._kept if piece
        )

    async def add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._scanner is not None:
            if not self._scanner.complete:
                await scanned(self._scanner, piece, _complete)
            return
        self._kept.append(piece)
        if self._size > MOST_BYTES:
            self._scanner = Scanner(_WANTED)
            await scanned(self._scanner, b"".join(self._kept), _complete)
            self._kept.clear()

    async def event(self, decoder: msgspec.json.Decoder[T], path: str) -> WatchEvent[T]:
        if self._scanner is not None:
            return _passed_over(self._scanner, f"it has more than {MOST_BYTES} bytes", path)
        data = b"".join(self._kept)
        try:
            frame = _FRAME.decode(data)
        except RecursionError:
            scanner = Scanner(_WANTED)
            await scanned(scanner, data, _complete)
            return _passed_over(scanner, "it is nested too deeply", path)
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


def _complete(scanner: Scanner) -> bool:
    return scanner.complete


def _kind(said: str, path: str) -> Kind:
    if said not in _KINDS:
        raise _no_event(path)
    return cast(Kind, said)


def _no_event(path: str) -> KubeError:
    return KubeError(
        f"watch {path}: a line is not an event of an API server's; does a proxy stand in between?"
    )


def _passed_over(scanner: Scanner, why: str, path: str) -> WatchEvent[T]:
    kind = _kind(scanner.found.get(_TYPE, ""), path)
    return WatchEvent(
        kind, None, scanner.found.get(_VERSION, ""), Unreadable(about(scanner.found), why)
    )
