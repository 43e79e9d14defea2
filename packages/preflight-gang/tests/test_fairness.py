"""Writes under way are shared out between namespaces."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from preflight_gang.controller.apply import FairLimiter
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio


class Writes:
    """Takes places of a limiter, and keeps them until the end."""

    def __init__(self, total: int) -> None:
        self.limiter = FairLimiter(total)
        self.held: list[str] = []
        self.end = anyio.Event()

    async def one(self, namespace: str, *, long: bool = True) -> None:
        async with self.limiter.of(namespace):
            self.held.append(namespace)
            if long:
                await self.end.wait()
            else:
                await anyio.sleep(0)


@pytest.mark.parametrize("total", [1, 2, 4, 32, 256])
async def test_one_namespace_alone_has_all_places_and_no_more(total: int) -> None:
    writes = Writes(total)
    async with anyio.create_task_group() as group:
        for _ in range(2 * total):
            group.start_soon(writes.one, "crowd")
        await until(lambda: len(writes.held) == total, "its share")
        for _ in range(5):
            await anyio.sleep(0)
        assert len(writes.held) == total
        group.cancel_scope.cancel()


@pytest.mark.parametrize("crowds", [1, 2, 5, 8])
async def test_writes_that_never_end_leave_room_for_the_next_namespace(crowds: int) -> None:
    writes = Writes(32)
    async with anyio.create_task_group() as group:
        for number in range(crowds):
            for _ in range(100):
                group.start_soon(writes.one, f"crowd-{number}")
        await until(lambda: len({*writes.held}) == crowds, "the crowds")
        group.start_soon(writes.one, "victim")
        await until(lambda: "victim" in writes.held, "the victim's write")
        group.cancel_scope.cancel()


async def test_who_waits_is_let_in_namespace_by_namespace() -> None:
    writes = Writes(1)
    async with anyio.create_task_group() as group:
        for namespace, number in (("a", 5), ("b", 2), ("c", 1)):
            for _ in range(number):
                group.start_soon(partial(writes.one, namespace, long=False))
        await until(lambda: len(writes.held) == 8, "all")
    assert writes.held == ["a", "a", "b", "c", "a", "b", "a", "a"]


async def test_who_gives_up_while_it_waits_leaves_its_place_to_others() -> None:
    writes = Writes(1)
    async with anyio.create_task_group() as group:
        group.start_soon(writes.one, "a")
        await until(lambda: writes.held, "the first")
        with anyio.move_on_after(0.01):
            await writes.one("b")
        group.start_soon(writes.one, "c")
        writes.end.set()
        await until(lambda: writes.held == ["a", "c"], "the third")


async def test_who_gives_up_as_it_is_let_in_leaves_its_place_to_others() -> None:
    writes = Writes(1)
    gave_up = anyio.CancelScope()

    async def gives_up() -> None:
        with gave_up:
            await writes.one("b")

    async with anyio.create_task_group() as group:
        async with writes.limiter.of("a"):
            group.start_soon(gives_up)
            for _ in range(3):
                await anyio.sleep(0)
        gave_up.cancel()  # let in, and not yet aware of it
        writes.end.set()
        await writes.one("c")
    assert writes.held[-1] == "c"
