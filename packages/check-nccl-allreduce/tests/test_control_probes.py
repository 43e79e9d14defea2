"""Rounds of probes over the parents' channel: real TCP, with what workers do made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
from check_nccl_allreduce.control.leader import Leader, Rounds
from check_nccl_allreduce.control.messages import (
    Failure,
    LaunchOrder,
    Opened,
    Order,
    ProbeOrder,
    RankReport,
    RankStage,
    StoreOrder,
    VerdictMessage,
)
from check_nccl_allreduce.control.rounds import LaunchRound, ProbeRound, Probes
from check_nccl_allreduce.localise import Phase, Round
from test_control import PASSED, Gang, start

Changed = Callable[[RankStage], None]


def probes(groups: tuple[tuple[int, ...], ...], timeout: float, *, fresh: bool = False) -> Probes:
    """A round of these, after the launch, of members with one worker each."""
    orders = {
        rank: ProbeOrder(
            2, index, base, len(group), "", 0, "gloo", 4096, 3, 1, timeout / 2, timeout, fresh
        )
        for index, group in enumerate(groups)
        for base, rank in enumerate(group)
    }
    return Probes(2, groups, orders, Round(2, Phase.MATCH, ()))


@dataclass
class ProbedGang(Gang):
    """A gang that makes its launch and then one round of probes. ``forming``: seconds until a
    communicator works. ``seen``: what each rank was told to do.
    """

    size: int = 4
    groups: tuple[tuple[int, ...], ...] = ((0, 1), (2, 3))
    timeout: float = 20.0
    fresh: bool = False
    forming: float = 0.0
    seen: dict[int, list[Order]] = field(default_factory=dict)
    told: list[tuple[int, Order]] = field(default_factory=list)

    def probes(self) -> Probes:
        return probes(self.groups, self.timeout, fresh=self.fresh)

    async def lead_probes(self) -> None:
        def step(hellos: object, done: Rounds) -> LaunchOrder | Probes | VerdictMessage:
            self.rounds = done
            steps: list[LaunchOrder | Probes | VerdictMessage] = [start(), self.probes(), PASSED]
            return steps[len(done)]

        await Leader(self.roster(0), "127.0.0.1", self.said.append).lead(10.0, step)

    async def works(self, rank: int, order: Order, changed: Changed) -> RankReport | Opened:
        self.seen.setdefault(rank, []).append(order)
        self.told.append((rank, order))
        if isinstance(order, StoreOrder):
            return Opened(order.round, 4000 + rank, f"127.0.0.{rank + 1}")
        await anyio.sleep(self.forming)
        changed(RankStage("ready"))
        return RankReport(order.round, (0.1,) * 3, 4)

    def play(self, **odd: Callable[[Order, Changed], object]) -> ProbeRound:
        """Run it all; ``rank_N`` does for a probe what is given instead of answering."""

        async def one(rank: int) -> None:
            async def work(order: Order, changed: Changed) -> RankReport | Opened:
                act = odd.get(f"rank_{rank}")
                if act is not None and isinstance(order, ProbeOrder | StoreOrder):
                    answer = act(order, changed)
                    if isinstance(answer, RankReport | Opened):
                        return answer
                    if answer != "as usual":
                        await anyio.sleep_forever()
                return await self.works(rank, order, changed)

            await self.member(rank, work)

        self.run(self.lead_probes, *[lambda rank=rank: one(rank) for rank in range(self.size)])
        assert self.codes() == dict.fromkeys(range(self.size), "OK")
        played = self.rounds[1]
        assert isinstance(played, ProbeRound)
        return played


def test_each_probe_meets_at_its_own_first_members_store() -> None:
    gang = ProbedGang()
    played = gang.play()
    told = {
        rank: one
        for rank, orders in gang.seen.items()
        for one in orders
        if isinstance(one, ProbeOrder)
    }
    assert {rank: (one.host, one.port, one.index, one.base) for rank, one in told.items()} == {
        0: ("127.0.0.1", 4000, 0, 0),
        1: ("127.0.0.1", 4000, 0, 1),
        2: ("127.0.0.3", 4002, 1, 0),
        3: ("127.0.0.3", 4002, 1, 1),
    }
    assert set(played.results) == {0, 1, 2, 3}


def test_each_order_says_when_it_is_given_up() -> None:
    gang = ProbedGang()
    gang.play()
    launch, *others = gang.seen[1]
    assert isinstance(launch, LaunchOrder)
    assert launch.within == 20.0
    [probe] = [one for one in others if isinstance(one, ProbeOrder)]
    assert 0 < probe.within <= gang.timeout


def test_all_members_of_a_round_make_new_workers_at_once_and_meet_when_all_have_them() -> None:
    gang = ProbedGang(fresh=True)
    played = gang.play()
    assert set(played.results) == set(played.opened) == {0, 1, 2, 3}
    kinds = {rank: [type(order) for order in orders] for rank, orders in gang.seen.items()}
    assert kinds == {rank: [LaunchOrder, StoreOrder, ProbeOrder] for rank in range(4)}
    stores = {rank: order.store for rank, order in gang.told if isinstance(order, StoreOrder)}
    assert stores == {0: True, 1: False, 2: True, 3: False}
    for group in gang.groups:
        steps = [type(order) for rank, order in gang.told if rank in group]
        assert steps == [LaunchOrder, LaunchOrder, StoreOrder, StoreOrder, ProbeOrder, ProbeOrder]


def test_workers_that_cannot_be_made_end_their_probe_soon_on_whatever_side() -> None:
    trouble = Failure("device", "GPU_UNRESPONSIVE", "stuck")
    gang = ProbedGang(fresh=True)
    played = gang.play(rank_3=lambda order, changed: Opened(order.round, trouble=trouble))
    assert set(played.results) == {0, 1}
    assert played.opened[3].trouble == trouble


def test_the_leader_knows_how_long_the_communicator_took() -> None:
    gang = ProbedGang(forming=3.0)
    gang.play()
    launched = gang.rounds[0]
    assert isinstance(launched, LaunchRound)
    assert 3.0 <= launched.ready_after < 4.0


def test_a_member_of_no_probe_has_nothing_to_do() -> None:
    gang = ProbedGang(size=3, groups=((0, 2),))
    assert set(gang.play().results) == {0, 2}
    assert [type(order) for order in gang.seen[1]] == [LaunchOrder]


def test_a_probe_that_never_gets_ready_ends_at_its_deadline_and_the_others_are_heard() -> None:
    played = ProbedGang(timeout=1.0).play(rank_3=lambda order, changed: None)
    assert set(played.results) == {0, 1, 2}
    assert not played.is_ready(3)


def test_a_store_that_cannot_be_opened_ends_its_probe_soon() -> None:
    trouble = Failure("died", "RANK_DIED", "gone")
    gang = ProbedGang()
    played = gang.play(rank_2=lambda order, changed: Opened(order.round, trouble=trouble))
    assert set(played.results) == {0, 1}
    assert played.opened[2].trouble == trouble
    assert [type(order) for order in gang.seen[3]] == [LaunchOrder]


def test_trouble_on_one_side_ends_the_probe_without_the_other() -> None:
    def fails(order: Order, changed: Changed) -> object:
        return (
            RankReport(order.round, trouble=Failure("peer", "X", "x"))
            if isinstance(order, ProbeOrder)
            else "as usual"
        )

    def stuck(order: Order, changed: Changed) -> object:
        changed(RankStage("ready"))
        return None

    played = ProbedGang().play(rank_0=fails, rank_1=stuck)
    assert set(played.results) == {0, 2, 3}
    assert played.is_ready(1)
