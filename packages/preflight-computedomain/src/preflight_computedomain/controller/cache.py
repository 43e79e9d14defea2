"""What the API server answered last about objects that were just written, until the mirror shows as
much.

Without it whoever looks at an object right after a write decides by what the mirror still has, and
writes the same again. Pure: whoever asks says what time it is (seconds of one clock).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, Protocol, TypeVar

from preflight_computedomain.api.types import Metadata

__all__ = ["TRUSTED", "Latest"]

TRUSTED: Final = 10.0
"""Seconds for which an answer is believed over the mirror: it may be of an object that went before
the answer was kept.
"""


class _Object(Protocol):
    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=_Object)
K = TypeVar("K", bound=Hashable)


class Latest(Generic[K, T]):
    """By whatever names an object for good, such as its namespace and name."""

    def __init__(self) -> None:
        self._answers: dict[K, tuple[float, T]] = {}
        self._gone: dict[str, float] = {}  # by uid

    def answered(self, key: K, found: T, now: float) -> None:
        """The API server has answered with ``found``."""
        self._answers[key] = (now + TRUSTED, found)

    def gone(self, key: K, uid: str, now: float) -> None:
        """The API server has none of this uid any more."""
        self._gone[uid] = now + TRUSTED
        if (kept := self._answers.get(key)) is not None and kept[1].metadata.uid == uid:
            del self._answers[key]

    def of(self, key: K, mirrored: T | None, now: float) -> T | None:
        """The newer one of the last answer and ``mirrored``; None where there is neither."""
        if mirrored is not None and self._gone.get(mirrored.metadata.uid, 0.0) > now:
            mirrored = None
        until, answer = self._answers.get(key, (0.0, None))
        if answer is None:
            return mirrored
        if until <= now or (mirrored is not None and _version(mirrored) >= _version(answer)):
            del self._answers[key]
            return mirrored
        return answer

    def forget(self, now: float) -> None:
        """Keep nothing that is too old to be believed."""
        self._answers = {key: kept for key, kept in self._answers.items() if kept[0] > now}
        self._gone = {uid: until for uid, until in self._gone.items() if until > now}


def _version(found: _Object) -> int:
    """Versions of one kind rise from write to write; one that is not a number
    counts as the oldest.
    """
    version = found.metadata.resource_version
    return int(version) if version.isdecimal() else 0
