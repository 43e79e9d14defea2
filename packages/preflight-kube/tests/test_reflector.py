"""The Reflector's behaviour, the same against the double and a real kube-apiserver."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from kube_world import Changes, Kept, config_map, going, names
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_kube.runtime.reflector import BACK_OFF, Change, Reflector
from preflight_testing.plugin import ApiFixture
from preflight_testing.proxy import proxied
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio

OURS = {"labelSelector": "ours=yes"}  # a real server puts objects of its own into each namespace


class World:
    """A test's config maps, written without detour, and a Reflector of them behind a proxy that can
    be cut.
    """

    def __init__(self, api: ApiFixture, direct: Client, mirrored: Client) -> None:
        self.api, self.direct, self.mirrored = api, direct, mirrored
        self.path = api.path("configmaps")
        self.changes = Changes()
        self.reflector = self.reflect()

    def reflect(self, **options: Any) -> Reflector[Kept]:
        return Reflector(
            self.mirrored, self.path, Kept, params=OURS, on_change=self.changes, **options
        )

    async def put(self, *wanted: str) -> None:
        for name in wanted:
            await self.direct.create(self.path, config_map(name, {"ours": "yes"}))

    async def set(self, name: str, value: str) -> None:
        await self.direct.merge_patch(f"{self.path}/{name}", {"data": {"k": value}})

    async def remove(self, name: str) -> None:
        await self.direct.delete(f"{self.path}/{name}")

    def holds(self, *wanted: str) -> Callable[[], bool]:
        return lambda: names(self.reflector.store.values()) == list(wanted)


@pytest.fixture
async def world(api: ApiFixture, client: Client) -> World:
    return World(api, client, client)


@asynccontextmanager
async def running(reflector: Reflector[Kept]) -> AsyncIterator[None]:
    async with going(reflector.run):
        await reflector.synced.wait()
        yield


async def test_what_is_there_is_in_the_store_when_it_is_synced(world: World) -> None:
    await world.put("a", "b", "c")
    world.reflector = world.reflect(limit=2)
    async with running(world.reflector):
        assert world.holds("a", "b", "c")()
        assert sorted(world.changes.seen) == [("added", "a"), ("added", "b"), ("added", "c")]


async def test_each_later_change_is_told_once_and_in_order(world: World) -> None:
    await world.put("a")
    async with running(world.reflector):
        await world.put("b")
        await world.set("b", "1")
        await world.remove("a")
        await until(world.holds("b"), "the store follows")
    assert world.changes.seen == [
        ("added", "a"),
        ("added", "b"),
        ("modified", "b"),
        ("deleted", "a"),
    ]


async def test_a_change_of_what_is_not_kept_is_not_told(world: World) -> None:
    await world.put("a")
    async with running(world.reflector):
        await world.direct.merge_patch(
            f"{world.path}/a", {"metadata": {"annotations": {"beat": "1"}}}
        )
        await world.put("b")
        await until(world.holds("a", "b"), "the store follows")
    assert world.changes.seen == [("added", "a"), ("added", "b")]


async def test_watches_that_end_are_taken_up_where_they_ended(world: World) -> None:
    world.reflector = world.reflect(watch_seconds=1)
    async with running(world.reflector):
        await until(lambda: world.mirrored.requests.count["watch"] >= 2, "a second watch")
        await world.put("a")
        await until(world.holds("a"), "the store follows")
    assert world.mirrored.requests.count["list"] == 1


async def test_a_cut_connection_costs_neither_an_event_nor_a_list(
    api: ApiFixture, client: Client, target: Connection
) -> None:
    async with proxied(target) as (proxy, through), Client(through, agent="tests") as mirrored:
        world = World(api, client, mirrored)
        await world.put("a", "b")
        async with running(world.reflector):
            await until(lambda: mirrored.requests.count["watch"], "the watch")
            proxy.cut(refuse=True)
            await world.put("c")
            await world.remove("a")
            await until(lambda: world.reflector.problem, "the cut is noticed")
            proxy.restore()
            await until(world.holds("b", "c"), "the store follows")
            await until(lambda: world.reflector.problem is None, "all is well again")
    assert mirrored.requests.count["list"] == 1
    assert sorted(world.changes.seen[2:]) == [("added", "c"), ("deleted", "a")]


async def test_a_version_that_has_grown_too_old_is_listed_again(
    api: ApiFixture, client: Client, target: Connection
) -> None:
    async with proxied(target) as (proxy, through), Client(through, agent="tests") as mirrored:
        world = World(api, client, mirrored)
        await world.put("a", "b", "c")
        async with running(world.reflector):
            await until(lambda: mirrored.requests.count["watch"], "the watch")
            proxy.cut(refuse=True)
            await world.remove("a")
            await world.set("b", "1")
            await world.put("d")
            await anyio.to_thread.run_sync(api.forget)
            proxy.restore()
            await until(world.holds("b", "c", "d"), "the store follows")
            await world.put("e")
            await until(world.holds("b", "c", "d", "e"), "the watch goes on")
    assert mirrored.requests.count["list"] == 2
    assert world.changes.seen[3] == ("deleted", "a")
    assert sorted(world.changes.seen[4:]) == [("added", "d"), ("added", "e"), ("modified", "b")]


async def test_an_api_group_that_is_absent_is_an_empty_collection(client: Client) -> None:
    reflector = Reflector(client, "/apis/absent.example.com/v1/things", Kept, absent_retry=0.05)
    async with running(reflector):
        assert (reflector.store, reflector.absent) == ({}, True)
        await until(lambda: client.requests.count["list"] >= 3, "it is asked for again")


@pytest.mark.parametrize("of", ["index", "listener"])
async def test_an_object_over_which_a_function_of_ours_fails_is_passed_over_and_the_others_are_not(
    world: World, caplog: pytest.LogCaptureFixture, of: str
) -> None:
    told: list[str] = []

    def fails(one: Kept, where: str) -> list[str]:
        if (one.metadata.name, of) == ("b", where):
            raise RuntimeError("not this one")
        return ["all"]

    def on_change(change: Change[Kept]) -> None:
        fails(change.object, "listener")
        told.append(change.object.metadata.name)

    await world.put("a", "b", "c")
    reflector: Reflector[Kept] = Reflector(
        world.mirrored,
        world.path,
        Kept,
        params=OURS,
        indexes={"all": lambda one: fails(one, "index")},
        on_change=on_change,
    )
    async with running(reflector):
        await world.put("d")
        await until(lambda: {*told} >= {*"acd"}, "the others are told")
        assert names(reflector.by_index("all", "all")) == ["a", "c", "d"]
        assert names(reflector.store.values()) == ["a", "c", "d"]
        assert len(reflector.unreadable) == 1
    logged = {r.message for r in caplog.records if r.levelname == "ERROR"}
    assert logged == {"a fault of this program"}


async def test_an_index_is_current_when_a_change_is_told(world: World) -> None:
    seen: list[list[str]] = []
    reflector: Reflector[Kept] = Reflector(
        world.mirrored,
        world.path,
        Kept,
        params=OURS,
        indexes={"color": lambda one: one.data.values()},
        on_change=lambda change: seen.append(names(reflector.by_index("color", "red"))),
    )
    await world.put("a")
    async with running(reflector):
        await world.set("a", "red")
        await until(lambda: len(seen) == 2, "the change is told")
        await world.remove("a")
        await until(lambda: len(seen) == 3, "the end is told")
    assert seen == [[], ["a"], []]
    with pytest.raises(KeyError):
        reflector.by_index("size", "1")


async def test_an_api_server_that_is_back_is_asked_within_half_a_minute() -> None:
    assert 15 <= max(BACK_OFF.pause(failures) for failures in range(1, 1000)) <= 30
