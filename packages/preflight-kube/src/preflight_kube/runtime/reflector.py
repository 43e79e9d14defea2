"""A store that mirrors one resource of the cluster: listed once, then kept current by a watch."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, NoReturn, TypeVar

import anyio

from preflight_kube.client.client import Client, Params, WatchEvent
from preflight_kube.client.decoding import Identity, Unreadable
from preflight_kube.errors import Gone, KubeError, NotFound
from preflight_kube.logs import get_logger
from preflight_kube.runtime.indexes import Index
from preflight_kube.runtime.workqueue import Backoff

T = TypeVar("T")

BACK_OFF: Final = Backoff(first=0.1, longest=24.0)
"""What is added at random makes 30 s of it at most."""
STEADY: Final = 1.0
"""A watch that held this long (seconds) and ended without an error is taken up again at once."""
_ALWAYS: Final = "/api/"
"""Where the collections stand that every API server has."""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One difference between the store and the cluster, reported after the store has it.

    ``object`` is the new state, for ``deleted`` the last one known; ``before`` is what the store
    held.
    """

    kind: Literal["added", "modified", "deleted"]
    key: str
    object: T
    before: T | None


def uid(item: Any) -> str:
    """The key that tells a re-created object from the one of the same name before it."""
    return str(item.metadata.uid)


class Reflector(Generic[T]):
    """Mirrors the collection at ``path``, restricted by ``params`` (labelSelector, fieldSelector),
    into ``store``.

    ``type_`` is a msgspec Struct that names only what is read: memory follows it, and an object
    whose named fields are unchanged makes no Change. ``on_change`` runs within the event loop and
    must not block. ``synced`` is set after the first full list and stays set. A collection of an
    API group that the server does not have is an empty one, asked for again every ``absent_retry``
    seconds; one of the core group is never missing, whoever says so.

    ``kept`` says what the store has of an object, where ``on_change`` keeps what there is more of
    it; it must differ from version to version. Then a list is reported while it comes, and what has
    gone at its end; else what has gone first.

    What cannot be read is not in the store, also where it was there before: what was known of it
    may be true no longer, and nobody would notice when it is not. ``on_unreadable`` is called with
    it, with True; with False when it can be read again or has gone. The same holds for an object
    over which ``on_change`` or an index raises: a fault of ours must not stop what concerns all
    other objects.

    ``indexes``: by name, a function that finds values in what the store has of an object
    (:mod:`.indexes` has some); :meth:`by_index` asks them. They are current when ``on_change``
    runs.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        type_: type[T],
        *,
        on_change: Callable[[Change[T]], None] = lambda _: None,
        on_unreadable: Callable[[Unreadable, bool], None] = lambda *_: None,
        key: Callable[[T | Unreadable], str] = uid,
        kept: Callable[[T], T] | None = None,
        indexes: Mapping[str, Callable[[T], Iterable[str]]] | None = None,
        params: Params | None = None,
        limit: int = 500,
        absent_retry: float = 60.0,
        watch_seconds: int | None = None,
    ) -> None:
        self.store: dict[str, T] = {}
        self.synced = anyio.Event()
        self.problem: KubeError | None = None
        """Why the store may be behind just now; None while the list or watch is in order."""
        self.absent = False
        """Whether the cluster does not serve the kind; it is known once synced."""
        self.unreadable: dict[str, Unreadable] = {}
        """What is there and not in the store, by the same key."""
        self._client, self._path, self._type, self._params = client, path, type_, params
        self._key, self._kept = key, kept
        self._on_change, self._on_unreadable = on_change, on_unreadable
        self._streamed = kept is not None
        """Whether a list is taken in while it comes."""
        self._indexes = {name: Index(of) for name, of in (indexes or {}).items()}
        self._limit, self._absent_retry, self._watch_seconds = limit, absent_retry, watch_seconds
        self._version: str | None = None  # up to where the store is current; None: list first
        self._failures = 0

    @property
    def version(self) -> str:
        """The resourceVersion up to where the store is current; empty while it has to be listed
        first.
        """
        return self._version or ""

    def get(self, key: str) -> T | None:
        """The object by its key (by default its uid); None where the store does not have it."""
        return self.store.get(key)

    def by_index(self, name: str, value: str) -> list[T]:
        """The objects in which the index ``name`` finds ``value``. Raises KeyError where there is
        no such index.
        """
        return [self.store[key] for key in self._indexes[name].keys(value)]

    def newest(self, name: str, value: str) -> T | None:
        """The last object that came under ``value`` of an index: of two of one name, the one that
        was made anew.
        """
        return next(reversed(self.by_index(name, value)), None)

    def values(self, name: str) -> tuple[str, ...]:
        """All values that the index ``name`` has found."""
        return self._indexes[name].values()

    async def wait_synced(self) -> None:
        """Until the first full list is in the store."""
        await self.synced.wait()

    async def run(self) -> NoReturn:
        """Keep the store current until cancelled."""
        try:
            while True:
                pause = await self._round()
                await anyio.sleep(pause)
        finally:
            self._client.mirrors.ends(self)

    async def _round(self) -> float:
        """List where needed, then follow one watch to its end; the pause (seconds) before the next
        round.
        """
        started = self._client.clock()
        try:
            if self._version is None:
                await self._list()
            await self._follow(self._version or "")
        except NotFound as error:
            if self._path.startswith(_ALWAYS):
                return self._failed(error)
            self._replace({}, {})
            self._version = None
            self.absent = True
            self._client.mirrors.follows(self, self._path)
            if not self.synced.is_set():
                log.info("kind not served by this cluster", path=self._path)
            self.synced.set()
            self.problem = error
            return self._absent_retry * random.uniform(0.5, 1.0)  # noqa: S311
        except Gone as error:
            self._version = None
            return self._failed(error)
        except KubeError as error:
            return self._failed(error)
        if self._client.clock() - started >= STEADY:
            self._failures = 0
            return 0.0
        if self._failures:
            return self._failed(KubeError(f"watch {self._path}: it ends at once, again and again"))
        return self._pause()

    async def _list(self) -> None:
        objects: dict[str, T | None] = {}
        unread: dict[str, Unreadable] = {}
        pages = self._client.pages(
            self._path,
            self._type,
            params=self._params,
            limit=self._limit,
            on_unreadable=lambda unreadable: unread.update({self._key(unreadable): unreadable}),
        )
        async for items, listed in pages:
            for item in items:
                objects[key := self._key(item)] = None if self._streamed else item
                if self._streamed:
                    self._put(key, item)
            version = listed  # the same on every page, and there is one at least
        self._replace(objects, unread)
        self._version = version
        self.absent = False
        self._reached()
        self.synced.set()

    def _replace(self, objects: dict[str, T | None], unread: dict[str, Unreadable]) -> None:
        for key in self.store.keys() - objects.keys():
            self._remove(key, None)
        for key in self.unreadable.keys() - unread.keys():
            self._readable(key)
        for key, unreadable in unread.items():
            self._cannot_read(key, unreadable)
        for key, item in objects.items():
            if item is not None:  # else it has been reported already
                self._put(key, item)

    async def _follow(self, version: str) -> None:
        """One watch, to its end. After a failure it must hold for a while, or report something,
        before the store counts as level.
        """
        failure: KubeError | None = None
        watched = self._client.watch(
            self._path,
            self._type,
            resource_version=version,
            params=self._params,
            seconds=self._watch_seconds,
        )
        async with watched as events, anyio.create_task_group() as group:
            if self._failures:
                group.start_soon(self._hold)
            else:
                self._level()
            try:
                await self._take(events)
            except KubeError as error:  # raised below, without a group around it
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _hold(self) -> None:
        await anyio.sleep(STEADY)
        self._level()

    def _level(self) -> None:
        self._failures, self.problem = 0, None
        self._client.mirrors.follows(self, self._path)

    async def _take(self, events: AsyncIterator[WatchEvent[T]]) -> None:
        async for event in events:
            if event.unreadable is not None:
                key = self._key(event.unreadable)
                if event.type == "DELETED":
                    self._readable(key)
                    self._remove(key, None)
                else:
                    self._cannot_read(key, event.unreadable)
            elif event.object is not None:
                key = self._key(event.object)
                if event.type == "DELETED":
                    self._readable(key)
                    self._remove(key, event.object)
                else:
                    self._put(key, event.object)
            self._version = event.resource_version or self._version
            self._reached()
            if self._failures:
                self._level()

    def _reached(self) -> None:
        """Called where :attr:`version` may have moved, after the store has."""

    def _put(self, key: str, item: T) -> None:
        self._readable(key)
        before, kept = self.store.get(key), item if self._kept is None else self._kept(item)
        if before == kept:
            return
        self.store[key] = kept
        change = Change("modified" if before is not None else "added", key, item, before)
        if not self._notify(change, self._indexes.values()):
            self._cannot_read(
                key, Unreadable(Identity(uid=key), "a fault of this program, see the line before")
            )

    def _remove(self, key: str, last: T | None) -> None:
        before = self.store.pop(key, None)
        for index in self._indexes.values():
            index.remove(key)
        if before is not None:
            self._notify(Change("deleted", key, last if last is not None else before, before))

    def _cannot_read(self, key: str, unreadable: Unreadable) -> None:
        self._remove(key, None)
        if key:  # without one nobody could say when it has gone
            self.unreadable[key] = unreadable
            self._on_unreadable(unreadable, True)

    def _readable(self, key: str) -> None:
        if (unreadable := self.unreadable.pop(key, None)) is not None:
            self._on_unreadable(unreadable, False)

    def _notify(self, change: Change[T], indexed: Iterable[Index[T]] = ()) -> bool:
        """False where a fault of the listener kept it from being reported, or of an index's
        function from being found.
        """
        try:
            for index in indexed:
                index.put(change.key, self.store[change.key])
            self._on_change(change)
        except Exception:
            log.exception("a fault of this program", path=self._path, object=change.key)
            return False
        return True

    def _failed(self, error: KubeError) -> float:
        # A list that has grown too old or a connection cut at the API server's restart is everyday
        # life.
        write = log.warning if self._failures else log.info
        write("watch failed, mirror is behind the cluster", path=self._path, error=str(error))
        self.problem = error
        self._client.mirrors.falls_behind(self, self._path, str(error))
        return self._pause()

    def _pause(self) -> float:
        self._failures += 1
        return BACK_OFF.pause(self._failures)
