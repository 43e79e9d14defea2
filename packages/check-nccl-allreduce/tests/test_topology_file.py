"""A gang that is slow with NCCL's topology file: one launch without it,
and what both say together.
"""

from __future__ import annotations

import pytest
from check_nccl_allreduce.control.messages import Failure, LaunchOrder, RankReport, RankStage
from check_nccl_allreduce.control.rounds import LaunchRound
from worlds import HEALTHY, Answer, World, slow, took

MINE = "/mine.xml, the workload's NCCL_TOPO_FILE"
MAPPED = (
    "/opt/nvsentinel/nccl-topologies/azure-ndv5.xml for the instance type Standard_ND96isr_H100_v5"
)
STUCK = RankStage("measuring", 1)


def world(
    answer: Answer,
    bare: RankReport | RankStage,
    *having: int,
    file: str = MINE,
    spare: float = 60.0,
) -> World:
    """Four nodes, slow with a topology file; ``bare``: what each reports without, ``having``: who
    has one (none: all).
    """
    files = dict.fromkeys(having or range(4), file)
    return World(4, answer, files=files, bare=dict.fromkeys(range(4), bare), spare=spare)


def healthy(**changes: object) -> World:
    return world(slow(), took(HEALTHY), **changes)  # type: ignore[arg-type]


def test_a_gang_that_is_well_without_the_file_fails_for_the_file_and_no_pair_is_measured() -> None:
    one = healthy()
    verdict = one.run()
    assert (verdict.outcome, verdict.code, verdict.blamed) == ("failed", "TOPOLOGY_FILE", {})
    assert [start.without_topology_file for start in one.launches()] == [False, True]
    assert one.probes() == []


def test_the_verdict_names_file_and_members_both_bandwidths_and_what_to_do() -> None:
    verdict = world(slow(), took(HEALTHY), 1, 3).run()
    assert verdict.reason.startswith(
        "0.00629 GB/s bus bandwidth is 58 % below the floor of 0.015 GB/s"
    )
    assert verdict.reason.endswith(
        "but 0.0315 without NCCL's topology file; the nodes are healthy: correct or remove /mine.xml, the workload's NCCL_TOPO_FILE"
        " (rank 1 (pod-1 on node-1), rank 3 (pod-3 on node-3))."
    )
    assert verdict.measured == 0.00629
    assert (verdict.metadata["measured_gbps"], verdict.metadata["without_file_gbps"]) == (
        "0.00629",
        "0.0315",
    )
    assert "/mine.xml" in verdict.metadata["files"]


def test_a_file_of_the_operators_mapping_counts_as_a_workloads_own() -> None:
    verdict = healthy(file=MAPPED).run()
    assert verdict.code == "TOPOLOGY_FILE"
    assert f"correct or remove {MAPPED} (every member)." in verdict.reason


@pytest.mark.parametrize(
    ("one", "code", "launches"),
    [
        (world(slow(), took(1.7 * HEALTHY)), "TOPOLOGY_FILE", 2),
        (world(slow(), took(HEALTHY, wrong=3)), "DATA_UNLOCALISED", 2),
        (World(4, slow(1), spare=60.0), "LOW_BANDWIDTH", 1),
        (World(4, slow(), dict.fromkeys(range(4), took(HEALTHY)), files={0: MINE}), "OK", 1),
    ],
    ids=["between floor and expected without it", "wrong data", "no file", "above its floor"],
)
def test_a_slow_gang_with_a_file_alone_is_launched_without_it(
    one: World, code: str, launches: int
) -> None:
    assert (one.run().code, len(one.launches())) == (code, launches)


def test_different_files_are_all_named_with_their_members() -> None:
    one = World(
        4,
        slow(),
        files={0: MINE, 1: MAPPED},
        bare=dict.fromkeys(range(4), took(HEALTHY)),
        spare=60.0,
    )
    assert (
        f"{MINE} (rank 0 (pod-0 on node-0)); {MAPPED} (rank 1 (pod-1 on node-1))."
        in one.run().reason
    )


def test_a_slow_node_is_found_and_named_when_the_file_is_not_the_cause() -> None:
    one = world(slow(1), took(4 * HEALTHY))
    verdict = one.run()
    assert (verdict.code, verdict.metadata["named"]) == ("LOW_BANDWIDTH", "node-1")
    assert (
        f"without NCCL's topology file it is 0.00786, so the cause is not {MINE} (every member); "
        in verdict.reason
    )
    assert verdict.measured == 0.00629
    assert [start.without_topology_file for start in one.launches()] == [False, True]
    pairs = [probes.order for probes in one.probes() if not probes.order.common.hairpin]
    assert not any(
        order.common.fresh for order in pairs
    )  # the last launch's workers, which have no file


def test_without_time_for_another_launch_pairs_are_measured_and_the_verdict_says_so() -> None:
    one = world(slow(1), took(HEALTHY), spare=0.0)
    verdict = one.run()
    assert (verdict.code, len(one.launches())) == ("LOW_BANDWIDTH", 1)
    assert one.probes()
    assert (
        f"whether the reason is {MINE} (every member) is not known, as CHECK_TIMEOUT left no time for a launch without it"
        in verdict.reason
    )


def test_a_launch_without_the_file_has_the_seconds_that_are_spare_for_it() -> None:
    one = healthy(spare=42.0)
    one.run()
    assert one.launches()[1].timeout == 42.0


@pytest.mark.parametrize(
    "bare", [STUCK, RankReport(2, trouble=Failure("class", "NCCL_SYSTEM_ERROR", "a call failed"))]
)
def test_where_nccl_does_not_run_without_the_file_no_pair_is_measured_and_nobody_blamed(
    bare: RankReport | RankStage,
) -> None:
    one = world(slow(1), bare)
    verdict = one.run()
    assert (verdict.outcome, verdict.code, verdict.blamed, one.probes()) == (
        "failed",
        "LOW_BANDWIDTH",
        {},
        [],
    )
    assert "no pairs were measured, as a launch without it failed (" in verdict.reason


def test_a_device_error_without_the_file_is_its_own_nodes() -> None:
    one = world(slow(), took(HEALTHY))
    assert one.bare is not None
    one.bare[2] = RankReport(2, trouble=Failure("device", "GPU_ECC", "uncorrectable"))
    verdict = one.run()
    assert (verdict.code, verdict.blamed) == ("GPU_ECC", {2: "GPU_ECC"})


def test_an_accident_in_the_first_launch_leaves_room_for_one_without_the_file() -> None:
    one = healthy()
    first = one.step()
    assert isinstance(first, LaunchOrder)
    one.rounds.append(
        LaunchRound(
            first,
            dict.fromkeys(range(4), RankReport(1, trouble=Failure("died", "RANK_DIED", "gone"))),
        )
    )
    assert one.run().code == "TOPOLOGY_FILE"
    starts = [(start.round, start.without_topology_file) for start in one.launches()]
    assert starts == [(1, False), (2, False), (3, True)]


@pytest.mark.parametrize("having", [(2,), (1, 2)])
def test_a_node_is_not_blamed_for_a_file_that_the_others_do_not_have(
    having: tuple[int, ...],
) -> None:
    """On hardware without a floor no launch is held against one, so pairs alone decide, with the
    file.
    """
    files = dict.fromkeys(having, MINE)
    gang = {rank: took(HEALTHY * (2 if rank in having else 1)) for rank in range(6)}
    world = World(6, slow(*having), dict(gang), backend="nccl", threshold=None, files=files)
    verdict = world.run()
    assert world.probes()
    assert (verdict.outcome, verdict.blamed) == ("passed", {})
