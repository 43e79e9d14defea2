"""The queue: each thing once, by one at a time, and again when it has changed meanwhile."""

from __future__ import annotations

import anyio
import pytest
from kube_world import until
from preflight_gang.kube.client import Fenced, KubeError
from preflight_gang.workqueue import Queue

pytestmark = pytest.mark.anyio


async def test_what_is_added_often_is_looked_at_once() -> None:
    seen: list[str] = []
    queue: Queue[str] = Queue("uid")

    async def look(key: str) -> None:
        seen.append(key)

    async with anyio.create_task_group() as group:
        for key in ("a", "b", "a", "a"):
            queue.add(key)
        for _ in range(3):
            group.start_soon(queue.work, look, 1)
        await until(lambda: len(seen) == 2, "both")
        queue.add("a")  # wakes an idle one
        await until(lambda: len(seen) == 3, "once more")
        group.cancel_scope.cancel()
    assert seen == ["a", "b", "a"]


async def test_what_changes_while_it_is_looked_at_is_looked_at_again_and_never_by_two() -> None:
    seen, at_once = 0, 0
    queue: Queue[str] = Queue("uid")

    async def look(key: str) -> None:
        nonlocal seen, at_once
        seen += 1
        at_once += 1
        assert at_once == 1
        if seen == 1:
            queue.add(key)
        await anyio.sleep(0.01)
        at_once -= 1

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(queue.work, look, 1)
        queue.add("a")
        await until(lambda: seen == 2 and not at_once, "twice")
        group.cancel_scope.cancel()


async def test_a_look_that_asks_for_another_gets_it_though_all_else_is_busy() -> None:
    seen: list[str] = []
    queue: Queue[str] = Queue("uid")

    async def look(key: str) -> float | None:
        seen.append(key)
        if key == "long":
            await anyio.sleep_forever()
        return 0.02 if seen.count(key) < 3 else None

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(queue.work, look, 1)
        queue.add("again")
        queue.add("long")
        await until(lambda: seen.count("again") == 3, "three looks")
        group.cancel_scope.cancel()


@pytest.mark.parametrize(("error", "looks"), [(KubeError("no answer"), 2), (Fenced("over"), 1)])
async def test_what_the_cluster_refuses_is_tried_again_unless_the_right_to_write_is_over(
    error: KubeError, looks: int
) -> None:
    seen: list[str] = []
    queue: Queue[str] = Queue("uid")

    async def look(key: str) -> None:
        seen.append(key)
        if len(seen) == 1:
            raise error

    async with anyio.create_task_group() as group:
        group.start_soon(queue.work, look, 0.01)
        queue.add("a")
        await until(lambda: seen, "one look")
        if looks == 2:
            await until(lambda: len(seen) == 2, "another one")
        queue.add("b")
        await until(lambda: seen[-1] == "b", "the next thing")
        group.cancel_scope.cancel()
    assert seen == ["a"] * looks + ["b"]


async def test_a_new_leader_finds_nothing_busy_that_the_last_one_left() -> None:
    queue: Queue[str] = Queue("uid", lambda _: 60.0)
    seen: list[str] = []

    async def look(key: str) -> None:
        seen.append(key)

    for count in (1, 2):
        async with anyio.create_task_group() as group:
            group.start_soon(queue.work, look, 1)
            queue.add("a")
            await until(lambda count=count: len(seen) == count, "a look")  # type: ignore[misc]
            group.cancel_scope.cancel()
