"""What the API server has refused: when it may be asked again, and what is said about it meanwhile.

Pure: whoever asks says what time it is (seconds of one clock).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

import msgspec

from preflight_kube.errors import Conflict, KubeError, NotFound, PreconditionFailed
from preflight_kube.text import one_line

K = TypeVar("K", bound=Hashable)

FIRST: Final = 1.0
"""Seconds from the first refusal to the next try; each further one doubles them."""
LONGEST: Final = 60.0
"""Seconds, at most but for the jitter, between two tries of what is refused by the request's own
fault.
"""
LONGEST_SERVER: Final = 15.0
"""The same where the server is at fault or silent: it serves everybody again at once when it is
back.
"""
FIRST_STALE: Final = 0.1
"""Seconds from the first conflict to the next try: somebody has written meanwhile, and the watch
brings it.
"""
JITTER: Final = 0.25
"""Share of a pause that is added at random, so that what was refused together is not tried again
together.
"""
PERSISTENT: Final = 10
"""Refusals in a row after which even a conflict or a fault of the server (a webhook that does not
answer) counts as the cause.
"""
_LATER: Final = frozenset({0, 429, 503, 504})
"""No answer, or "later": says nothing about what was asked."""
_FORBIDDEN: Final = 403
_FOR_GOOD: Final = frozenset({400, 403, 405, 413, 422})


class Obstructed(KubeError):
    """What is there belongs to somebody else; the message says what to do."""


def for_good(error: KubeError) -> bool:
    """Whether the same request will be refused again until somebody changes something: right,
    quota, policy, validation.
    """
    return isinstance(error, Obstructed) or (error.status in _FOR_GOOD and not _stale(error))


def terminating(error: KubeError) -> bool:
    """Tell whether nothing is made any more since the namespace is being deleted."""
    return error.status == _FORBIDDEN and "being terminated" in str(error)


def cause_of(error: KubeError) -> str:
    """What the API server said, as part of a sentence for a person: printable, and bounded."""
    return one_line(str(error).rstrip(". "), 300)


class _Refused(msgspec.Struct):
    tries: int
    until: float
    cause: str


class Refusals(Generic[K]):
    """By what was to be written. ``jitter`` gives numbers from 0 to 1."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._refused: dict[K, _Refused] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def left(self, key: K, now: float) -> float:
        """Seconds until it may be tried again; 0: now."""
        known = self._refused.get(key)
        return max(0.0, known.until - now) if known is not None else 0.0

    def cause(self, key: K) -> str:
        """Why it cannot be written, in words; empty where it can, or where it is
        too early to say.
        """
        known = self._refused.get(key)
        return known.cause if known is not None else ""

    def refused(self, key: K, error: KubeError, now: float, cause: str = "") -> float:
        """Note a refusal, and its ``cause`` in other words than the API server's; the seconds until
        the next try.
        """
        known = self._refused.setdefault(key, _Refused(0, 0.0, ""))
        known.tries += 1
        if for_good(error) or (known.tries >= PERSISTENT and error.status not in _LATER):
            known.cause = cause or cause_of(error)
        longest = LONGEST_SERVER if error.status in {0, 429} or error.status >= 500 else LONGEST
        pause = min(
            longest, (FIRST_STALE if _stale(error) else FIRST) * 2.0 ** min(known.tries - 1, 16)
        )
        pause *= 1 + JITTER * self._jitter()
        known.until = now + pause
        return pause

    def first(self, key: K) -> bool:
        """Whether it has been refused once so far."""
        known = self._refused.get(key)
        return known is not None and known.tries == 1

    def done(self, key: K) -> None:
        """It was written, or is not to be written any more."""
        self._refused.pop(key, None)


def _stale(error: KubeError) -> bool:
    return isinstance(error, Conflict | NotFound | PreconditionFailed)
