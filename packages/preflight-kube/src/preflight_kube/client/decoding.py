"""The one place where objects that anybody may have written are decoded: each by itself, none of
them at the cost of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import anyio.lowlevel
import msgspec

from preflight_kube.client.json_scan import MOST_TEXT, Path, Scanner
from preflight_kube.errors import KubeError

__all__ = [
    "MOST_BYTES",
    "Identity",
    "Undecodable",
    "Unreadable",
    "about",
    "decode",
    "decoded",
    "metadata_paths",
    "scanned",
    "unreadable",
]

T = TypeVar("T")

MOST_BYTES: Final = 4 * 1024 * 1024
"""Of one object, and of one page of a list. An API server takes requests of 3 MiB at most
(MaxRequestBodyBytes in k8s.io/apiserver), and etcd 1.5 MiB; what it answers can be longer, because
it writes `<`, `>` and `&` with six bytes each."""
_MOST_WITH_NULLS: Final = 1024 * 1024
"""Bytes of an object that is looked through for nulls: for that it is built whole, which takes up
to thirty times as much.
"""
_MOST_WORDS: Final = 200
_PIECE: Final = 64 * 1024

_METADATA: Final = ("name", "namespace", "uid", "resourceVersion")


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
        return decoder.decode(data)
    except RecursionError:
        raise Undecodable("it is nested too deeply") from None
    except msgspec.ValidationError as error:
        found = str(error)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
        raise Undecodable(_words(error)) from None
    if b"null" not in bytes(data):
        raise Undecodable(_words(found))
    if len(bytes(data)) > _MOST_WITH_NULLS:
        raise Undecodable(
            f"{_words(found)}, and with more than {_MOST_WITH_NULLS} bytes it is not looked at closer"
        )
    try:
        return msgspec.convert(_without_nulls(msgspec.json.decode(data)), decoder.type)
    except RecursionError:
        raise Undecodable("it is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
        raise Undecodable(_words(error)) from None


def decoded(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw, path: str) -> T:
    """An answer that stands for itself. Raises :class:`KubeError`."""
    try:
        return decode(decoder, data)
    except Undecodable as error:
        raise KubeError(f"{path}: the API server's answer cannot be read ({error}).") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_nulls(one) for one in value if one is not None]
    return value


def _words(error: object) -> str:
    """Why, without whatever an object's author wants to have in a log."""
    said = str(error).replace("\n", " ")
    said = said if said.isprintable() else ascii(said)
    return said if len(said) <= _MOST_WORDS else said[:_MOST_WORDS] + "…"


# --- what is still found out about what cannot be read


def metadata_paths(*before: str) -> list[Path]:
    """Where an object's identity stands, if the object itself stands at ``before``."""
    return [(*before, "metadata", name) for name in _METADATA]


def about(found: dict[Path, str]) -> Identity:
    """The identity in what a scan of :func:`metadata_paths` has found."""
    texts = {
        path[-1]: text
        for path, text in found.items()
        if path[-2:-1] == ("metadata",) and len(text) < MOST_TEXT
    }
    return Identity(texts.get("name", ""), texts.get("namespace", ""), texts.get("uid", ""))


def unreadable(data: bytes | msgspec.Raw, why: str) -> Unreadable:
    """By the object's own bytes. Meant for what can be decoded, though not as its type; the rest is
    :func:`scanned`.
    """
    scanner = Scanner(metadata_paths())
    text = bytes(data)
    for at in range(0, len(text), _PIECE):
        scanner.feed(text[at : at + _PIECE])
        if scanner.complete:
            break
    return Unreadable(about(scanner.found), why)


async def scanned(
    scanner: Scanner, data: bytes, enough: Callable[[Scanner], bool] = lambda _: False
) -> None:
    """Feed ``data``, and let the event loop turn meanwhile; stop where it is ``enough``."""
    for at in range(0, len(data), _PIECE):
        scanner.feed(data[at : at + _PIECE])
        if enough(scanner):
            return
        await anyio.lowlevel.checkpoint()
