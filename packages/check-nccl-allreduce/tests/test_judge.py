"""The decisions, on plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from check_nccl_allreduce import blame, judge
from check_nccl_allreduce.control.messages import Hello, Leaving, Result, Stage, Start, Trouble, VerdictMessage
from check_nccl_allreduce.control.rounds import Round
from check_nccl_allreduce.settings import Settings
from preflight_proto.check import Outcome
from preflight_proto.check.events import events

GIB = 1024**3
H100 = "NVIDIA H100 80GB HBM3"


def hellos(count: int = 2, **changes: object) -> dict[int, Hello]:
    base = {"backend": "nccl", "workers": 8, "model": H100, "fabric": "ib-8x400", **changes}
    return {rank: Hello(rank=rank, pod=f"pod-{rank}", node=f"node-{rank}", **base) for rank in range(count)}  # type: ignore[arg-type]


def start(world: int = 16, number: int = 1, backend: str = "nccl") -> Start:
    return Start(number, 29500, backend, 4 * GIB, 3, 1, world, 100.0)


def at(gbps: float, world: int = 16, **changes: object) -> Result:
    seconds = 4 * GIB * 2 * (world - 1) / world / gbps / 1e9
    return msgspec.structs.replace(Result(1, (seconds,) * 3, 4), **changes)


def trouble(kind: str, code: str = "CODE") -> Result:
    return Result(1, trouble=Trouble(kind, code, f"{kind} text"))


def judged(results: Mapping[int, Result], *, settings: Settings | None = None, **changes: Any) -> VerdictMessage:
    return judge.judge(settings or Settings(), hellos(len(results), **changes), Round(start(), dict(results)))[0]


@pytest.mark.parametrize(
    ("gbps", "code"),
    [(470.0, "OK"), (397.0, "OK"), (395.0, "OK"), (381.0, "OK"), (379.0, "LOW_BANDWIDTH"), (6.0, "LOW_BANDWIDTH")],
)
def test_the_floor_decides(gbps: float, code: str) -> None:
    assert judged({0: at(gbps), 1: at(470)}).code == code


def test_between_floor_and_ninety_percent_passes_and_says_so() -> None:
    verdict = judged({0: at(390), 1: at(390)})
    assert verdict.outcome == "passed"
    assert "390.00 GB/s bus bandwidth (less than 90 % of the 440 expected, but above the floor of 380" in verdict.reason


def test_a_slow_gang_is_told_by_how_much_against_what_and_from_where() -> None:
    verdict = judged({0: at(190), 1: at(190)})
    assert "190.00 GB/s bus bandwidth is 50 % below the floor of 380 GB/s from the table (" in verdict.reason
    assert "440 expected" in verdict.reason
    assert (verdict.measured, verdict.expected) == (190.0, 440.0)


def test_a_set_threshold_decides_over_the_table() -> None:
    assert judged({0: at(190), 1: at(190)}, settings=Settings(threshold=150.0)).code == "OK"
    assert judged({0: at(190), 1: at(190)}, settings=Settings(threshold=200.0)).code == "LOW_BANDWIDTH"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"fabric": ""}, "an unknown fabric (NCCL_ALLREDUCE_FABRIC)"),
        ({"model": "NVIDIA L40S"}, "8 x NVIDIA L40S"),
        ({"unusual": ("NCCL_MAX_NCHANNELS",)}, "the workload sets NCCL_MAX_NCHANNELS"),
    ],
)
def test_unknown_hardware_or_a_bent_measurement_passes_with_its_figure(changes: dict[str, Any], why: str) -> None:
    verdict = judged({0: at(6), 1: at(6)}, **changes)
    assert (verdict.outcome, verdict.measured, verdict.expected) == ("passed", 6.0, None)
    assert why in verdict.reason


def test_the_tables_floors_are_of_sums() -> None:
    last = Round(msgspec.structs.replace(start(), op="max"), {0: at(6), 1: at(6)})
    verdict, _ = judge.judge(Settings(), hellos(), last)
    assert (verdict.outcome, verdict.expected) == ("passed", None)
    assert "the table's are of sums, not of max" in verdict.reason


def test_the_log_tells_median_and_spread_by_the_slowest_rank_of_each_iteration() -> None:
    reports = {0: Result(1, (0.10, 0.20, 0.11), 4), 1: Result(1, (0.12, 0.10, 0.10), 4)}
    line = judge.spread(Round(start(), reports))
    assert line.startswith("round 1: 3 iterations, each by its slowest rank: median 120.000 ms, 110.000 to 200.000 ms")
    assert judge.spread(Round(start(), {0: trouble("died")})) == ""


@pytest.mark.parametrize(("threshold", "warned"), [(5.0, True), (200.0, False), (None, False)])
def test_a_threshold_of_less_than_half_the_floor_is_warned_of(threshold: float | None, warned: bool) -> None:
    lines = judge.remarks(Settings(threshold=threshold), hellos(), start())
    assert any("less than half of this hardware's floor of 380" in line for line in lines) is warned


def test_members_that_differ_have_no_floor() -> None:
    both = hellos() | {1: msgspec.structs.replace(hellos()[1], workers=4)}
    verdict, _ = judge.judge(Settings(), both, Round(start(12), {0: at(6, 12), 1: at(6, 12)}))
    assert "the members' hardware differs" in verdict.reason


def test_wrong_data_fails_whatever_the_bandwidth() -> None:
    verdict = judged({0: at(470), 1: at(470, wrong=3, where="rank 9, iteration 2, element 7")})
    assert (verdict.outcome, verdict.code) == ("failed", "WRONG_DATA")
    assert "seen by rank 1 (pod-1 on node-1), first by rank 9, iteration 2, element 7" in verdict.reason


@pytest.mark.parametrize(
    ("kinds", "kind", "outcome"),
    [
        (("peer", "environment"), "environment", "inconclusive"),
        (("peer", "device"), "device", "failed"),
        (("device", "environment"), "environment", "inconclusive"),
        (("peer", "died"), "died", "failed"),
        (("class", "launch"), "launch", "inconclusive"),
        (("peer", "class"), "class", "failed"),
        (("peer", "peer"), "peer", "failed"),
    ],
)
def test_errors_are_explained_in_order(kinds: tuple[str, ...], kind: str, outcome: str) -> None:
    verdict = judged({rank: trouble(one) for rank, one in enumerate(kinds)})
    assert (verdict.outcome, f"{kind} text" in verdict.reason) == (outcome, True)


def test_a_lost_member_decides_over_what_the_survivors_say() -> None:
    last = Round(start(), {0: trouble("peer")}, lost={1: "its connection ended"})
    verdict, again = judge.judge(Settings(), hellos(), last)
    assert (verdict.code, again) == ("MEMBER_LOST", False)
    assert "rank 1 (pod-1 on node-1): its connection ended" in verdict.reason


def test_who_leaves_decides_over_everything() -> None:
    last = Round(start(), {0: trouble("device")}, left={1: Leaving("PEER_FAILED", "pod-9 was evicted.")})
    assert judge.judge(Settings(), hellos(), last)[0].reason == "pod-9 was evicted."


@pytest.mark.parametrize(
    ("stages", "code", "words"),
    [
        ({0: Stage("connected"), 1: Stage("launched")}, "RENDEZVOUS_FAILED", "rank 1 (pod-1 on node-1) did not reach the rendezvous"),
        ({0: Stage("connected"), 1: Stage("connected")}, "RENDEZVOUS_FAILED", "did not open the communicator"),
        ({0: Stage("ready")}, "RENDEZVOUS_FAILED", "rank 1 (pod-1 on node-1) did not launch"),
        ({0: Stage("measuring", 4), 1: Stage("measuring", 3)}, "ALLREDUCE_STALLED", "rank 1 (pod-1 on node-1) stand(s) after iteration 3"),
        ({0: Stage("ready"), 1: Stage("ready")}, "ALLREDUCE_STALLED", "every rank stands before the first iteration"),
    ],
)  # fmt: skip
def test_a_round_that_does_not_end_says_where_everybody_stands(stages: dict[int, Stage], code: str, words: str) -> None:
    verdict, _ = judge.judge(Settings(), hellos(), Round(start(), stages=stages))
    assert (verdict.outcome, verdict.code) == ("inconclusive", code)
    assert words in verdict.reason


def test_what_may_be_an_accident_is_tried_once_more_on_another_port() -> None:
    plan = judge.Plan(Settings(), (29500, 41000), 100.0)
    rounds = [Round(start(), {0: trouble("peer"), 1: trouble("died")})]
    again = judge.next_step(plan, hellos(), rounds)
    assert isinstance(again, Start)
    assert (again.round, again.master_port) == (2, 41000)
    rounds.append(Round(again, {0: trouble("peer"), 1: trouble("died")}))
    assert isinstance(judge.next_step(plan, hellos(), rounds), VerdictMessage)


def test_without_time_nothing_is_tried_again() -> None:
    plan = judge.Plan(Settings(), (29500, 41000), 100.0, may_retry=False)
    assert isinstance(judge.next_step(plan, hellos(), [Round(start(), {0: trouble("died")})]), VerdictMessage)


@pytest.mark.parametrize(("code", "outcome"), [("NO_GPU", "inconclusive"), ("MIG", "skipped")])
def test_a_member_that_cannot_take_part_ends_all_before_the_first_round(code: str, outcome: str) -> None:
    both = hellos() | {1: msgspec.structs.replace(hellos()[1], trouble=Trouble("local", code, "no GPU can be seen"))}
    verdict = judge.next_step(judge.Plan(Settings(), (1, 2), 9.0), both, [])
    assert isinstance(verdict, VerdictMessage)
    assert (verdict.outcome, verdict.code) == (outcome, code)
    assert "rank 1 (pod-1 on node-1): no GPU can be seen" in verdict.reason


def test_members_with_different_backends_do_not_start() -> None:
    both = hellos() | {1: msgspec.structs.replace(hellos()[1], backend="gloo")}
    verdict = judge.next_step(judge.Plan(Settings(), (1, 2), 9.0), both, [])
    assert isinstance(verdict, VerdictMessage)
    assert verdict.code == "MEMBERS_DIFFER"


def test_a_start_counts_all_workers() -> None:
    first = judge.next_step(judge.Plan(Settings(), (1, 2), 9.0), hellos(3), [])
    assert isinstance(first, Start)
    assert (first.world, first.size) == (24, 4 * GIB)


@pytest.mark.parametrize("code", ["LOW_BANDWIDTH", "WRONG_DATA", "RANK_DIED", "NCCL_INTERNAL_ERROR"])
def test_what_a_failed_gang_raises_a_passed_one_clears(code: str) -> None:
    failed = blame.verdict_of(VerdictMessage("failed", code, "why.", metadata={"pod": "p"}), 0)
    passed = blame.verdict_of(VerdictMessage("passed", "OK", "fine."), 0)
    [raised] = events("nccl-allreduce", "NCCLAllReduceTest", "Node", failed)
    [cleared] = events("nccl-allreduce", "NCCLAllReduceTest", "Node", passed)
    assert raised.identity == cleared.identity
    assert (raised.fatal, raised.action.value, raised.entities, cleared.healthy) == (False, "NONE", (), True)
    assert failed.outcome is Outcome.FAILED
