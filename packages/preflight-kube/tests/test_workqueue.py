"""The queue: each thing once, by one at a time, again when it has changed meanwhile; namespaces in
turn, failures ever later.
"""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial

import anyio
import pytest
from kube_world import going
from preflight_kube.client.client import Fenced, KubeError
from preflight_kube.clock import Clock
from preflight_kube.runtime import retry as refusals
from preflight_kube.runtime.workqueue import Backoff, Key, Queue
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio


def key(name: str, namespace: str = "ns") -> Key:
    return namespace, name


async def test_what_is_added_often_is_looked_at_once() -> None:
    seen: list[str] = []
    queue = Queue("uid")

    async def look(one: Key) -> None:
        seen.append(one[1])

    async with going() as group:
        for name in ("a", "b", "a", "a"):
            queue.add(key(name))
        for _ in range(3):
            group.start_soon(queue.work, look)
        await until(lambda: len(seen) == 2, "both")
        queue.add(key("a"))  # wakes an idle one
        await until(lambda: len(seen) == 3, "once more")
    assert seen == ["a", "b", "a"]


async def test_what_changes_while_it_is_looked_at_is_looked_at_again_and_never_by_two() -> None:
    seen, at_once = 0, 0
    queue = Queue("uid")

    async def look(one: Key) -> None:
        nonlocal seen, at_once
        seen += 1
        at_once += 1
        assert at_once == 1
        if seen == 1:
            queue.add(one)
        await anyio.sleep(0.01)
        at_once -= 1

    async with going(*[partial(queue.work, look)] * 3):
        queue.add(key("a"))
        await until(lambda: seen == 2 and not at_once, "twice")


async def test_what_changes_while_it_rests_is_looked_at_after_its_rest_and_nobody_waits_for_it() -> (
    None
):
    seen: list[tuple[str, float]] = []
    queue = Queue("uid", lambda one: 0.2 if one[1] == "resting" else 0.0)

    async def look(one: Key) -> None:
        seen.append((one[1], anyio.current_time()))

    async with going(partial(queue.work, look)):
        queue.add(key("resting"))
        await until(lambda: seen, "a look")
        queue.add(key("resting"))
        queue.add(key("other"))
        await until(lambda: len(seen) == 3, "three looks")
    assert [name for name, _ in seen] == ["resting", "other", "resting"]
    assert seen[2][1] - seen[0][1] >= 0.2


async def test_a_look_that_asks_for_another_gets_it_though_all_else_is_busy() -> None:
    seen: list[str] = []
    queue = Queue("uid")

    async def look(one: Key) -> float | None:
        seen.append(one[1])
        if one[1] == "long":
            await anyio.sleep_forever()
        return 0.02 if seen.count(one[1]) < 3 else None

    async with going(*[partial(queue.work, look)] * 2):
        queue.add(key("again"))
        queue.add(key("long"))
        await until(lambda: seen.count("again") == 3, "three looks")


async def test_what_asks_for_another_look_each_minute_gets_one_a_minute_however_often_it_changed() -> (
    None
):
    now, seen = [0.0], Counter[str]()
    queue = Queue("uid", clock=Clock(lambda: now[0]))

    async def look(one: Key) -> float | None:
        seen[one[1]] += 1
        return 60.0 if one[1] == "again" else None

    async def second(name: str) -> None:
        now[0] += 1.0
        looks = seen[name]
        queue.add(key(name))
        await until(lambda: seen[name] > looks, "a look")

    async with going(partial(queue.work, look)):
        for _ in range(30):
            await second("again")
        for _ in range(120):
            await second("other")
    assert seen == {"again": 30 + 2, "other": 120}


async def test_what_asks_for_a_look_sooner_than_before_gets_it() -> None:
    now, seen = [0.0], list[float]()
    queue = Queue("uid", clock=Clock(lambda: now[0]))

    async def look(one: Key) -> float | None:
        if one[1] == "other":
            return None
        seen.append(now[0])
        return {1: 60.0, 2: 10.0}.get(len(seen))

    async with going(partial(queue.work, look)):
        for looks in (1, 2):
            queue.add(key("again"))
            await until(lambda looks=looks: len(seen) == looks, "a look")  # type: ignore[misc]
        now[0] = 10.0
        queue.add(key("other"))  # wakes the loop, which sleeps by another clock
        await until(lambda: len(seen) == 3, "the look that was asked for last")
    assert seen == [0.0, 0.0, 10.0]


async def test_namespaces_take_turns_however_much_each_has_waiting() -> None:
    seen: list[str] = []
    queue = Queue("gang")

    async def look(one: Key) -> None:
        seen.append(one[0])

    for namespace, things in (("a", 50), ("b", 3), ("c", 2)):
        for number in range(things):
            queue.add(key(str(number), namespace))
    async with going(partial(queue.work, look)):
        await until(lambda: len(seen) == 55, "all")
    assert seen[:8] == ["a", "b", "c", "a", "b", "c", "a", "b"]


@pytest.mark.parametrize("crowds", [1, 2, 5, 12])
async def test_looks_that_never_end_leave_workers_to_other_namespaces(crowds: int) -> None:
    seen: list[Key] = []
    queue = Queue("gang")

    async def look(one: Key) -> None:
        seen.append(one)
        if one[0] != "victim":
            await anyio.sleep_forever()

    async with going(*[partial(queue.work, look)] * 48):
        for crowd in range(crowds):
            for number in range(100):
                queue.add(key(str(number), f"crowd-{crowd}"))
        await until(lambda: len({one[0] for one in seen}) == crowds, "the crowds")
        queue.add(key("gang", "victim"))
        await until(lambda: ("victim", "gang") in seen, "the victim's turn")


@pytest.mark.parametrize(("workers", "alone"), [(1, 1), (3, 2), (24, 16), (48, 32)])
async def test_a_namespace_alone_has_all_workers_but_those_kept_for_the_next_one(
    workers: int, alone: int
) -> None:
    seen: list[Key] = []
    queue = Queue("gang")

    async def look(one: Key) -> None:
        seen.append(one)
        await anyio.sleep_forever()

    for number in range(100):
        queue.add(key(str(number)))
    async with going(*[partial(queue.work, look)] * workers):
        await until(lambda: len(seen) == alone, "all that it may have")
        for _ in range(5):
            await anyio.sleep(0)
    assert len(seen) == alone


@pytest.mark.parametrize(("error", "looks"), [(KubeError("no answer"), 2), (Fenced("over"), 1)])
async def test_what_the_cluster_refuses_is_tried_again_unless_the_right_to_write_is_over(
    error: KubeError, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "FIRST", 0.01)
    seen: list[str] = []
    queue = Queue("uid")

    async def look(one: Key) -> None:
        seen.append(one[1])
        if len(seen) == 1:
            raise error

    async with going(partial(queue.work, look)):
        queue.add(key("a"))
        await until(lambda: seen, "one look")
        if looks == 2:
            await until(lambda: len(seen) == 2, "another one")
        queue.add(key("b"))
        await until(lambda: seen[-1] == "b", "the next thing")
    assert seen == ["a"] * looks + ["b"]


async def test_what_is_refused_for_good_is_looked_at_ten_times_at_most_in_its_first_five_minutes() -> (
    None
):
    now = [0.0]
    looks: list[float] = []
    queue = Queue("uid", clock=Clock(lambda: now[0]))

    async def look(one: Key) -> None:
        if one[0] == "ns":
            looks.append(now[0])
            raise KubeError("refused", 403)

    async with going(partial(queue.work, look)):
        queue.add(key("a"))
        await until(lambda: looks, "the first look")
        for _ in range(900):
            now[0] += 1.0
            queue.add(("clock", "ticks"))  # wakes the loop, which asks what time it is
            for _ in range(3):
                await anyio.sleep(0)
    assert sum(at < 300 for at in looks) <= 10
    pauses = [later - sooner for sooner, later in itertools.pairwise(looks)]
    assert all(pause >= 60 for pause in pauses[6:])


async def test_a_new_leader_finds_nothing_busy_that_the_last_one_left() -> None:
    queue = Queue("uid", lambda _: 60.0)
    seen: list[str] = []

    async def look(one: Key) -> None:
        seen.append(one[1])

    for count in (1, 2):
        async with going(partial(queue.work, look)):
            queue.add(key("a"))
            await until(lambda count=count: len(seen) == count, "a look")  # type: ignore[misc]


async def test_a_replica_that_does_not_lead_queues_nothing_and_begins_to_lead_with_everything() -> (
    None
):
    """Nobody would take it: names of what has gone would stay, in ever more memory."""
    there, seen = ["a", "b"], list[str]()
    queue = Queue("uid", lambda _: 60.0, everything=lambda: map(key, there))

    async def look(one: Key) -> float | None:
        seen.append(one[1])
        return 3600.0

    async def lead(*names: str) -> None:
        seen.clear()
        async with going(*[partial(queue.work, look)] * 3):
            await until(lambda: sorted(seen) == list(names), "all that there is")
            queue.add(key("a"))  # it rests
            queue.add_after(key("later"), 3600)

    def change() -> None:
        queue.add(key("gone"))
        queue.add_after(key("late"), 0)

    change()
    assert not queue.depth
    await lead("a", "b")
    change()
    assert not queue.depth
    there.append("c")
    await lead("a", "b", "c")


def test_pauses_grow_to_the_longest_with_some_jitter() -> None:
    backoff = Backoff(first=1.0, longest=8.0, jitter=0.5)
    for failures, least in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 8.0), (10_000, 8.0)):
        assert least <= backoff.pause(failures) <= least * 1.5
    assert len({backoff.pause(1) for _ in range(20)}) > 1
