"""The leader is lost, and another member leads: real TCP, with measurements made up. A gang's
members end alike, whoever leads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import msgspec
import pytest
from check_nccl_allreduce.control.leader import Leader, Rounds
from check_nccl_allreduce.control.member import MemberSession, Work
from check_nccl_allreduce.control.messages import (
    Failure,
    HeartbeatPace,
    Hello,
    LaunchOrder,
    Opened,
    Order,
    ProbeOrder,
    RankReport,
    RankStage,
    Standing,
    StoreOrder,
    VerdictMessage,
)
from check_nccl_allreduce.control.rounds import Probes
from check_nccl_allreduce.control.succession import concluded
from preflight_proto.check import Inconclusive
from preflight_proto.roster import Roster
from test_control import PASSED, Gang, hello, sound, start
from test_control_probes import probes

PACE = HeartbeatPace(0.3)
Changed = Callable[[RankStage], None]


async def stuck(order: Order, changed: Changed) -> RankReport:
    changed(RankStage("ready"))
    await anyio.sleep_forever()
    raise AssertionError


@dataclass
class Line(Gang):
    """A gang in which every member may lead. ``scopes``: cancel one, and that member's process is
    gone, its leading with it.
    """

    size: int = 4
    hello_within: float = 20.0
    scopes: dict[int, anyio.CancelScope] = field(default_factory=dict)
    led: list[int] = field(default_factory=list)
    cannot: frozenset[int] = frozenset()
    """Ranks whose control port somebody else has."""
    probing: bool = False

    def roster(self, rank: int, token: str = "secret", generation: int = 1) -> Roster:
        all_but_first = tuple((one, f"127.0.0.{one + 1}") for one in range(1, self.size))
        return msgspec.structs.replace(
            super().roster(rank, token, generation), successors=all_but_first
        )

    def step(self, hellos: object, done: Rounds) -> LaunchOrder | Probes | VerdictMessage:
        self.rounds = done
        probing = probes(((0, 1), (2, 3)), 18.0)
        steps: list[LaunchOrder | Probes] = [start(), *([probing] if self.probing else [])]
        return steps[len(done)] if len(done) < len(steps) else PASSED

    async def lead_from(self, place: int) -> None:
        if place in self.cannot:
            return
        self.led.append(place)
        leader = Leader(self.roster(place), f"127.0.0.{place + 1}", self.said.append, PACE, place)
        await leader.lead(self.hello_within if place else 20.0, self.step)

    async def process(self, rank: int, work: Work = sound) -> None:
        """A member with all that its process does."""
        with anyio.CancelScope() as self.scopes[rank]:
            async with anyio.create_task_group() as group:
                if rank == 0:
                    group.start_soon(self.lead_from, 0)
                one = MemberSession(
                    self.roster(rank),
                    hello(rank),
                    f"127.0.0.{rank + 1}",
                    self.said.append,
                    pace=PACE,
                    lead=lambda place: group.start_soon(self.lead_from, place),
                )
                try:
                    self.verdicts[rank] = await one.take_part(20.0, work)
                except Inconclusive as error:
                    self.verdicts[rank] = error

    def play(
        self,
        work: Work,
        *killers: Callable[[], object],
        late: tuple[int, ...] = (),
        real_time: bool = False,
    ) -> None:
        """All members but ``late`` ones; each killer is an async function that takes the gang
        apart.
        """
        ranks = [rank for rank in range(self.size) if rank not in late]
        members = [lambda rank=rank: self.process(rank, work) for rank in ranks]
        self.run(*members, *killers, real_time=real_time)  # type: ignore[arg-type]

    def agreed(self, *ranks: int) -> VerdictMessage:
        """The one verdict that all of these, and nobody else, ended with."""
        assert set(self.verdicts) == set(ranks)
        verdicts = list(self.verdicts.values())
        assert all(isinstance(one, VerdictMessage) for one in verdicts), verdicts
        assert all(one == verdicts[0] for one in verdicts), (self.verdicts, self.said)
        assert isinstance(verdicts[0], VerdictMessage)
        return verdicts[0]


def when(gang: Line, ready: Callable[[], bool], *ranks: int) -> Callable[[], object]:
    """Kill these once something is so."""

    async def kill() -> None:
        while not ready():
            await anyio.sleep(0.02)
        for rank in ranks:
            gang.scopes[rank].cancel()

    return kill


def all_ready(gang: Line) -> Callable[[], bool]:
    return lambda: (
        bool(gang.rounds) and all(gang.rounds[-1].is_ready(rank) for rank in range(gang.size))
    )


def test_a_leader_that_is_lost_while_the_ranks_reduce_is_named_by_its_successor_to_all() -> None:
    gang = Line()
    gang.play(stuck, when(gang, all_ready(gang), 0))
    verdict = gang.agreed(1, 2, 3)
    assert (verdict.outcome, verdict.code, verdict.blamed, verdict.named) == (
        "inconclusive",
        "LEADER_LOST",
        {},
        {},
    )
    assert "rank 0 at 127.0.0.1" in verdict.reason
    assert "(pod-0 on node-0)" in verdict.reason
    assert "the gang's all-reduce ran (round 1)" in verdict.reason
    assert "rank 1 (pod-1 on node-1) took its place" in verdict.reason
    assert gang.led == [0, 1]


def test_a_leader_that_is_lost_in_localization_is_named_too() -> None:
    gang = Line(probing=True)

    async def work(order: Order, changed: Changed) -> RankReport | Opened:
        if isinstance(order, StoreOrder):
            return Opened(order.round, 4000, "127.0.0.1")
        return await (stuck if isinstance(order, ProbeOrder) else sound)(order, changed)

    gang.play(work, when(gang, lambda: len(gang.rounds) == 2 and all_ready(gang)(), 0))
    assert "pairs were measured (round 2)" in gang.agreed(1, 2, 3).reason


def test_what_the_others_workers_said_is_told() -> None:
    def of(rank: int, trouble: Failure | None) -> Hello:
        return msgspec.structs.replace(
            hello(rank), standing=Standing("the leader, rank 0", 2, True, trouble)
        )

    broke = Failure("peer", "NCCL_REMOTE", "the connection to rank 0 broke")
    hellos = {1: of(1, None), 2: of(2, broke)}
    reason = concluded("the leader, rank 0", 4, 1, hellos).reason
    assert "ended the run for the 2 members that are there; rank 3 did not come either" in reason
    assert reason.endswith(
        "said after it: rank 2 (pod-2 on node-2): the connection to rank 0 broke."
    )


def test_a_leader_that_is_lost_before_the_run_is_waited_for_and_then_missed_by_all() -> None:
    gang = Line(hello_within=2.0)
    gang.play(
        sound, when(gang, lambda: any("(3 of 4)" in line for line in gang.said), 0), late=(3,)
    )
    verdict = gang.agreed(1, 2)
    assert verdict.code == "PEER_MISSING"
    assert "rank 0, 3 of 4 never reached the leader 127.0.0.2" in verdict.reason


def test_where_the_first_successor_is_lost_as_well_the_second_leads() -> None:
    gang = Line()
    gang.play(stuck, when(gang, all_ready(gang), 0, 1))
    verdict = gang.agreed(2, 3)
    assert "rank 2 (pod-2 on node-2) took its place" in verdict.reason
    assert "rank 1 did not come either" in verdict.reason
    assert gang.led == [0, 2]


def test_a_successor_that_is_lost_while_it_leads_is_followed_by_the_next() -> None:
    gang = Line()
    gang.play(stuck, when(gang, all_ready(gang), 0), when(gang, lambda: gang.led == [0, 1], 1))
    verdict = gang.agreed(2, 3)
    assert "rank 2 (pod-2 on node-2) took its place" in verdict.reason


def test_a_successor_that_cannot_listen_is_passed_over() -> None:
    gang = Line(cannot=frozenset({1}))
    gang.play(stuck, when(gang, all_ready(gang), 0))
    assert "rank 2 (pod-2 on node-2) took its place" in gang.agreed(1, 2, 3).reason


@pytest.mark.parametrize("told", [0, 1, 2])
def test_a_verdict_that_a_lost_leader_had_decided_is_what_its_successor_tells(
    told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``told``: to how many members the leader had told it, when it was lost."""
    gang = Line()
    real = Leader._send_verdict

    async def dies(self: Leader, ranks: object, verdict: VerdictMessage) -> None:
        if self._place == 0:
            await real(self, sorted(self._hub.members.keys())[::-1][:told], verdict)
            await anyio.sleep(0.2)
            gang.scopes[0].cancel()
            await anyio.sleep_forever()
        await real(self, ranks, verdict)  # type: ignore[arg-type]

    monkeypatch.setattr(Leader, "_send_verdict", dies)
    gang.play(sound)
    assert gang.agreed(1, 2, 3) == PASSED


def stopped(gang: Line, ready: Callable[[], bool], work: Work) -> Callable[[], object]:
    """Rank 0 in a thread of its own, which is stopped once something is so, and until the others
    have followed another leader.
    """

    async def stops() -> None:
        while not ready():
            await anyio.sleep(0.02)
        there, end = arrivals(gang), time.monotonic() + 600
        while (gang.led != [0, 1] or arrivals(gang) == there) and time.monotonic() < end:
            time.sleep(0.02)

    async def rank_0() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(stops)
            group.start_soon(gang.process, 0, work)

    async def wait() -> None:
        thread = threading.Thread(target=lambda: anyio.run(rank_0))
        thread.start()
        while thread.is_alive():
            await anyio.sleep(0.05)

    return wait


def arrivals(gang: Line) -> int:
    """How often a leader took a member in."""
    return sum("is there" in line for line in gang.said)


def test_a_leader_that_was_stopped_in_the_run_ends_with_the_verdict_of_its_successor() -> None:
    gang = Line()
    gang.play(stuck, stopped(gang, all_ready(gang), stuck), late=(0,), real_time=True)
    verdict = gang.agreed(0, 1, 2, 3)
    assert verdict.code == "LEADER_LOST"
    assert gang.led == [0, 1]


def test_a_leader_that_was_stopped_before_the_run_takes_part_under_its_successor() -> None:
    gang = Line()

    async def last() -> None:
        while gang.led != [0, 1]:
            await anyio.sleep(0.02)
        await gang.process(3)

    three = stopped(gang, lambda: any("(3 of 4)" in line for line in gang.said), sound)
    gang.play(sound, three, last, late=(0, 3), real_time=True)
    assert gang.agreed(0, 1, 2, 3) == PASSED
    assert gang.led == [0, 1]


def test_without_successors_each_member_says_that_the_leader_was_lost() -> None:
    gang = Line()
    alone = gang.roster

    def roster(rank: int, token: str = "secret", generation: int = 1) -> Roster:
        return msgspec.structs.replace(alone(rank, token, generation), successors=())

    gang.roster = roster  # type: ignore[method-assign]
    gang.play(stuck, when(gang, all_ready(gang), 0))
    assert {type(one) for one in gang.verdicts.values()} == {Inconclusive}
    assert gang.codes() == dict.fromkeys((1, 2, 3), "LEADER_LOST")
