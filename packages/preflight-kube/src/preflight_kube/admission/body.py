"""A request's body as it comes in, bounded."""

from __future__ import annotations

from typing import Final

__all__ = ["BODY", "Body"]

BODY: Final = "body"
"""Where a request's scope holds its :class:`Body`."""
BEGINNING: Final = 1024
"""Bytes of a body that are kept of one that is not read."""


class Body:
    """A body as it comes: whole up to ``most`` bytes, else only its beginning, in which a review has its uid."""

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
