"""One page of a list: its objects, each decoded by itself, within a bound of bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

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
from preflight_kube.errors import KubeError

__all__ = ["FIRST", "Page", "TooMuch", "next_limit", "read_page"]

T = TypeVar("T")

FIRST: Final = 100
"""Objects that are asked for first, when nobody knows yet how large they are."""
_AIM: Final = MOST_BYTES // 2
"""Bytes that the next page shall have, if its objects are like those of the last one."""
_FEWER: Final = 8

_VERSION: Final[Path] = ("metadata", "resourceVersion")
_TOKEN: Final[Path] = ("metadata", "continue")


class TooMuch(Exception):
    """The page is longer than ``MOST_BYTES``: ask for fewer objects."""


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str | None = msgspec.field(name="continue", default=None)


class _Page(msgspec.Struct):
    metadata: _Meta
    items: list[msgspec.Raw] | None


_DECODER: Final = msgspec.json.Decoder(_Page)


@dataclass
class Page(Generic[T]):
    """``version`` is that of the whole list, ``token`` leads to the next page (empty: none),
    ``size`` is in bytes.
    """

    items: list[T] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    version: str = ""
    token: str = ""
    size: int = 0

    def _add(self, decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw) -> None:
        try:
            self.items.append(decode(decoder, data))
        except Undecodable as error:
            self.unreadable.append(unreadable(data, str(error)))


def next_limit(limit: int, page: Page[T] | None, most: int) -> int:
    """How many objects to ask for after a ``page`` of ``limit``, None where it was too much: never
    more than ``most``.
    """
    if page is None:
        return max(1, limit // _FEWER)
    each = page.size / max(1, len(page.items) + len(page.unreadable))
    return max(1, min(2 * limit, int(_AIM / max(1.0, each)), most))


async def read_page(
    pieces: AsyncIterator[bytes], decoder: msgspec.json.Decoder[T], path: str, *, alone: bool
) -> Page[T]:
    """The page that ``pieces`` are. ``alone``: it has one object, which is passed over if it is too
    long.

    Raises :class:`TooMuch`, and :class:`~.errors.KubeError` where the answer is not a list.
    """
    kept, size = [], 0
    async for piece in pieces:
        kept.append(piece)
        size += len(piece)
        if size > MOST_BYTES:
            if not alone:
                raise TooMuch
            page, scanner = _scanner(decoder)
            for one in kept:
                await scanned(scanner, one)
            async for one in pieces:
                await scanned(scanner, one)
            return _ended(page, scanner, size, path)
    data = b"".join(kept)
    try:
        read = _DECODER.decode(data)
    except RecursionError:  # one of the objects is to blame: the others are found without a decoder
        page, scanner = _scanner(decoder)
        await scanned(scanner, data)
        return _ended(page, scanner, size, path)
    except ValueError:
        read = decoded(_DECODER, data, path)
    if not read.metadata.resource_version:
        raise _no_list(path)
    page = Page(
        version=read.metadata.resource_version, token=read.metadata.continue_ or "", size=size
    )
    for item in read.items or ():
        page._add(decoder, item)
    return page


def _scanner(decoder: msgspec.json.Decoder[T]) -> tuple[Page[T], Scanner]:
    page: Page[T] = Page()

    def on_item(data: bytes | None, found: dict[Path, str]) -> None:
        if data is not None:
            page._add(decoder, data)
        else:
            page.unreadable.append(Unreadable(about(found), f"it has more than {MOST_BYTES} bytes"))

    wanted = [_VERSION, _TOKEN, *metadata_paths("items")]
    return page, Scanner(wanted, items="items", on_item=on_item, most=MOST_BYTES)


def _ended(page: Page[T], scanner: Scanner, size: int, path: str) -> Page[T]:
    page.version, page.token = scanner.found.get(_VERSION, ""), scanner.found.get(_TOKEN, "")
    page.size = size
    if not (scanner.ended and page.version):
        raise _no_list(path)
    return page


def _no_list(path: str) -> KubeError:
    """What holds no version, or breaks off, must not be taken for a list without objects."""
    return KubeError(
        f"{path}: the answer is not a list of an API server's; does a proxy stand in between?"
    )
