"""A store that mirrors one resource of the cluster: listed once, then kept current by a watch."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, NoReturn, TypeVar

import anyio

from .client import Client, Params
from .errors import Gone, KubeError, NotFound

__all__ = ["Change", "Reflector", "uid"]

T = TypeVar("T")

BACK_OFF: Final = (0.1, 30.0)
"""Seconds, first and longest pause after failures in a row."""
STEADY: Final = 1.0
"""A watch that held this long (seconds) and ended without an error is taken up again at once."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One difference between the store and the cluster, told after the store has it.

    ``object`` is the new state, for ``deleted`` the last one known; ``before`` is what the store held.
    """

    kind: Literal["added", "modified", "deleted"]
    key: str
    object: T
    before: T | None


def uid(item: Any) -> str:
    """The key that tells a re-created object from the one of the same name before it."""
    return str(item.metadata.uid)


class Reflector(Generic[T]):
    """Mirrors the collection at ``path``, restricted by ``params`` (labelSelector, fieldSelector), into ``store``.

    ``type_`` is a msgspec Struct that names only what is read: memory follows it, and an object whose named fields
    are unchanged makes no Change. ``on_change`` runs within the event loop and must not block; what it raises ends
    ``run``. ``synced`` is set after the first full list and stays set. A collection of an API group that the server
    does not have is an empty one, asked for again every ``absent_retry`` seconds.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        type_: type[T],
        *,
        on_change: Callable[[Change[T]], None] = lambda _: None,
        key: Callable[[T], str] = uid,
        params: Params | None = None,
        limit: int = 500,
        absent_retry: float = 60.0,
        watch_seconds: int | None = None,
    ) -> None:
        self.store: dict[str, T] = {}
        self.synced = anyio.Event()
        self.problem: KubeError | None = None
        """Why the store may be behind just now; None while the list or watch is in order."""
        self._client, self._path, self._type, self._params = client, path, type_, params
        self._key, self._on_change = key, on_change
        self._limit, self._absent_retry, self._watch_seconds = limit, absent_retry, watch_seconds
        self._version: str | None = None  # up to where the store is current; None: list first
        self._failures = 0

    async def run(self) -> NoReturn:
        """Keep the store current until cancelled."""
        while True:
            pause = await self._round()
            await anyio.sleep(pause)

    async def _round(self) -> float:
        """List where needed, then follow one watch to its end; the pause (seconds) before the next round."""
        started = self._client.clock()
        try:
            if self._version is None:
                await self._list()
            await self._follow(self._version or "")
        except NotFound as error:
            self._replace({})
            self._version = None
            if not self.synced.is_set():
                log.info("not served by this cluster", extra={"about": {"path": self._path}})
            self.synced.set()
            self.problem = error
            return self._absent_retry * _jitter()
        except Gone as error:
            self._version = None
            return self._failed(error)
        except KubeError as error:
            return self._failed(error)
        if self._client.clock() - started >= STEADY:
            self._failures = 0
            return 0.0
        return self._pause()

    async def _list(self) -> None:
        found: dict[str, T] = {}
        pages = self._client.pages(self._path, self._type, params=self._params, limit=self._limit)
        async for items, listed in pages:
            found.update((self._key(item), item) for item in items)
            version = listed  # the same on every page, and there is one at least
        self._replace(found)
        self._version = version
        self.synced.set()

    def _replace(self, found: dict[str, T]) -> None:
        for key in self.store.keys() - found.keys():
            self._remove(key, None)
        for key, item in found.items():
            self._put(key, item)

    async def _follow(self, version: str) -> None:
        async with self._client.watch(
            self._path, self._type, resource_version=version, params=self._params, seconds=self._watch_seconds
        ) as events:
            self.problem = None
            async for event in events:
                if event.object is not None:
                    key = self._key(event.object)
                    if event.type == "DELETED":
                        self._remove(key, event.object)
                    else:
                        self._put(key, event.object)
                self._version = event.resource_version
                self._failures = 0

    def _put(self, key: str, item: T) -> None:
        before = self.store.get(key)
        if before == item:
            return
        self.store[key] = item
        self._on_change(Change("modified" if before is not None else "added", key, item, before))

    def _remove(self, key: str, last: T | None) -> None:
        before = self.store.pop(key, None)
        if before is not None:
            self._on_change(Change("deleted", key, last if last is not None else before, before))

    def _failed(self, error: KubeError) -> float:
        # A list that has grown too old or a connection cut at the API server's restart is everyday life.
        level = logging.WARNING if self._failures else logging.INFO
        log.log(level, "behind the cluster", extra={"about": {"path": self._path, "error": str(error)}})
        self.problem = error
        return self._pause()

    def _pause(self) -> float:
        first, longest = BACK_OFF
        pause = min(longest, first * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return pause * _jitter()


def _jitter() -> float:
    return random.uniform(0.5, 1.0)  # noqa: S311 - spread, not a secret
