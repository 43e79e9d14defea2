"""The decisions, on plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from check_nccl_allreduce import blame, gate, judge, probing
from check_nccl_allreduce.control.messages import (
    Failure,
    Hello,
    LaunchOrder,
    Leaving,
    RankReport,
    RankStage,
    VerdictMessage,
    among,
)
from check_nccl_allreduce.control.rounds import LaunchRound, ProbeRound, Probes
from check_nccl_allreduce.settings import Settings
from leaf_gangs import DOWN
from preflight_proto.check import Outcome
from preflight_proto.check.events import events

GIB = 1024**3
H100 = "NVIDIA H100 80GB HBM3"


def hellos(count: int = 2, **changes: object) -> dict[int, Hello]:
    base = {
        "node": None,
        "backend": "nccl",
        "workers": 8,
        "model": H100,
        "fabric": "ib-8x400",
        **changes,
    }
    node = base.pop("node")
    return {
        rank: Hello(rank=rank, pod=f"pod-{rank}", node=node or f"node-{rank}", **base)  # type: ignore[arg-type]
        for rank in range(count)
    }


def start(world: int = 16, number: int = 1, backend: str = "nccl") -> LaunchOrder:
    return LaunchOrder(number, 29500, backend, 4 * GIB, 3, 1, world, 100.0)


def at(gbps: float, world: int = 16, **changes: object) -> RankReport:
    seconds = 4 * GIB * 2 * (world - 1) / world / gbps / 1e9
    return msgspec.structs.replace(RankReport(1, (seconds,) * 3, 4), **changes)


def trouble(kind: str, code: str = "CODE") -> RankReport:
    return RankReport(1, trouble=Failure(kind, code, f"{kind} text"))


def judged(
    results: Mapping[int, RankReport], *, settings: Settings | None = None, **changes: Any
) -> VerdictMessage:
    return judge.judge(
        settings or Settings(), hellos(len(results), **changes), LaunchRound(start(), dict(results))
    )[0]


@pytest.mark.parametrize(
    ("gbps", "code"),
    [
        (470.0, "OK"),
        (397.0, "OK"),
        (395.0, "OK"),
        (381.0, "OK"),
        (379.0, "LOW_BANDWIDTH"),
        (6.0, "LOW_BANDWIDTH"),
    ],
)
def test_the_floor_decides(gbps: float, code: str) -> None:
    assert judged({0: at(gbps), 1: at(470)}).code == code


def test_between_floor_and_ninety_percent_passes_and_says_so() -> None:
    verdict = judged({0: at(390), 1: at(390)})
    assert verdict.outcome == "passed"
    assert (
        "390.00 GB/s bus bandwidth (less than 90 % of the 440 expected, but above the floor of 380"
        in verdict.reason
    )


def test_a_slow_gang_is_told_by_how_much_against_what_and_from_where() -> None:
    verdict = judged({0: at(190), 1: at(190)})
    assert (
        "190.00 GB/s bus bandwidth is 50 % below the floor of 380 GB/s from the table ("
        in verdict.reason
    )
    assert "440 expected" in verdict.reason
    assert (verdict.measured, verdict.expected) == (190.0, 440.0)


def test_a_set_threshold_decides_over_the_table() -> None:
    assert judged({0: at(190), 1: at(190)}, settings=Settings(threshold=150.0)).code == "OK"
    assert (
        judged({0: at(190), 1: at(190)}, settings=Settings(threshold=200.0)).code == "LOW_BANDWIDTH"
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"fabric": ""}, "an unknown fabric (NCCL_ALLREDUCE_FABRIC)"),
        ({"model": "NVIDIA L40S"}, "8 x NVIDIA L40S"),
        ({"unusual": ("NCCL_MAX_NCHANNELS",)}, "the workload sets NCCL_MAX_NCHANNELS"),
    ],
)
def test_unknown_hardware_or_a_bent_measurement_passes_with_its_figure(
    changes: dict[str, Any], why: str
) -> None:
    verdict = judged({0: at(6), 1: at(6)}, **changes)
    assert (verdict.outcome, verdict.measured, verdict.expected) == ("passed", 6.0, None)
    assert why in verdict.reason


@pytest.mark.parametrize(("threshold", "warned"), [(5.0, True), (200.0, False), (None, False)])
def test_a_threshold_of_less_than_half_the_floor_is_warned_of(
    threshold: float | None, warned: bool
) -> None:
    lines = judge.warnings(Settings(threshold=threshold), hellos(), start())
    assert ["less than half of this hardware's floor of 380" in line for line in lines] == (
        [True] if warned else []
    )


def test_members_that_differ_have_no_floor() -> None:
    both = hellos() | {1: msgspec.structs.replace(hellos()[1], workers=4)}
    verdict, _ = judge.judge(Settings(), both, LaunchRound(start(12), {0: at(6, 12), 1: at(6, 12)}))
    assert "the members' hardware differs" in verdict.reason


def test_wrong_data_fails_whatever_the_bandwidth() -> None:
    verdict = judged({0: at(470), 1: at(470, wrong=3, where="rank 9, iteration 2, element 7")})
    assert (verdict.outcome, verdict.code) == ("failed", "WRONG_DATA")
    assert (
        "seen by rank 1 (pod-1 on node-1), first by rank 9, iteration 2, element 7"
        in verdict.reason
    )


@pytest.mark.parametrize(
    ("kinds", "kind", "outcome"),
    [
        (("peer", "environment"), "environment", "inconclusive"),
        (("peer", "device"), "device", "failed"),
        (("environment", "device"), "device", "failed"),
        (("peer", "died"), "died", "failed"),
        (("class", "launch"), "launch", "inconclusive"),
        (("peer", "class"), "class", "failed"),
        (("peer", "peer"), "peer", "failed"),
    ],
)
def test_errors_are_explained_in_order(kinds: tuple[str, ...], kind: str, outcome: str) -> None:
    verdict = judged({rank: trouble(one) for rank, one in enumerate(kinds)})
    assert (verdict.outcome, f"{kind} text" in verdict.reason) == (outcome, True)


@pytest.mark.parametrize(
    ("other", "code", "outcome"),
    [
        (Failure("device", "GPU_ECC", "an uncorrectable memory error"), "GPU_ECC", "failed"),
        (Failure("died", "RANK_DIED", "rank 9 ended"), "RANK_DIED", "failed"),
        (Failure("environment", "SHM_FULL", "no shared memory"), "SHM_FULL", "inconclusive"),
        (Failure("launch", "RENDEZVOUS_FAILED", "torchrun ended"), "BOOTSTRAP", "inconclusive"),
        (
            Failure("class", "NCCL_SYSTEM_ERROR", "a system call failed"),
            "BOOTSTRAP",
            "inconclusive",
        ),
        (Failure("peer", "NCCL_REMOTE_ERROR", "a peer ended"), "BOOTSTRAP", "inconclusive"),
    ],
)
def test_a_refused_connection_does_not_hide_why_the_peer_was_gone(
    other: Failure, code: str, outcome: str
) -> None:
    refused = Failure("environment", "BOOTSTRAP", "connection refused")
    verdict = judged({0: RankReport(1, trouble=refused), 1: RankReport(1, trouble=other)})
    assert (verdict.code, verdict.outcome) == (code, outcome)


@pytest.mark.parametrize(
    ("code", "outcome"), [("GPU_NVLINK", "FABRIC_NOT_READY"), ("GPU_ECC", "GPU_ECC")]
)
def test_another_nodes_fabric_may_be_what_fails_an_nvlink_and_no_other_device(
    code: str, outcome: str
) -> None:
    fabric = Failure("environment", "FABRIC_NOT_READY", "IMEX is not ready")
    device = Failure("device", code, "uncorrectable")
    verdict = judged({0: RankReport(1, trouble=fabric), 1: RankReport(1, trouble=device)})
    assert (verdict.code, verdict.blamed) == (outcome, {1: code} if code == outcome else {})


def test_a_broken_gpu_beside_it_does_not_blame_an_nvlink_for_another_nodes_fabric() -> None:
    kinds = [("environment", "FABRIC_NOT_READY"), ("device", "GPU_NVLINK"), ("device", "GPU_ECC")]
    results = {
        rank: RankReport(1, trouble=Failure(*each, "why")) for rank, each in enumerate(kinds)
    }
    last = LaunchRound(start(), results)
    verdict, _ = judge.judge(Settings(), hellos(40), last)
    assert (verdict.code, verdict.blamed) == ("GPU_ECC", {2: "GPU_ECC"})


@pytest.mark.parametrize("unknown", [0, 1])
def test_what_nobody_knows_does_not_hide_an_error_of_nccl_by_its_place(unknown: int) -> None:
    troubles = [Failure("class", "WORKER_ERROR", "?"), Failure("class", "NCCL_CUDA_ERROR", "719")]
    results = {unknown: troubles[0], 1 - unknown: troubles[1]}
    verdict = judged({rank: RankReport(1, trouble=each) for rank, each in results.items()})
    assert (verdict.outcome, verdict.code) == ("failed", "NCCL_CUDA_ERROR")


def test_a_lost_member_decides_over_what_the_survivors_say() -> None:
    last = LaunchRound(start(), {0: trouble("peer")}, lost={1: "its connection ended"})
    verdict, again = judge.judge(Settings(), hellos(), last)
    assert (verdict.code, again) == ("MEMBER_LOST", False)
    assert "rank 1 (pod-1 on node-1): its connection ended" in verdict.reason


def test_who_leaves_decides_over_everything() -> None:
    last = LaunchRound(
        start(), {0: trouble("device")}, left={1: Leaving("PEER_FAILED", "pod-9 was evicted.")}
    )
    assert judge.judge(Settings(), hellos(), last)[0].reason == "pod-9 was evicted."


@pytest.mark.parametrize(
    ("stages", "code", "words"),
    [
        ({0: RankStage("connected"), 1: RankStage("launched")}, "RENDEZVOUS_FAILED", "rank 1 (pod-1 on node-1) did not reach the rendezvous"),
        ({0: RankStage("connected"), 1: RankStage("connected")}, "RENDEZVOUS_FAILED", "did not open the communicator"),
        ({0: RankStage("ready")}, "RENDEZVOUS_FAILED", "rank 1 (pod-1 on node-1) did not launch"),
        ({0: RankStage("measuring", 4), 1: RankStage("measuring", 3)}, "ALLREDUCE_STALLED", "rank 1 (pod-1 on node-1) stopped after iteration 3"),
        ({0: RankStage("ready"), 1: RankStage("ready")}, "ALLREDUCE_STALLED", "every rank stopped before the first iteration"),
    ],
)  # fmt: skip
def test_a_round_that_does_not_end_says_where_everybody_stands(
    stages: dict[int, RankStage], code: str, words: str
) -> None:
    verdict, _ = judge.judge(Settings(), hellos(), LaunchRound(start(), stages=stages))
    assert (verdict.outcome, verdict.code) == ("inconclusive", code)
    assert words in verdict.reason


def test_what_may_be_an_accident_is_tried_once_more_on_another_port() -> None:
    plan = judge.JudgePlan(Settings(), (29500, 41000), 100.0)
    rounds = [LaunchRound(start(), {0: trouble("peer"), 1: trouble("died")})]
    again = judge.next_step(plan, hellos(), rounds)
    assert isinstance(again, LaunchOrder)
    assert (again.round, again.master_port) == (2, 41000)
    rounds.append(LaunchRound(again, {0: trouble("peer"), 1: trouble("died")}))
    assert isinstance(judge.next_step(plan, hellos(), rounds), VerdictMessage)


def test_without_time_nothing_is_tried_again() -> None:
    plan = judge.JudgePlan(Settings(), (29500, 41000), 100.0, may_retry=False)
    assert isinstance(
        judge.next_step(plan, hellos(), [LaunchRound(start(), {0: trouble("died")})]),
        VerdictMessage,
    )


@pytest.mark.parametrize(
    ("code", "outcome"), [("NO_GPU", "inconclusive"), ("MIG", "skipped"), ("GPU_SHARED", "skipped")]
)
def test_a_member_that_cannot_take_part_ends_all_before_the_first_round(
    code: str, outcome: str
) -> None:
    both = hellos() | {
        1: msgspec.structs.replace(
            hellos()[1], trouble=Failure("local", code, "no GPU can be seen")
        )
    }
    verdict = judge.next_step(judge.JudgePlan(Settings(), (1, 2), 9.0), both, [])
    assert isinstance(verdict, VerdictMessage)
    assert (verdict.outcome, verdict.code) == (outcome, code)
    assert "rank 1 (pod-1 on node-1): no GPU can be seen" in verdict.reason


def test_a_member_that_is_skipped_lets_no_other_through_that_has_a_trouble() -> None:
    codes = {0: "MIG", 1: "NO_GPU", 2: "GPU_SHARED"}
    those = {
        rank: msgspec.structs.replace(hello, trouble=Failure("local", codes[rank], "why"))
        for rank, hello in hellos(3).items()
    }
    verdict = judge.next_step(judge.JudgePlan(Settings(), (1, 2), 9.0), those, [])
    assert isinstance(verdict, VerdictMessage)
    assert (verdict.outcome, verdict.code) == ("inconclusive", "NO_GPU")


def test_members_with_different_backends_do_not_start() -> None:
    both = hellos() | {1: msgspec.structs.replace(hellos()[1], backend="gloo")}
    verdict = judge.next_step(judge.JudgePlan(Settings(), (1, 2), 9.0), both, [])
    assert isinstance(verdict, VerdictMessage)
    assert verdict.code == "MEMBERS_DIFFER"


def test_a_start_counts_all_workers() -> None:
    first = judge.next_step(judge.JudgePlan(Settings(), (1, 2), 9.0), hellos(3), [])
    assert isinstance(first, LaunchOrder)
    assert (first.world, first.size) == (24, 4 * GIB)


@pytest.mark.parametrize(
    "code", ["LOW_BANDWIDTH", "WRONG_DATA", "RANK_DIED", "NCCL_INTERNAL_ERROR"]
)
def test_what_a_failed_gang_raises_a_passed_one_clears(code: str) -> None:
    failed = blame.verdict_of(VerdictMessage("failed", code, "why.", metadata={"pod": "p"}), 0)
    passed = blame.verdict_of(VerdictMessage("passed", "OK", "fine."), 0)
    [raised] = events("nccl-allreduce", "NCCLAllReduceTest", "Node", failed)
    [cleared] = events("nccl-allreduce", "NCCLAllReduceTest", "Node", passed)
    assert raised.identity == cleared.identity
    assert (raised.fatal, raised.action.value, raised.entities, cleared.healthy) == (
        False,
        "NONE",
        (),
        True,
    )
    assert failed.outcome is Outcome.FAILED


def pair_floors(*, threshold: float | None = None, **changes: Any) -> list[float | None]:
    those = hellos(**changes)
    shape = probing.EndpointMap.of(those, start(), gate.ring_fabric(those, start()), threshold)
    return [one.pair_floor for one in shape.endpoints]


def test_pairs_are_held_against_their_wire_and_never_against_the_gangs_floor() -> None:
    a100: dict[str, Any] = {"model": "NVIDIA A100-SXM4-80GB", "fabric": "efa-4x100"}
    assert pair_floors(**a100) == [37.5, 37.5]  # of a wire of 50; the gang's own floor is 65
    assert pair_floors() == [320.0, 320.0]
    assert pair_floors(fabric="") == pair_floors(unusual=("NCCL_ALGO",)) == [None, None]


def test_a_pair_that_moves_fewer_bytes_than_the_tables_need_not_reach_as_much() -> None:
    """A pair that is good again when it is measured again does not blame who has a port down."""
    those = hellos() | {0: msgspec.structs.replace(hellos()[0], ports=(DOWN,))}
    rounds: list[LaunchRound | ProbeRound] = []
    clock = size = 0.0
    while True:
        plan = judge.JudgePlan(Settings(), (29500,), 400.0 - clock, seed=7, now=clock)
        what = judge.next_step(plan, those, rounds)
        if isinstance(what, VerdictMessage):
            break
        if isinstance(what, LaunchOrder):
            rounds.append(LaunchRound(what, dict.fromkeys(those, at(0.5))))
            continue
        clock += what.step.wait + 2
        size = what.common.size
        good = RankReport(0, (size * 2 * 15 / 16 / 200e9,) * 3, 4)
        told = {} if what.common.hairpin else dict.fromkeys(those, good)
        rounds.append(ProbeRound(what, told, at=clock, took=2.0))
    assert size == 256 * 1024**2
    assert (what.code, what.blamed) == ("LOW_BANDWIDTH", {})


def test_a_threshold_for_the_gang_is_none_for_its_pairs() -> None:
    assert pair_floors(threshold=600.0) == [320.0, 320.0]
    assert pair_floors(threshold=600.0, fabric="") == [None, None]


def test_a_floor_of_one_source_alone_fails_nobody_by_itself() -> None:
    p5en: dict[str, Any] = {"model": "NVIDIA H200", "fabric": "efa-16x200"}
    three = {rank: at(290) for rank in range(3)}
    verdict = judged(three, **p5en)
    assert (verdict.outcome, verdict.code) == ("passed", "OK")
    assert "one source alone" in verdict.reason
    probes = judge.next_step(
        judge.JudgePlan(Settings(), (1, 2), 100.0),
        hellos(3, **p5en),
        [LaunchRound(start(24), three)],
    )
    assert isinstance(probes, Probes)  # its nodes are compared


def test_a_node_with_a_dead_port_is_held_against_what_its_peers_have() -> None:
    those = hellos(3, nic="ib 8x400")
    those[1] = msgspec.structs.replace(
        those[1], fabric="ib-7x400", adapters=("mlx5_3:1 is DOWN, not ACTIVE",)
    )
    assert gate.fabric_of(those) == "ib-8x400"
    shape = probing.EndpointMap.of(those, start(24), gate.fabric_of(those))
    assert len({one.kind for one in shape.endpoints}) == 1
    assert judge.warnings(Settings(), those, start(24)) == [
        "warning: rank 1 (pod-1 on node-1): network adapter mlx5_3:1 is DOWN, not ACTIVE"
    ]


def test_a_failed_gang_names_the_member_whose_adapter_is_down_and_blames_nobody_for_it() -> None:
    those = hellos(2, adapters=())
    those[1] = msgspec.structs.replace(those[1], adapters=("mlx5_3:1 is DOWN, not ACTIVE",))
    wrong = LaunchRound(start(), {0: at(400), 1: trouble("class")})
    verdict = judge.next_step(judge.JudgePlan(Settings(), (1,), 0.1), those, [wrong])
    assert isinstance(verdict, VerdictMessage)
    assert verdict.named[1].endswith("its network adapters: mlx5_3:1 is DOWN, not ACTIVE")
    assert (verdict.blamed, "mlx5_3:1" in verdict.metadata["adapters"]) == ({}, True)


def test_members_of_generations_that_differ_share_no_fabric() -> None:
    those = hellos(2, nic="ib 8x400")
    those[1] = msgspec.structs.replace(those[1], fabric="ib-8x200", nic="ib 8x200")
    assert gate.fabric_of(those) is None


def test_nodes_of_one_nvlink_domain_with_channels_are_on_nvlink() -> None:
    label = {"network.topology.nvidia.com/accelerator": "rack-1"}
    gb200: dict[str, Any] = {
        "model": "NVIDIA GB200",
        "workers": 4,
        "fabric": "ib-4x400",
        "topology": label,
    }
    assert gate.fabric_of(hellos(imex=True, **gb200)) == "mnnvl"
    assert gate.fabric_of(hellos(imex=False, **gb200)) == "ib-4x400"


def test_every_node_that_tells_of_its_own_device_is_blamed_unless_many_do_at_once() -> None:
    def told(nodes: int, broken: int) -> VerdictMessage:
        results = {
            rank: trouble("device", "GPU_LOST") if rank < broken else at(400)
            for rank in range(nodes)
        }
        return judged(results)

    assert told(3, 1).blamed == {0: "GPU_LOST"}
    assert told(40, 2).blamed == {0: "GPU_LOST", 1: "GPU_LOST"}
    assert told(3, 2).blamed == {}
    assert "one cause is likely" in told(3, 2).reason


def test_of_many_members_four_are_named_and_the_rest_counted() -> None:
    names = [f"m{i}" for i in range(15)]
    assert among(names, 16) == "m0, m1, m2, m3 and 11 more"
    assert among(names, 15) == "every member"


def test_members_of_one_nvlink_domain_are_known_by_what_their_drivers_say() -> None:
    those = hellos(2, nvlink="6f0c.1", imex=True)
    assert gate.fabric_of(those) == "mnnvl"
    racks = {0: "6f0c.1", 1: "6f0c.1", 2: "6f0c.2", 3: "6f0c.2"}
    four = {
        rank: msgspec.structs.replace(hello, nvlink=racks[rank])
        for rank, hello in hellos(4).items()
    }
    assert [one.nvlink for one in probing.EndpointMap.of(four, start(32)).endpoints] == list(
        racks.values()
    )
