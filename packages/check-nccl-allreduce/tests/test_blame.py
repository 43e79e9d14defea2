"""From the gang's own run over rounds of probes to one verdict, with every report made up: who is
blamed, and by whom it is told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
from check_nccl_allreduce import blame
from check_nccl_allreduce.control.messages import (
    Failure,
    LaunchOrder,
    RankReport,
    RankStage,
    VerdictMessage,
)
from check_nccl_allreduce.control.rounds import LaunchRound, Probes
from hypothesis import given
from hypothesis import strategies as st
from preflight_proto.check import Verdict
from preflight_proto.check.events import events
from worlds import HEALTHY, Answer, World, hangs, sick, slow, split, spoils, took, troubled

STUCK = RankStage("measuring", 1)


@pytest.mark.parametrize("nodes", [3, 4, 7, 8])
def test_the_slow_node_alone_is_blamed(nodes: int) -> None:
    assert World(nodes, slow(1)).run().blamed == {}  # without a witness
    verdict = sick(nodes).run()
    assert (verdict.outcome, verdict.code, verdict.blamed) == (
        "failed",
        "LOW_BANDWIDTH",
        {1: "NODE_SLOW"},
    )
    assert "node-1 reached 33% of normal" in verdict.reason


def test_all_members_on_the_slow_node_report_it() -> None:
    world = sick(4, pods=2, workers=1)
    assert world.run().blamed == {2: "NODE_SLOW", 3: "NODE_SLOW"}
    assert {
        len(group)
        for one in world.probes()
        for group in one.order.groups
        if not one.order.common.hairpin
    } == {4}
    assert {
        len(group)
        for one in world.probes()
        for group in one.order.groups
        if one.order.common.hairpin
    } == {2}


def test_each_member_of_a_probe_has_ranks_of_its_own() -> None:
    world = World(4, slow(2, 3), pods=2)
    world.run()
    for one in world.probes():
        for group in one.order.groups:
            count = 2 if one.order.common.hairpin else 4
            assert [one.order.orders[rank].base for rank in group] == list(range(count))
            assert one.order.orders[group[0]].world == count


def test_a_gang_that_passes_is_asked_for_no_probe() -> None:
    world = World(4, slow(), gang=dict.fromkeys(range(4), took(HEALTHY)))
    assert (world.run().outcome, world.probes()) == ("passed", [])


def test_where_all_are_slow_nobody_is_blamed() -> None:
    verdict = World(4, slow(0, 1, 2, 3)).run()
    assert (verdict.outcome, verdict.code, verdict.blamed) == ("failed", "LOW_BANDWIDTH", {})
    assert verdict.metadata["finding"] == "systemic"


def test_two_nodes_are_named_as_a_pair() -> None:
    verdict = World(2, lambda group: dict.fromkeys(group, took(HEALTHY))).run()
    assert (verdict.code, verdict.blamed, verdict.metadata["named"]) == (
        "LOW_BANDWIDTH",
        {},
        "node-0, node-1",
    )
    assert verdict.named == {}


def test_of_two_nodes_the_one_that_is_slow_to_itself_and_whose_port_is_down_is_blamed() -> None:
    verdict = sick(2, gang=dict.fromkeys(range(2), took(3 * HEALTHY))).run()
    assert (verdict.code, verdict.blamed, verdict.metadata["named"]) == (
        "LOW_BANDWIDTH",
        {1: "NODE_SLOW"},
        "node-1",
    )
    [own] = events("nccl-allreduce", "NCCLAllReduceTest", "Node", told(verdict, 1))
    assert "evidence: path, local" in own.metadata["evidence"]


def test_of_two_nodes_without_time_to_look_again_the_slow_one_is_named_with_what_would_settle_it() -> (
    None
):
    verdict = World(2, slow(1), left=40.0).run()
    assert (verdict.blamed, verdict.metadata["named"]) == ({}, "node-1")
    assert "measure it again, at least 45 s after the first time" in verdict.named[1]


def test_after_hairpins_a_pair_has_new_workers_that_go_over_the_network_again() -> None:
    world = World(2, slow(1))
    world.run()
    assert [(bool(one.order.common.hairpin), one.order.common.fresh) for one in world.probes()] == [
        (True, False),
        (False, True),
        (True, False),
        (True, False),
    ]


def beyond(one: int) -> Answer:
    """What lies between this node's adapter and the others is slow."""
    return lambda group: dict.fromkeys(
        group, took(HEALTHY * (3 if one in group and len(group) > 1 else 1))
    )


def test_a_node_that_is_slow_with_all_others_and_fast_to_itself_is_named_with_what_would_settle_it() -> (
    None
):
    verdict = World(4, beyond(1)).run()
    assert (verdict.outcome, verdict.blamed, verdict.metadata["named"]) == ("failed", {}, "node-1")
    assert "look at its cable, its switch port" in verdict.named[1]
    [own] = events("nccl-allreduce", "NCCLAllReduceTest", "Node", told(verdict, 1))
    assert (own.fatal, "named and not blamed" in own.message) == (False, True)


def test_a_fatal_event_says_by_which_evidence_and_the_witness() -> None:
    verdict = sick(4).run()
    [own] = events("nccl-allreduce", "NCCLAllReduceTest", "Node", told(verdict, 1))
    assert own.metadata["evidence"] == (
        "evidence: path, local; its own devices say why: mlx5_3:1 is DOWN (Polling), not ACTIVE (1 of 4 nodes so)"
    )


def test_a_person_reads_which_node_what_beside_what_is_normal_the_witness_and_what_to_do() -> None:
    assert (
        "the all-reduce of 4 nodes is below its floor, and the cause is known: node-1 reached 33% of normal"
        in (reason := sick(4).run().reason)
    )
    assert "with 3 known-good nodes in 4 rounds, and to itself as well; its own devices" in reason
    assert "(1 of 4 nodes so); take it out of service." in reason


@pytest.mark.parametrize(
    "world",
    [
        sick(4),
        sick(2),
        World(4, slow(1), left=40.0),
        World(4, lambda group: dict.fromkeys(group, took(HEALTHY * (3 if 1 in group else 1)))),
    ],
    ids=["blamed", "of two", "named", "named for its path"],
)
def test_the_models_numbers_stand_in_a_marked_line_of_the_log_alone(world: World) -> None:
    verdict = world.run()
    marked = [line for line in world.said if line.startswith("likelihoods: ")]
    [scores] = [json.loads(line.partition(": ")[2]) for line in marked]
    assert scores["node-1"].keys() == {"noise", "spell", "path", "local", "kinds"}
    people = [line for line in world.said if line not in marked] + [verdict.reason]
    for rank in range(world.size):
        for event in events("nccl-allreduce", "NCCLAllReduceTest", "Node", told(verdict, rank)):
            people += [event.message, *event.metadata.values()]
    assert not [text for text in people if re.search(r"\d to 1\b|\de\+\d", text)]


def test_without_time_to_look_again_later_nobody_is_blamed() -> None:
    verdict = sick(4, left=40.0).run()
    assert (verdict.outcome, verdict.blamed, verdict.metadata["named"]) == ("failed", {}, "node-1")
    assert "measure it again, at least 45 s after the first time" in verdict.reason


def test_a_node_with_a_single_gpu_has_no_hairpin_by_nccl() -> None:
    world = World(4, slow(1), backend="nccl")
    world.run()
    assert not any(one.order.common.hairpin for one in world.probes())
    world = World(4, slow(1), backend="nccl", workers=2)
    world.run()
    assert any(one.order.common.hairpin for one in world.probes())


@pytest.mark.parametrize(("itself", "blamed"), [(1, {}), (3, {1: "NODE_SLOW"})])
def test_a_suspect_with_a_single_gpu_keeps_no_other_one_from_its_hairpin(
    itself: int, blamed: dict[int, str]
) -> None:
    def told(group: tuple[int, ...]) -> dict[int, RankReport | RankStage]:
        times = 5 if 6 in group else 1 if 1 not in group else itself if len(group) == 1 else 3
        return dict.fromkeys(group, took(HEALTHY * times))

    single = (5, 6, 7, 8, 9)
    world = World(10, told, backend="nccl", workers=2, single=single, down=(1,))
    verdict = world.run()
    orders = [each.order.orders for each in world.probes() if each.order.common.hairpin]
    assert all(1 in order and not {*order} & {*single} for order in orders)
    assert (verdict.blamed, len(orders)) == (blamed, 2 if blamed else 1)


def apart(nodes: int, slow: int) -> dict[int, RankReport | RankStage]:
    """The gang's own all-reduce, in which one member took twice as long as the others."""
    return {rank: took(HEALTHY * (2 if rank == slow else 1)) for rank in range(nodes)}


@pytest.mark.parametrize(("answer", "outcome"), [(slow(2), "failed"), (slow(), "passed")])
def test_unknown_hardware_fails_on_a_confirmed_contrast_only(answer: Answer, outcome: str) -> None:
    verdict = sick(4, 2, answer, gang=apart(4, 2), threshold=None).run()
    assert (verdict.outcome, verdict.blamed) == (
        outcome,
        {2: "NODE_SLOW"} if outcome == "failed" else {},
    )


def test_a_gang_of_unknown_hardware_whose_members_take_equally_long_is_not_compared() -> None:
    world = World(4, slow(2), backend="nccl", threshold=None)
    assert (world.run().outcome, world.probes()) == ("passed", [])


def test_gloo_without_a_floor_is_not_compared_among_itself() -> None:
    world = World(4, slow(2), gang=apart(4, 2), threshold=None)
    assert (world.run().outcome, world.probes()) == ("passed", [])


def test_wrong_data_is_traced_to_its_node() -> None:
    verdict = World(4, spoils(3), gang=dict.fromkeys(range(4), took(HEALTHY, wrong=9))).run()
    assert (verdict.code, verdict.blamed) == ("WRONG_DATA", {3: "NODE_WRONG_DATA"})


def test_wrong_data_stay_wrong_where_a_member_is_lost_while_pairs_are_measured() -> None:
    world = World(4, slow(), gang=dict.fromkeys(range(4), took(HEALTHY, wrong=9)))
    while len(world.rounds) < 2:
        what = world.step()
        if isinstance(what, LaunchOrder):
            world.rounds.append(LaunchRound(what, *split(world.gang or {})))
        elif isinstance(what, Probes):
            world.rounds.append(world.played(what))
    world.probes()[0].lost[2] = "its connection ended"
    limit = troubled(2, Failure("environment", "HOST_LIMIT", "too many open files"))
    for one in (world, World(4, limit, gang=world.gang)):
        verdict = one.run()
        assert (verdict.outcome, verdict.code, verdict.blamed) == ("failed", "WRONG_DATA", {})
        assert re.search("element.* wrong.*; .*node-2: .*", verdict.reason)


@pytest.mark.parametrize("often", [1, 99])
@pytest.mark.parametrize("threshold", [None, 0.015])
def test_a_gang_one_of_whose_pairs_delivers_wrong_data_fails_though_its_own_were_right(
    often: int, threshold: float | None
) -> None:
    left = [often]

    def told(group: tuple[int, ...]) -> dict[int, RankReport | RankStage]:
        left[0] -= 1 in group
        return spoils(1)(group) if left[0] >= 0 else slow()(group)

    gang = apart(6, 1) if threshold is None else None
    verdict = World(6, told, gang=gang, backend="nccl", threshold=threshold).run()
    assert (verdict.outcome, verdict.code, verdict.blamed) == ("failed", "WRONG_DATA", {})
    assert re.search("data were wrong between .*node-1", verdict.reason)


def test_wrong_data_that_no_pair_repeats_is_told_as_such() -> None:
    verdict = World(4, slow(), gang=dict.fromkeys(range(4), took(HEALTHY, wrong=9))).run()
    assert (verdict.outcome, verdict.code, verdict.blamed) == ("failed", "DATA_UNLOCALISED", {})


def test_a_hang_is_traced_to_its_node_by_fresh_workers() -> None:
    world = sick(4, 0, hangs(0), gang=dict.fromkeys(range(4), STUCK))
    verdict = world.run()
    assert (verdict.code, verdict.blamed) == ("ALLREDUCE_HUNG", {0: "NODE_HUNG"})
    assert all(one.order.common.fresh for one in world.probes())


def test_a_hang_that_no_pair_repeats_is_inconclusive() -> None:
    verdict = World(4, slow(), gang=dict.fromkeys(range(4), STUCK)).run()
    assert (verdict.outcome, verdict.code, verdict.blamed) == (
        "inconclusive",
        "ALLREDUCE_STALLED",
        {},
    )


@pytest.mark.parametrize(("slow_ones", "blamed"), [(range(4), {}), ([1], {1: "NODE_SLOW"})])
def test_a_gang_that_does_not_end_and_whose_pairs_do_is_slow(
    slow_ones: Sequence[int], blamed: dict[int, str]
) -> None:
    answer = slow(*slow_ones, factor=5)
    gang: dict[int, RankReport | RankStage] = dict.fromkeys(range(4), STUCK)
    # That all are slow, a floor says: of gloo's pairs it is the gang's.
    world = sick(4, 1, answer, gang=gang) if blamed else World(4, answer, gang=gang)
    verdict = world.run()
    assert (verdict.outcome, verdict.blamed) == ("failed", blamed)
    assert verdict.code == "LOW_BANDWIDTH"
    assert "raise CHECK_TIMEOUT if this hardware is just slow" in verdict.reason


@pytest.mark.parametrize("stage", ["connected", "measuring"])
def test_a_gang_that_does_not_end_hangs_where_a_pair_does_not_end_although_another_is_slow(
    stage: str,
) -> None:
    def told(group: tuple[int, ...]) -> dict[int, RankReport | RankStage]:
        return dict.fromkeys(group, RankStage(stage)) if 3 in group else slow(1)(group)

    verdict = sick(8, 1, told, gang=dict.fromkeys(range(8), STUCK)).run()
    assert (verdict.outcome, verdict.code) == ("failed", "ALLREDUCE_HUNG")


def test_a_port_that_is_down_makes_no_gang_slow_whose_pairs_are_as_fast_as_others() -> None:
    verdict = sick(8, 1, slow(), gang=dict.fromkeys(range(8), STUCK)).run()
    assert (verdict.outcome, verdict.code) == ("failed", "ALLREDUCE_HUNG")


def test_a_hang_on_a_single_node_is_inconclusive_as_there_is_no_pair_to_repeat_it() -> None:
    verdict = World(1, slow(), gang={0: STUCK, 1: STUCK}, pods=2, backend="nccl").run()
    assert (verdict.outcome, verdict.code) == ("inconclusive", "ALLREDUCE_STALLED")
    assert "run the loopback check on it" in verdict.reason


def test_a_slow_gang_keeps_its_workers() -> None:
    world = World(4, slow(1))
    world.run()
    assert not any(one.order.common.fresh for one in world.probes() if not one.order.common.hairpin)


def test_after_a_probe_that_hung_the_workers_are_new() -> None:
    world = World(4, hangs(1))
    world.run()
    assert [one.order.common.fresh for one in world.probes()][:2] == [False, True]


def test_a_device_error_in_a_probe_is_its_own_nodes() -> None:
    verdict = World(4, troubled(2, Failure("device", "GPU_ECC", "uncorrectable"))).run()
    assert (verdict.outcome, verdict.code, verdict.blamed) == ("failed", "GPU_ECC", {2: "GPU_ECC"})


@pytest.mark.parametrize(("kind", "outcome"), [("died", "failed"), ("environment", "inconclusive")])
def test_a_members_own_trouble_accuses_nobody(kind: str, outcome: str) -> None:
    verdict = World(4, troubled(2, Failure(kind, "CODE", "its own"))).run()
    assert (verdict.outcome, verdict.code, verdict.blamed) == (outcome, "CODE", {})
    assert "node-2: CODE, its own" in verdict.reason


@pytest.mark.parametrize(("once", "twice"), [(0, 3), (3, 0)])
def test_the_outcome_is_of_the_trouble_that_kept_a_member_from_taking_part_twice(
    once: int, twice: int
) -> None:
    died, limit = Failure("died", "RANK_DIED", "gone"), Failure("environment", "HOST_LIMIT", "once")
    seen: set[int] = set()

    def told(group: tuple[int, ...]) -> dict[int, RankReport | RankStage]:
        if once in group and once not in seen:
            seen.add(once)
            return troubled(once, limit)(group)
        return troubled(twice, died)(group)

    verdict = World(6, told).run()
    assert (verdict.outcome, verdict.code) == ("failed", "RANK_DIED")
    assert f"node-{twice}: RANK_DIED, gone" in verdict.reason


def test_that_a_peer_refuses_a_connection_does_not_hide_that_its_workers_ended() -> None:
    refused = Failure("environment", "BOOTSTRAP", "connection refused")
    died = Failure("died", "RANK_DIED", "gone")

    def told(group: tuple[int, ...]) -> dict[int, RankReport | RankStage]:
        if 3 not in group:
            return dict.fromkeys(group, took(HEALTHY))
        return {rank: RankReport(0, trouble=died if rank == 3 else refused) for rank in group}

    verdict = World(4, told).run()
    assert (verdict.outcome, verdict.code) == ("failed", "RANK_DIED")
    assert "node-3: RANK_DIED, gone" in verdict.reason


REFUSED = Failure("environment", "BOOTSTRAP", "connection refused")
NO_STORE = Failure("launch", "RENDEZVOUS_FAILED", "no store")
CLOSED = Failure("peer", "NCCL_REMOTE_ERROR", "a peer ended")


@pytest.mark.parametrize(
    ("own", "others"),
    [
        (REFUSED, REFUSED),
        (REFUSED, None),
        (None, REFUSED),
        (REFUSED, CLOSED),
        (CLOSED, REFUSED),
        (NO_STORE, CLOSED),
    ],
)
def test_ends_that_do_not_come_together_say_nothing_of_either(
    own: Failure | None, others: Failure | None
) -> None:
    def told(group: tuple[int, ...]) -> dict[int, RankReport | RankStage]:
        if 3 not in group or len(group) == 1:
            return slow(1)(group)
        troubles = {rank: own if rank == 3 else others for rank in group}
        return {
            rank: RankReport(0, trouble=trouble) if trouble else RankStage("connected")
            for rank, trouble in troubles.items()
        }

    verdict = sick(6, 1, told).run()
    assert (verdict.outcome, verdict.code, verdict.blamed) == (
        "failed",
        "LOW_BANDWIDTH",
        {1: "NODE_SLOW"},
    )
    assert not re.search("could not take part|BOOTSTRAP", verdict.reason)
    assert verdict.named[3].endswith("settle it: test it with other nodes")


def test_a_worker_that_falls_silent_is_named_and_not_blamed() -> None:
    gang = {rank: RankStage("measuring", 1, silent=rank == 2) for rank in range(4)}
    verdict = World(4, slow(), gang=dict(gang)).run()
    assert (verdict.outcome, verdict.code, verdict.blamed) == ("failed", "RANK_STALLED", {})
    assert "rank 2 (pod-2 on node-2)" in verdict.reason


def test_without_time_the_verdict_says_what_was_not_asked() -> None:
    world = World(4, slow(1), left=3.0)
    verdict = world.run()
    assert (verdict.outcome, verdict.code, verdict.blamed) == ("failed", "LOW_BANDWIDTH", {})
    assert "CHECK_TIMEOUT left no time" in verdict.reason


def test_the_edges_are_told_in_marked_lines() -> None:
    world = World(4, slow(1))
    world.run()
    assert sum(line.startswith("edges| ") for line in world.said) >= 5


def told(verdict: VerdictMessage, rank: int) -> Verdict:
    return blame.verdict_of(verdict, rank)


def test_the_culprit_alone_tells_of_itself_as_fatal() -> None:
    verdict = sick(4).run()
    raised = {
        rank: events("nccl-allreduce", "NCCLAllReduceTest", "Node", told(verdict, rank))
        for rank in range(4)
    }
    assert [rank for rank, [event] in raised.items() if event.fatal] == [1]
    [own] = raised[1]
    assert (own.error_codes, own.action.value) == (("NODE_SLOW",), "CONTACT_SUPPORT")
    assert [told(verdict, rank).blames for rank in range(4)] == ["", "NODE_SLOW", "", ""]


CODES = st.sampled_from(
    ["LOW_BANDWIDTH", "WRONG_DATA", "ALLREDUCE_HUNG", "DATA_UNLOCALISED", "RANK_DIED", "NCCL_X"]
)
CAUSES = st.sampled_from(["NODE_SLOW", "NODE_WRONG_DATA", "NODE_HUNG", "NODE_BROKEN", "GPU_ECC"])


@given(code=CODES, blamed=st.dictionaries(st.integers(0, 7), CAUSES), rank=st.integers(0, 7))
def test_whatever_a_failed_gang_raises_a_passed_one_clears(
    code: str, blamed: dict[int, str], rank: int
) -> None:
    failed = told(VerdictMessage("failed", code, "why.", blamed=blamed), rank)
    passed = told(VerdictMessage("passed", "OK", "fine."), rank)
    raised = events("nccl-allreduce", "NCCLAllReduceTest", "Node", failed)
    cleared = events("nccl-allreduce", "NCCLAllReduceTest", "Node", passed)
    assert {event.identity for event in raised} <= {
        event.identity for event in cleared if event.healthy
    }
    assert [event.fatal for event in raised] == [rank in blamed]


@given(bad=st.integers(0, 11), nodes=st.integers(3, 12), share=st.floats(0.2, 0.7))
def test_a_healthy_node_is_never_blamed(bad: int, nodes: int, share: float) -> None:
    verdict = World(nodes, slow(bad, factor=1 / share)).run()
    assert set(verdict.blamed) <= {bad}
