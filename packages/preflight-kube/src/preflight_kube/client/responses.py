"""An API server's answers: their bytes within bounds of size and time, and the errors that refusals
are.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Annotated, Final, Literal

import anyio
import httpcore
import msgspec

from preflight_kube.client.decoding import MOST_BYTES, Undecodable, decode, unreadable
from preflight_kube.client.paging import TooMuch
from preflight_kube.errors import KubeError, Status, Unusable, refused

LONGEST: Final = 120.0
"""Seconds that one answer may take in all; one that comes byte by byte never meets the time for its
next bytes.
"""
_MOST_WORDS: Final = 8192
"""Characters of what a refusal says that are kept."""
_STATUS: Final = msgspec.json.Decoder(Status)
_NOT_SERVED: Final = b"404 page not found"
"""What an API server says of an API group that it does not have; to all else that is not there it
answers with a Status.
"""


class _Written(msgspec.Struct, rename="camel"):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    resource_version: Annotated[str, msgspec.Meta(min_length=1)]


class _Object(msgspec.Struct):
    metadata: _Written


class _Done(msgspec.Struct):
    kind: Literal["Status"]
    status: Literal["Success"]


_OBJECT: Final = msgspec.json.Decoder(_Object)
_DONE: Final = msgspec.json.Decoder(_Done)


def known(code: int, body: bytes, what: str, *, bare: bool = False) -> None:
    """Raises :class:`KubeError` where it is not an answer of an API server's, such as the page of a
    proxy: nobody knows whether it was done.

    ``bare``: a Status of success is what is answered, and not the object.
    """
    try:
        if bare:
            decode(_DONE, body)
        else:
            decode(_OBJECT, body)
    except Undecodable as error:
        raise KubeError(
            f"{what}: the answer {code} is not an object ({error}); does a proxy stand in between?"
        ) from None


def retry_after(answer: httpcore.Response) -> float | None:
    """Seconds that the server asks us to wait before the next attempt: also while it cannot reach
    its own storage (500), or is behind it (504).
    """
    if answer.status != 429 and answer.status < 500:
        return None
    headers = {name.lower(): value for name, value in answer.headers}
    try:
        asked = float(headers[b"retry-after"])
    except (KeyError, ValueError):
        return None
    return None if math.isnan(asked) else min(max(asked, 0.1), 30.0)


def refusal(code: int, body: bytes, what: str, *, json_patch: bool = False) -> KubeError:
    """The error that a refusal of ``what`` is; NotFound only where an API server itself says so."""
    try:
        status = decode(_STATUS, body)
    except Undecodable:
        status = Status()
    message = status.message or body[:200].decode(errors="replace").strip()
    status.message = message[:_MOST_WORDS]
    absent = (status.kind, status.reason) == ("Status", "NotFound") or body.strip() == _NOT_SERVED
    if code == 404 and not absent:  # a proxy's: nobody knows what there is
        return KubeError(
            f"{what}: the API server answered {code} ({status.message}), which is not in an API server's words; "
            "does a proxy stand in between?",
            code,
        )
    return refused(what, code, status, json_patch=json_patch)


async def whole(pieces: AsyncIterator[bytes]) -> bytes:
    """All of an answer. Raises :class:`~.paging.TooMuch` with what came of one of more than
    ``MOST_BYTES``.
    """
    kept, size = [], 0
    async for piece in pieces:
        kept.append(piece)
        size += len(piece)
        if size > MOST_BYTES:
            raise TooMuch(b"".join(kept))
    return b"".join(kept)


def kind_of(data: bytes) -> type[KubeError]:
    """Of the error that ``data`` cannot be read. What has no name is not an object that somebody
    made so: another try may find a better one.
    """
    return Unusable if unreadable(data, "").metadata.name else KubeError


async def timely(answer: httpcore.Response, longest: float, what: str) -> AsyncIterator[bytes]:
    """The answer's bytes as they come, never unpacked. Raises :class:`KubeError` when it has not
    ended after ``longest`` seconds.
    """
    end = anyio.current_time() + longest
    async for piece in answer.aiter_stream():
        if anyio.current_time() > end:
            raise KubeError(
                f"{what}: the answer has not ended after {longest:g} s; does a proxy stand in between?"
            )
        yield piece


async def words(answer: httpcore.Response) -> bytes:
    """What an answer says that is none of those that are wanted. A Status names its object, and a
    name may be as long as whoever asked made it.
    """
    try:
        return await whole(timely(answer, LONGEST, "a refusal"))
    except TooMuch:
        return b""
