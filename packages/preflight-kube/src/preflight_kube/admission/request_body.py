"""A review's request as it comes in: why it is none, and its body, bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, Final

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MAX_BODY: Final = 3 * 1024 * 1024
"""Bytes of a review that is read. etcd takes objects of 1.5 MiB. What an API server sends may be
larger all the same: it takes requests of 3 MiB and writes `<` as six bytes. A larger review is
denied by its uid rather than refused, for what is refused is admitted unchecked under failurePolicy
Ignore."""
MOST_SKIPPED: Final = 256 * 1024 * 1024
"""Bytes of a body that is not kept, only read to its end."""
_JSON: Final = b"application/json"

BODY: Final = "body"
"""Where a request's scope holds its :class:`Body`."""
BEGINNING: Final = 1024
"""Bytes of a body that are kept of one that is not read."""


class Body:
    """A body as it comes: whole up to ``most`` bytes, else only its beginning, in which a review
    has its uid.
    """

    def __init__(self, most: int) -> None:
        self._most, self._chunks = most, list[bytes]()
        self.size = 0
        self.dropped = ""
        """Why there is only a beginning; empty where it is whole."""

    def add(self, chunk: bytes) -> None:
        """Take what came."""
        self.size += len(chunk)
        if self.size > self._most and not self.dropped:
            self.drop(f"it is larger than the {self._most} bytes that are read of a review")
        if not self.dropped or not self._chunks:
            self._chunks.append(chunk[:BEGINNING] if self.dropped else chunk)

    def drop(self, why: str) -> None:
        """Keep no more than its beginning."""
        self.dropped = why
        self._chunks[:] = [b"".join(self._chunks)[:BEGINNING]] if self._chunks else []

    def read(self) -> bytes:
        """What there is of it."""
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)


class ReviewRefused(Exception):
    """The request is not a review, or there is no answer to it: an HTTP status, and one sentence.
    ``uid``: the review's, where it was read.
    """

    def __init__(self, status: int, message: str, uid: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.uid = status, message, uid


def problem(scope: Scope, paths: Collection[str]) -> ReviewRefused | None:
    """Why this is not a review to one of ``paths``, as far as that shows before its body."""
    if scope["path"] not in paths:
        return ReviewRefused(404, f"not found; POST an AdmissionReview to {' or '.join(paths)}")
    if scope["method"] != "POST":
        return ReviewRefused(
            405,
            f"{scope['method']} is not allowed; POST an AdmissionReview to {' or '.join(paths)}",
        )
    for name, value in scope["headers"]:
        if name == b"content-type":
            if value != _JSON and value.split(b";", 1)[0].strip().lower() != _JSON:
                content_type = value.decode("latin-1")[:80]
                return ReviewRefused(
                    415, f"content-type {content_type} is not supported; send application/json"
                )
        elif name == b"content-length" and (len(value) > 18 or int(value) > MOST_SKIPPED):
            return _too_large()
    return None


async def read(scope: Scope, receive: Receive) -> Body:
    """The body of a request; whole, or its beginning. Raises :class:`ReviewRefused`."""
    body: Body = scope.setdefault(BODY, Body(MAX_BODY))
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ReviewRefused(400, "the connection ended within the body")
        body.add(message.get("body", b""))
        if body.size > MOST_SKIPPED:
            raise _too_large()
        if not message.get("more_body", False):
            return body


def _too_large() -> ReviewRefused:
    return ReviewRefused(
        413, f"a body of more than {MOST_SKIPPED} bytes is too large; the limit is {MAX_BODY}"
    )
