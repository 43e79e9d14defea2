"""One page of a list: its objects, each decoded by itself, within a bound of bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

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
from preflight_kube.errors import KubeError

T = TypeVar("T")

FIRST: Final = 100
"""Objects that are asked for first, when nobody knows yet how large they are."""
_AIM: Final = MOST_BYTES // 2
"""Bytes that the next page shall have, if its objects are like those of the last one."""
_FEWER: Final = 8
_MOST_ALONE: Final = 32 * 1024 * 1024
"""Bytes of a page with one object: of a request of 3 MiB an API server's answer can be 18 MiB."""
_ITEM: Final = 4
"""Levels: the page, its items, one of them, that one's metadata."""


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
    if limit == 1 and page.unreadable:  # as likely as not one of many, each a page too much
        return 1
    each = page.size / max(1, len(page.items) + len(page.unreadable))
    return max(1, min(2 * limit, int(_AIM / max(1.0, each)), most))


async def read_page(
    pieces: AsyncIterator[bytes], decoder: msgspec.json.Decoder[T], path: str, *, alone: bool
) -> Page[T]:
    """The page that ``pieces`` are. ``alone``: it has one object, which is passed over if it is too
    long, or nested too deeply for the page to be read.

    Raises :class:`TooMuch`, and :class:`~.errors.KubeError` where the answer is not a list.
    """
    kept, size = [], 0
    async for piece in pieces:
        kept.append(piece)
        size += len(piece)
        if size > MOST_BYTES and not alone:
            raise TooMuch
        if size > _MOST_ALONE:  # no API server's
            kept.clear()
            break
    data, read = b"".join(kept), None
    try:
        if size <= MOST_BYTES:
            read = _DECODER.decode(data)
    except RecursionError:  # one of the objects is to blame
        if not alone:
            raise TooMuch from None
    except ValueError:
        read = decoded(_DECODER, data, path)
    page = Page[T](size=size)
    if read is not None:
        page.version, page.token = read.metadata.resource_version, read.metadata.continue_ or ""
        for item in read.items or ():
            page._add(decoder, item)
    else:
        why = "it is nested too deeply"
        if size > MOST_BYTES:
            why = f"it has more than {MOST_BYTES} bytes"
        whole = await to_thread.run_sync(metadata_of, data)
        page.version, page.token = whole.get("resourceVersion", ""), whole.get("continue", "")
        metadata = await to_thread.run_sync(metadata_of, data, _ITEM)
        page.unreadable.append(identified(metadata, why))
    if not page.version:
        # What holds no version, or breaks off, must not be taken for a list without objects.
        raise KubeError(
            f"{path}: the answer is not a list of an API server's; does a proxy stand in between?"
        )
    return page
