"""What was written is seen at once, whatever a watch shows and when; in the end the cache is the
cluster.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import msgspec
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream
from hypothesis import given
from hypothesis import strategies as st
from kube_world import going
from preflight_kube.client.client import Client, WatchEvent
from preflight_kube.client.watch_lag import Mirrors
from preflight_kube.errors import Gone, KubeError
from preflight_kube.runtime import reflector
from preflight_kube.runtime.cache import OVERLAY_TTL, Cache
from preflight_kube.runtime.reflector import Change
from preflight_kube.runtime.workqueue import Backoff
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio


EventType = Literal["ADDED", "MODIFIED", "DELETED"]


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    uid: str
    resource_version: str


class Kept(msgspec.Struct, frozen=True):
    """What the tests read of an object; ``value`` is what they index."""

    metadata: _Metadata
    value: str

    @property
    def version(self) -> int:
        return int(self.metadata.resource_version)


class Scripted(Client):
    """An API server of a script: objects by name, and events that wait to be delivered."""

    def __init__(self) -> None:
        self.now, self.version, self.born = 0.0, 0, 0
        self.lists, self.answer = 0, anyio.Event()
        self.answer.set()
        self.objects: dict[str, Kept] = {}
        self.queued: list[tuple[EventType, Kept]] = []
        self.mirrors = Mirrors(self.clock)
        self.send, self._receive = anyio.create_memory_object_stream[Any](1000)

    def clock(self) -> float:  # type: ignore[override] # a clock is only ever called
        return self.now

    async def pages(self, *_: Any, **__: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        self.queued.clear()
        self.lists += 1
        taken, version = list(self.objects.values()), str(self.version)
        await self.answer.wait()
        yield taken, version

    @asynccontextmanager
    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        yield self._follow(self._receive)

    @staticmethod
    async def _follow(events: MemoryObjectReceiveStream[Any]) -> AsyncIterator[Any]:
        async for event in events:
            if isinstance(event, KubeError):
                raise event
            yield event

    def put(self, name: str, value: str) -> Kept:
        """Store an object; its event waits."""
        self.version += 1
        old = self.objects.get(name)
        self.born += old is None
        uid = old.metadata.uid if old is not None else f"uid-{self.born}"
        made = self.objects[name] = Kept(_Metadata(name, uid, str(self.version)), value)
        self.queued.append(("MODIFIED" if old else "ADDED", made))
        return made

    def drop(self, name: str) -> Kept | None:
        """Delete an object; its event waits."""
        old = self.objects.pop(name, None)
        if old is not None:
            self.version += 1
            about = _Metadata(name, old.metadata.uid, str(self.version))
            self.queued.append(("DELETED", Kept(about, old.value)))
        return old

    def deliver(self) -> None:
        """Let the watch have the oldest event that waits."""
        type_, item = self.queued.pop(0)
        self.send.send_nowait(
            WatchEvent(type_, item, resource_version=item.metadata.resource_version)
        )

    def close(self) -> None:
        self.send.close()
        self._receive.close()


@asynccontextmanager
async def running(script: Scripted) -> AsyncIterator[tuple[Cache[Kept], list[Change[Kept]]]]:
    changes: list[Change[Kept]] = []
    cache: Cache[Kept] = Cache(
        script,
        "/api/v1/things",
        Kept,
        on_change=changes.append,
        indexes={"value": lambda it: [it.value]},
    )
    try:
        async with going(cache.run):
            await cache.wait_synced()
            yield cache, changes
    finally:
        script.close()


async def test_what_was_written_is_seen_before_the_watch_has_it() -> None:
    script = Scripted()
    async with running(script) as (cache, changes):
        made = script.put("a", "1")
        cache.wrote(made)
        assert cache.get(made.metadata.uid) == made
        assert cache.by_index("value", "1") == [made]
        assert [it.kind for it in changes] == ["added"]
        cache.deleted(made.metadata.uid)
        assert not cache.store
        script.deliver()  # the watch is behind, and would bring it back
        await anyio.wait_all_tasks_blocked()
        assert not cache.store
        assert cache.count("value", "1") == 0


async def test_what_no_watch_shows_in_ten_seconds_was_not() -> None:
    script = Scripted()
    async with running(script) as (cache, _):
        cache.wrote(made := script.put("a", "1"))
        script.now += OVERLAY_TTL - 1
        assert cache.get(made.metadata.uid) == made
        script.now += 1
        assert cache.get(made.metadata.uid) is None


async def test_an_answer_that_is_older_than_the_watch_says_nothing() -> None:
    script = Scripted()
    async with running(script) as (cache, _):
        old = script.put("a", "1")
        new = script.put("a", "2")
        script.deliver()
        script.deliver()
        await anyio.wait_all_tasks_blocked()
        cache.wrote(old)
        assert cache.get(old.metadata.uid) == new
        script.drop("a")
        script.deliver()
        await anyio.wait_all_tasks_blocked()
        cache.wrote(new)
        assert not cache.store


async def relisted(script: Scripted) -> None:
    """The watch has grown too old, and a list has begun."""
    again = script.lists + 1
    script.send.send_nowait(Gone("too old", 410))
    await until(lambda: script.lists == again, "a list")
    await anyio.wait_all_tasks_blocked()


async def test_a_list_that_began_before_the_write_does_not_take_it_back() -> None:
    script = Scripted()
    async with running(script) as (cache, _):
        script.answer = anyio.Event()
        await relisted(script)
        cache.wrote(made := script.put("a", "1"))
        script.answer.set()
        await anyio.wait_all_tasks_blocked()
        assert cache.get(made.metadata.uid) == made


async def test_a_later_list_without_what_was_written_takes_it_back_at_once() -> None:
    script = Scripted()
    async with running(script) as (cache, changes):
        cache.wrote(script.put("a", "1"))
        script.drop("a")
        await relisted(script)
        assert [it.kind for it in changes] == ["added", "deleted"]
        assert not cache.store


async def test_what_was_deleted_and_is_in_no_later_list_does_not_come_back_after_ten_seconds() -> (
    None
):
    """As after an API server's restart, whose watches begin with it: no watch shows the end."""
    script = Scripted()
    async with running(script) as (cache, changes):
        cache.wrote(made := script.put("a", "1"))
        script.deliver()
        await anyio.wait_all_tasks_blocked()
        script.drop("a")
        cache.deleted(made.metadata.uid)
        await relisted(script)
        script.now += OVERLAY_TTL
        assert cache.get(made.metadata.uid) is None
        assert cache.by_index("value", "1") == []
        assert [it.kind for it in changes] == ["added", "deleted"]


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["mine", "theirs", "late", "drop", "their drop"]),
            st.sampled_from("ab"),
            st.sampled_from("12"),
        ),
        st.tuples(st.sampled_from(["deliver", "relist"])),
    ),
    max_size=15,
)


@pytest.fixture(scope="module", autouse=True)
def _at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reflector, "BACK_OFF", Backoff(0.0, 0.0))
        yield


@given(STEPS)
async def test_in_whatever_order_answers_and_watch_come_it_never_goes_back_and_ends_right(
    steps: list[tuple[str, ...]],
) -> None:
    script = Scripted()
    async with running(script) as (cache, _):
        newest: dict[str, int] = {}  # by uid, as far as this process was told
        gone: set[str] = set()
        late: list[Kept] = []
        for what, *of in steps:
            match what:
                case "mine":
                    made = script.put(*of)
                    cache.wrote(made)
                    newest[made.metadata.uid] = made.version
                case "late":  # the answer comes after whatever is next
                    late.append(script.put(*of))
                    continue
                case "theirs":
                    script.put(*of)
                case "drop" | "their drop":
                    dropped = script.drop(of[0])
                    if dropped is not None and what == "drop":
                        cache.deleted(dropped.metadata.uid)
                        gone.add(dropped.metadata.uid)
                case "deliver" if script.queued:
                    script.deliver()
                case "relist":
                    await relisted(script)
            await anyio.wait_all_tasks_blocked()
            for uid, version in newest.items():
                shown = cache.get(uid)
                assert shown is None or shown.version >= version
                newest[uid] = shown.version if shown is not None else version
            assert not gone & cache.store.keys()
            for made in late:
                cache.wrote(made)
            late.clear()
        while script.queued:
            script.deliver()
        await anyio.wait_all_tasks_blocked()
        for later in (0.0, OVERLAY_TTL):
            script.now += later
            cache.get("")
            assert {it.metadata.name: it for it in cache.store.values()} == script.objects
        for value in "12":
            found = {it.metadata.name for it in cache.by_index("value", value)}
            assert found == {name for name, it in script.objects.items() if it.value == value}
