"""Whatever a kubelet, a user and the machine do, in any order: never two prepared claims, never a
file without one, never one without its file.

PREFLIGHT_SEQUENCES says how many sequences are tried (200 unless it is set); 20,000 take some
minutes, fewer with PREFLIGHT_SEQUENCES_FOLDER in memory.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from claimed import FACTS, Node, ref, uid
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from preflight_computedomain.names import cdi_file
from preflight_computedomain.plugin.cdi import document
from preflight_computedomain.plugin.checkpoint import COMPLETED
from preflight_computedomain.plugin.page import Page, Times

NUMBER = int(os.environ.get("PREFLIGHT_SEQUENCES") or 200)
TIMES = Times(call=0.03, answer=20, first=0.002, longest=0.01)


class Killed(BaseException):
    """The process ends here."""


class Machine:
    """Ends the process at step ``left`` of those on the disk; a process that has ended writes
    nothing more.
    """

    def __init__(self) -> None:
        self.left: int | None = None
        self.dead = False

    def __call__(self, _: str) -> None:
        self.dead = self.dead or self.left == 0
        if self.dead:
            raise Killed
        if self.left is not None:
            self.left -= 1


Call = tuple[str, int, int | None]
"""What is asked, for which claim, and after how many turns of the loop the kubelet gives it up."""
CALL = st.tuples(
    st.sampled_from(["prepare", "prepare", "unprepare"]),
    st.integers(1, 3),
    st.none() | st.integers(0, 40),
)
STEP = st.tuples(
    st.lists(CALL, min_size=1, max_size=3),
    st.none() | st.integers(0, 16),
    st.sampled_from(["nothing", "nothing", "restart", "reboot", "file lost"]),
)
Step = tuple[list[Call], int | None, str]


def done(node: Node) -> set[str]:
    return {key for key, state in node.states().items() if state == COMPLETED}


def check(node: Node) -> None:
    assert len(done(node)) <= 1
    assert node.files() == {cdi_file(key): document(key, node.facts.major) for key in done(node)}


async def call(page: Page, asked: Call) -> None:
    what, number, patience = asked
    work = page.prepare([ref(number)]) if what == "prepare" else page.unprepare([ref(number)])
    task = asyncio.create_task(work)
    for _ in range(patience or 0):
        await asyncio.sleep(0)
    if patience is not None:
        task.cancel()
    try:
        answers = await task
    except asyncio.CancelledError:
        return
    assert answers.keys() == {uid(number)}


async def play(node: Node, steps: Sequence[Step]) -> None:
    machine, boots = Machine(), itertools.count(2)
    node.step = machine
    page = node.page()
    await page.start()
    for calls, kill, event in steps:
        machine.left = kill
        for ended in await asyncio.gather(
            *(call(page, one) for one in calls), return_exceptions=True
        ):
            if ended is not None and not isinstance(ended, Killed):
                raise ended
        await page.stop(20)  # what was given up, too, comes to its end
        if not machine.dead:
            check(node)
        if event == "reboot":
            node.facts = replace(FACTS, boot=f"boot-{next(boots)}")
            for path in node.cdi.iterdir():
                path.unlink()
        elif event == "file lost":
            for path in node.cdi.iterdir():
                path.unlink()
        if machine.dead or event in {"restart", "reboot"}:
            machine.left, machine.dead = None, False
            page = node.page()
            await page.start()
        machine.left = None
        await page.mend()
        check(node)
    node.times = Times()  # with patience, whatever the machine does beside
    answers = await node.page().unprepare([ref(number) for number in range(1, 4)])
    assert {one.error for one in answers.values()} == {""}
    assert (node.states(), node.files(), node.store().corrupt) == ({}, {}, 0)


@settings(max_examples=NUMBER, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, min_size=1, max_size=5))
def test_no_order_of_calls_cancellations_kills_and_reboots_gives_the_channel_twice_or_loses_it(
    steps: list[Step],
) -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("PREFLIGHT_SEQUENCES_FOLDER")) as folder:
        node = Node(Path(folder), times=TIMES)
        for number in range(1, 4):
            node.cluster.add(ref(number))
        asyncio.run(play(node, steps))
