"""When a call is answered, with the seconds of production, by a clock that goes on when nobody has
anything left to do.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from claimed import Node, ref, uid
from inmemory import Clockwork
from preflight_computedomain.api.checkpoint import COMPLETED
from preflight_computedomain.node.plugin import ANSWER
from preflight_computedomain.node.prepare import ClaimPreparer, Times

LONGEST = 40.0
"""Seconds that a call lasts at most; after 45 the kubelet gives it up."""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path, times=Times(), patience=10.0)
    for number in range(1, 4):
        made.cluster.add(ref(number))
    return made


def played(what: Callable[[], Awaitable[Any]]) -> float:
    """Seconds that have gone by until ``what`` has ended."""
    with asyncio.Runner(loop_factory=Clockwork) as runner:

        async def run() -> None:
            await what()

        runner.run(run())
        return cast(Clockwork, runner.get_loop()).time()


async def refused(page: ClaimPreparer, number: int) -> str:
    return (await page.prepare([ref(number)]))[uid(number)].error


def test_nobody_waits_before_the_first_attempt_nor_for_the_calls_of_others(node: Node) -> None:
    async def calls() -> None:
        page = node.page()
        for number in (1, 2, 3):
            assert await refused(page, number) == ""
            await page.unprepare([ref(number)])
        await page.prepare([ref(1)])
        undone = await asyncio.gather(*(page.unprepare([ref(number)]) for number in (1, 2, 3)))
        assert [one.error for each in undone for one in each.values()] == ["", "", ""]

    assert played(calls) == 0


def never_answers(node: Node) -> None:
    async def never(namespace: str, name: str) -> Any:
        await asyncio.Event().wait()

    node.cluster.claim = never  # type: ignore[method-assign]


async def down_and_then_silent(node: Node) -> None:
    node.cluster.down = True
    asyncio.get_running_loop().call_later(3, never_answers, node)


async def in_use(node: Node) -> None:
    await node.page().prepare([ref(2)])


async def locked(node: Node) -> None:
    held = os.open(node.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(held, fcntl.LOCK_EX)
    weakref.finalize(node, os.close, held)


async def full(node: Node) -> None:
    node.cdi.rmdir()
    node.cdi.write_text("a file where the folder should be")


@pytest.mark.parametrize(
    ("trouble", "cause"),
    [
        (down_and_then_silent, "https://10.0.0.1: no answer"),
        (in_use, "channel 0 of this node is prepared for claim team-a/claim-2"),
        (locked, "another process has held the lock"),
        (full, "the node's disk refuses"),
    ],
    ids=lambda one: one.__name__ if callable(one) else "",
)
def test_what_does_not_mend_itself_is_answered_after_40_s_at_most_with_its_last_cause(
    node: Node, trouble: Callable[[Node], Awaitable[None]], cause: str
) -> None:
    async def call() -> None:
        loop = asyncio.get_running_loop()
        await trouble(node)
        began = loop.time()
        assert cause in await refused(node.page(), 1)
        assert LONGEST - Times().longest <= loop.time() - began <= LONGEST

    played(call)


def test_an_api_server_whose_answers_are_ten_seconds_late_is_waited_for(node: Node) -> None:
    def late(ask: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def answer(*given: str) -> Any:
            found = await ask(*given)
            await asyncio.sleep(10)
            return found

        return answer

    cluster: Any = node.cluster
    cluster.claim, cluster.domains = late(cluster.claim), late(cluster.domains)

    async def call() -> None:
        assert await refused(node.page(), 1) == ""

    assert played(call) == pytest.approx(20)
    assert ANSWER > 10, "the plugin's client gives an answer up before it comes"
    assert node.states() == {uid(1): COMPLETED}


@pytest.mark.parametrize("freed", [0.0, 1.7, 17.3, 37.9])
def test_a_claim_that_waits_has_the_channel_two_seconds_after_it_is_freed_at_most(
    node: Node, freed: float
) -> None:
    async def calls() -> None:
        page, loop = node.page(), asyncio.get_running_loop()
        await page.prepare([ref(1)])
        waiting = asyncio.create_task(refused(page, 2))
        await asyncio.sleep(freed)
        await page.unprepare([ref(1)])
        began = loop.time()
        assert await waiting == ""
        assert loop.time() - began <= Times().longest

    played(calls)
    assert node.states() == {uid(2): COMPLETED}


def test_a_call_that_the_kubelet_gives_up_is_not_gone_on_with(node: Node) -> None:
    async def calls() -> None:
        node.cluster.down = True
        page = node.page()
        given_up = asyncio.create_task(refused(page, 1))
        await asyncio.sleep(1)
        given_up.cancel()
        await asyncio.wait([given_up])
        node.cluster.down = False
        asked = len(node.cluster.asked)
        await asyncio.sleep(LONGEST)
        assert len(node.cluster.asked) == asked

    played(calls)
    assert (node.states(), node.files()) == ({}, {})


@pytest.mark.parametrize("turns", range(8))
def test_a_call_right_after_one_that_was_given_up_is_answered_for_itself(
    node: Node, turns: int
) -> None:
    async def calls() -> None:
        page, get = node.page(), node.cluster.claim

        async def slowly(namespace: str, name: str) -> Any:
            await asyncio.sleep(1)
            return await get(namespace, name)

        node.cluster.claim = slowly  # type: ignore[method-assign]
        given_up = asyncio.create_task(refused(page, 1))
        await asyncio.sleep(0.5)
        given_up.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        assert await refused(page, 1) == ""

    played(calls)
    assert node.states() == {uid(1): COMPLETED}
