from __future__ import annotations

from types import TracebackType

import anyio
import pytest
from check_nccl_allreduce import check
from check_nccl_allreduce.budget import Budget, is_last
from check_nccl_allreduce.control.messages import HeartbeatPace, LaunchOrder, RankStage
from check_nccl_allreduce.control.rounds import LaunchRound, Wait
from check_nccl_allreduce.settings import Settings
from hypothesis import given
from hypothesis import strategies as st
from preflight_proto.check import Outcome, Run, Verdict
from preflight_proto.check.gang import GangSettings
from preflight_proto.check.runner import _judge


def test_of_five_minutes_the_gang_has_two_localization_two_and_a_half_and_the_report_ten_seconds() -> (
    None
):
    one = Budget(300.0)
    assert (one.launch, one.probes(120.0, 120.0), one.report) == (120.0, 150.0, 10.0)
    assert (one.probes(20.0, 20.0), one.probes(100.0, 20.0)) == (150.0, 70.0)  # no more than half
    assert one.probes(250.0, 250.0) == 40.0  # a second launch was not the report's to pay


def test_a_launch_without_topology_files_leaves_localization_half_of_its_share() -> None:
    assert Budget(300.0).spare(40.0, 40.0) == 300.0 - 10.0 - 40.0 - 75.0


@pytest.mark.parametrize(("took", "fits"), [(80.0, True), (90.0, False)])
def test_a_launch_without_topology_files_fits_where_half_as_much_again_as_the_last_one_took_is_left(
    took: float, *, fits: bool
) -> None:
    assert (Budget(300.0).spare(took, took) > 0) is fits


@pytest.mark.parametrize(
    ("allowed", "report"), [(3600.0, 54.0), (600.0, 10.0), (100.0, 10.0), (50.0, 5.0), (10.0, 2.0)]
)
def test_a_short_timeout_keeps_a_tenth_for_the_report_and_a_long_one_more_than_ten_seconds(
    allowed: float, report: float
) -> None:
    assert Budget(allowed).report == report


@given(allowed=st.floats(10, 3600), share=st.floats(0, 0.4))
def test_whatever_the_gang_took_the_whole_stays_within_what_is_allowed(
    allowed: float, share: float
) -> None:
    one, spent = Budget(allowed), share * allowed
    assert spent + one.probes(spent, spent) + one.report <= allowed + 1e-6


@given(share=st.floats(0.001, 0.5), left=st.floats(1, 3600))
def test_an_iteration_that_takes_up_to_half_of_the_time_is_measured_after_a_first_one(
    share: float, left: float
) -> None:
    took, ended = share * left, 1
    while not is_last(ended * took, 0.0, left, took):
        ended += 1
    assert (ended + 1) * took <= left * (1 + 1e-9)


@pytest.mark.parametrize(
    ("check_timeout", "stall"), [(30.0, 6.0), (180.0, 30.0), (300.0, 40.0), (3600.0, 480.0)]
)
def test_a_launch_hangs_where_no_rank_gets_further_in_a_third_of_its_time(
    check_timeout: float, stall: float
) -> None:
    within = Budget(check_timeout).launch
    this = LaunchRound(LaunchOrder(1, 29500, "nccl", 4096, 20, 5, 16, 100.0, within=within))
    wait = Wait(this, (0, 1), 0.0, HeartbeatPace.of(2), within=within, over=within)
    for rank in (0, 1):
        this.stages[rank] = RankStage("ready")
        wait.news(rank, 9.0)
    assert wait.until == 9.0 + min(stall, within - 9.0)


@given(check_timeout=st.floats(60, 3600), spent=st.floats(0.05, 0.4))
def test_a_second_launch_hangs_where_no_rank_gets_further_for_as_long_as_in_the_first(
    check_timeout: float, spent: float
) -> None:
    budget, started = Budget(check_timeout), spent * check_timeout
    order = LaunchOrder(2, 29500, "nccl", 4096, 20, 5, 16, 100.0, within=budget.left(started))
    this = LaunchRound(order)
    pace = HeartbeatPace.of(2)
    wait = Wait(this, (0, 1), started, pace, within=budget.launch, over=order.within)
    for rank in (0, 1):
        this.stages[rank] = RankStage("ready")
        wait.news(rank, started + 9.0)
    assert wait.until - started - 9.0 <= max(30.0, budget.launch / 3) + 1e-6


class LongEnd:
    """Ranks of which one sits in the kernel, and is waited for when all is decided."""

    def __init__(self, *_: object) -> None: ...

    async def __aenter__(self) -> LongEnd:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.3)
        await anyio.lowlevel.checkpoint()


def test_a_verdict_stands_whatever_time_is_left_to_see_the_ranks_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blamed = Verdict(Outcome.FAILED, "GPU_UNRESPONSIVE", "the driver does not answer.")

    async def once(*_: object, **__: object) -> Verdict:
        return blamed

    monkeypatch.setattr(check, "Ranks", LongEnd)
    monkeypatch.setattr(check, "_once", once)

    async def story() -> Verdict:
        kit = GangSettings(node_name="n", pod_uid="u", pod_ip="127.0.0.1")
        run = Run(check.CHECK, Settings(), kit, say=print, started=0.0)
        run.restart_deadline(0.1)
        return await _judge(run)

    assert anyio.run(story).code == "GPU_UNRESPONSIVE"
