"""A mirror of a collection in which what was written here is seen at once.

A watch may be behind the answers to one's own writes. What an answer says lies over the mirror
until the watch has passed its resourceVersion, or for :data:`OVERLAY_TTL`; then the mirror alone
counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from preflight_kube.api.kinds import version_of
from preflight_kube.client.client import Client
from preflight_kube.client.decoding import Unreadable
from preflight_kube.runtime.reflector import Reflector
from preflight_kube.runtime.writes import Answer, Delete, Missing, Stored, Write, apply

T = TypeVar("T")

OVERLAY_TTL: Final = 10.0
"""Seconds after which an answer that no watch has shown is believed to be outdated."""


def _object_version(item: Any) -> int:
    return version_of(item.metadata.resource_version)


class _Written(msgspec.Struct):
    """``version``: of the answer; None: it said that the object is gone. ``shown``: what the watch
    has of it meanwhile.
    """

    version: int | None
    until: float
    shown: Any


class Cache(Reflector[T]):
    """A :class:`Reflector` whose store, indexes and changes hold what was written here, too.

    ``raw`` is what is read of an object, ``decode`` makes of it what is kept (default: the same),
    and ``resource_version`` finds the version in that. All other arguments are the reflector's.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        raw: type[Any],
        *,
        decode: Callable[[Any], T] | None = None,
        resource_version: Callable[[T], int] = _object_version,
        **more: Any,
    ) -> None:
        super().__init__(client, path, raw, **more)
        self._decode, self._of_object, self._clock = decode, resource_version, client.clock
        self._streamed = decode is not None
        self._written: dict[str, _Written] = {}  # what was written first comes first
        self._passed = ""  # the version up to which they have been looked through

    def get(self, key: str) -> T | None:
        """The newest that is known of an object, by its key (by default its uid)."""
        self._reached()
        return super().get(key)

    def by_index(self, name: str, value: str) -> list[T]:
        """The objects in which the index ``name`` finds ``value``, the newest known of each."""
        self._reached()
        return super().by_index(name, value)

    def count(self, name: str, value: str) -> int:
        """How many :meth:`by_index` finds."""
        return self._indexes[name].count(value)

    async def apply(self, client: Client, write: Write) -> Answer:
        """Send a write of an object of this collection by ``client``, once, and take in what the
        answer says of it. Raises as :func:`.writes.apply`.
        """
        answer = await apply(client, write)
        match write, answer:
            case Delete(), Missing():
                self.deleted(write.uid)
            case Delete(), _:
                pass  # it may end later, or be held by a finalizer: the watch tells
            case _, Stored():
                self.wrote(answer.object(self._type))
        return answer

    def wrote(self, raw: Any) -> None:
        """Take in what the API server has answered of an object, to a write or to a GET. What is
        older than what is known is passed over.
        """
        key, item = self._key(raw), self._decoded(raw)
        self._reached()
        written, shown, version = self._written.get(key), self.store.get(key), self._of_object(item)
        if written is not None and written.version is None:  # gone, and no uid comes back
            return
        known = self._of_object(shown) if shown is not None else version_of(self.version)
        if version <= known:
            return
        before = written.shown if written is not None else shown
        self._write(key, version, before)
        super()._put(key, item)

    def deleted(self, key: str) -> None:
        """Take in that the API server has no object of this key any more."""
        written, shown = self._written.get(key), self.store.get(key)
        before = written.shown if written is not None else shown
        self._write(key, None, before)
        super()._remove(key, None)

    def _write(self, key: str, version: int | None, before: Any) -> None:
        self._written.pop(key, None)
        self._written[key] = _Written(version, self._clock() + OVERLAY_TTL, before)
        if version is not None and version <= version_of(self.version):
            self._passed = ""  # else those that were looked through are as they were

    def _decoded(self, raw: Any) -> T:
        item: T = raw if self._decode is None else self._decode(raw)
        return item

    def _replace(self, objects: dict[str, Any], unread: dict[str, Unreadable]) -> None:
        super()._replace(objects, unread)
        for key in self._written.keys() - objects.keys():  # not in the store where it was deleted
            self._remove(key, None)

    def _put(self, key: str, raw: Any) -> None:
        item, written = self._decoded(raw), self._written.get(key)
        if written is not None:
            if written.version is None or self._of_object(item) < written.version:
                written.shown = item
                return
            del self._written[key]
        super()._put(key, item)

    def _remove(self, key: str, last: Any) -> None:
        written = self._written.get(key)
        if written is not None and written.version is not None and last is None:
            written.shown = None  # by a list that may have begun before the write
            return
        self._written.pop(key, None)
        super()._remove(key, self._decoded(last) if last is not None else None)

    def _reached(self) -> None:
        """Go back to the mirror where it has passed what was written, or should have. Every read
        asks for it, so what nothing has changed for is not looked through again.
        """
        if not self._written:
            return
        oldest, now = next(iter(self._written.values())), self._clock()
        if self._passed == self.version and now < oldest.until:
            return
        self._passed, reached = self.version, version_of(self.version)
        for key, written in list(self._written.items()):
            passed = written.version is not None and written.version <= reached
            if (written.until <= now or passed) and self._written.get(key) is written:
                del self._written[key]
                if written.shown is None:
                    super()._remove(key, None)
                else:
                    super()._put(key, written.shown)
