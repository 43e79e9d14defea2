"""A mirrored collection, and what the API server answered last about objects that were just
written, until the mirror shows as much.

Without the answers whoever looks at an object right after a write decides by what the mirror still
has, and writes the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, Protocol, TypeVar

from preflight_kube.client.client import Client
from preflight_kube.runtime.indexes import namespaced_name
from preflight_kube.runtime.reflector import Change, Reflector

from preflight_computedomain.api.types import Metadata, Place

__all__ = ["TRUSTED", "Cache"]

TRUSTED: Final = 10.0
"""Seconds for which an answer is believed over the mirror: it may be of an object that went before
the answer was kept.
"""


class _Object(Protocol):
    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=_Object)


class Cache(Generic[T]):
    """Objects by namespace and name. ``changed``, ``indexes``: as a Reflector has them."""

    def __init__(
        self,
        client: Client,
        path: str,
        type_: type[T],
        changed: Callable[[Change[T]], None],
        indexes: Mapping[str, Callable[[T], Iterable[str]]],
    ) -> None:
        self._clock, self._changed = client.clock, changed
        self._answers: dict[Place, tuple[float, str, T | None]] = {}  # until, uid; None: it is gone
        self.mirror = Reflector(
            client,
            path,
            type_,
            on_change=self._mirrored,
            indexes={**indexes, "place": namespaced_name},
            absent_retry=5.0,
        )

    def get(self, place: Place) -> T | None:
        """The newer one of the mirror's object and the last answer; None where there is neither."""
        mirrored = next(reversed(self.mirror.by_index("place", "/".join(place))), None)
        until, uid, answer = self._answers.get(place, (0.0, "", None))
        if until <= self._clock():
            return mirrored
        if answer is None:
            return None if mirrored is None or mirrored.metadata.uid == uid else mirrored
        return answer if mirrored is None or _version(mirrored) < _version(answer) else mirrored

    def answered(self, item: T) -> None:
        """Believe what the API server has answered."""
        about = item.metadata
        self._answers[about.place] = (self._clock() + TRUSTED, about.uid, item)

    def gone(self, place: Place, uid: str) -> None:
        """Believe that the API server has none of this uid any more."""
        self._answers[place] = (self._clock() + TRUSTED, uid, None)

    def forget(self) -> None:
        """Drop answers that are too old to be believed."""
        now = self._clock()
        self._answers = {place: kept for place, kept in self._answers.items() if kept[0] > now}

    def _mirrored(self, change: Change[T]) -> None:
        about = change.object.metadata
        if change.kind == "deleted" and self._answers.get(about.place, ("", ""))[1] == about.uid:
            del self._answers[about.place]
        self._changed(change)


def _version(item: _Object) -> int:
    """Versions of one kind rise from write to write; one that is not a number counts as the
    oldest.
    """
    version = item.metadata.resource_version
    return int(version) if version.isdecimal() else 0
