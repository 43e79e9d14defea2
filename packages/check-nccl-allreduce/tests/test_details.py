"""Rails and directions of a probe: what the workers measure, and what is made of it. They are hints
and change no verdict.

On real links: rows of the fault matrix.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from check_nccl_allreduce import localise, probing
from check_nccl_allreduce.control.messages import (
    Detail,
    Failure,
    Hello,
    LaunchOrder,
    RankReport,
    RankStage,
)
from check_nccl_allreduce.control.rounds import LaunchRound, ProbeRound, Probes
from check_nccl_allreduce.localise import Endpoint, Phase, Probe, Role, Round
from needs import needs_torch
from preflight_testing.apiserver import free_port
from worlds import Answer, World, slow

MIB = 1024**2
SHAPE = probing.EndpointMap((Endpoint("node-0"), Endpoint("node-1")), ((0,), (1,)))


def hellos(*workers: int) -> dict[int, Hello]:
    return {
        rank: Hello(rank, f"pod-{rank}", f"node-{rank}", "nccl", count)
        for rank, count in enumerate(workers)
    }


def asked(*workers: int, shape: probing.EndpointMap = SHAPE) -> Probes:
    step = Round(4, Phase.CONFIRM, (Probe((0, 1), Role.ACCUSED, detail=True),))
    start = LaunchOrder(1, 29500, "nccl", 10**9, 3, 1, sum(workers), 60.0)
    launch = LaunchRound(start, {0: RankReport(1, (0.02,), 1)})
    probes = probing.next_probes(step, shape, hellos(*workers), launch, [], left=60.0, hung=False)
    assert probes is not None
    return probes


def within(*, hung: bool, launched: float, left: float = 80.0) -> tuple[float, float]:
    """(seconds for the communicators, seconds for the round)."""
    step = Round(4, Phase.CONFIRM, (Probe((0, 1), Role.ACCUSED),))
    start = LaunchOrder(1, 29500, "nccl", 10**9, 3, 1, 4, 60.0)
    launch = LaunchRound(start, ready_after=launched)
    probes = probing.next_probes(step, SHAPE, hellos(2, 2), launch, [], left=left, hung=hung)
    assert probes is not None
    return probes.common.init, probes.common.timeout


def test_new_workers_have_half_as_long_again_as_the_gang_took_for_its_communicator() -> None:
    share, whole = within(hung=False, launched=0.0)
    assert within(hung=False, launched=30.0) == (
        share,
        whole,
    )  # these workers have loaded everything
    init, timeout = within(hung=True, launched=30.0)
    assert init == 45.0
    assert timeout == pytest.approx(45.0 + whole - share)
    assert within(hung=True, launched=1.0) == pytest.approx((share, whole))


@pytest.mark.parametrize(
    ("seconds", "size"), [(0.02, 4096), (1.0, 4096), (4.0, 1024), (14.0, 292), (60.0, 256)]
)
def test_where_the_gangs_own_all_reduce_takes_longer_than_a_second_pairs_move_a_part_of_it(
    seconds: float, size: int
) -> None:
    step = Round(2, Phase.MATCH, (Probe((0, 1), Role.MATCH),))
    start = LaunchOrder(1, 29500, "nccl", 4096 * MIB, 3, 1, 4, 60.0)
    times = {rank: RankReport(1, (seconds, seconds, 99.0), 4) for rank in (0, 1)}
    launch = LaunchRound(start, times)
    probes = probing.next_probes(step, SHAPE, hellos(2, 2), launch, [], left=60.0, hung=False)
    assert probes is not None
    assert (probes.common.size // MIB, probes.common.size % 4) == (size, 0)


@pytest.mark.parametrize(
    ("results", "size"),
    [({}, 256), ({0: RankReport(1, trouble=Failure("peer", "NCCL_REMOTE_ERROR", "ended"))}, 4096)],
)
def test_where_nobody_has_ended_pairs_move_a_part_of_it_for_all_may_be_slow(
    results: dict[int, RankReport], size: int
) -> None:
    start = LaunchOrder(1, 29500, "nccl", 4096 * MIB, 3, 1, 4, 60.0)
    assert probing.size_of(LaunchRound(start, results)) == size * MIB


def test_no_round_has_more_than_there_is() -> None:
    assert within(hung=True, launched=1000.0) == (80.0, 80.0)


def played(order: Probes, *details: Detail | None) -> ProbeRound:
    return ProbeRound(
        order, {rank: RankReport(0, (0.1,), 2, detail=one) for rank, one in enumerate(details)}
    )


def test_each_rail_and_direction_is_as_slow_as_its_slower_end_saw_it() -> None:
    ends = Detail((0.02, 0.05), there=0.02, back=0.04), Detail((0.02, 0.1), there=0.025, back=0.02)
    [result] = probing.outcomes(SHAPE, played(asked(2, 2), *ends))
    assert result.rails == (50.0, 10.0)
    assert result.directions == (40.0, 25.0)


def test_where_one_end_gave_none_there_are_none() -> None:
    [result] = probing.outcomes(SHAPE, played(asked(2, 2), Detail((0.02, 0.05), 0.02, 0.04), None))
    assert (result.status, result.rails, result.directions) == (localise.Status.OK, (), None)


def test_nodes_whose_workers_have_no_counterparts_are_not_asked() -> None:
    assert asked(2, 2).common.detail
    assert not asked(2, 1).common.detail
    two_pods = probing.EndpointMap(SHAPE.endpoints, ((0, 1), (2, 3)))
    assert not asked(1, 1, 1, 1, shape=two_pods).common.detail


def with_details(answer: Answer, **detail: float) -> Answer:
    def detailed(group: tuple[int, ...]) -> dict[int, RankReport | RankStage]:
        given = {rank: one for rank, one in answer(group).items() if isinstance(one, RankReport)}
        told = (
            Detail((), **{"there": 0.1, "back": 0.1, **detail})
            if 1 in group
            else Detail((), 0.1, 0.1)
        )
        return {rank: msgspec.structs.replace(one, detail=told) for rank, one in given.items()}

    return detailed


@pytest.mark.parametrize("slow_way", ["there", "back"])
def test_the_verdict_says_which_way_the_slow_node_is_slow(slow_way: str) -> None:
    world = World(4, with_details(slow(1), **{slow_way: 0.4}))
    verdict = world.run()
    assert verdict.metadata["named"] == "node-1"
    [last] = [one.order.orders[1] for one in world.probes() if one.order.orders[1].detail]
    sends = (last.base == 0) == (slow_way == "there")
    assert ("(sending)" if sends else "(receiving)") in verdict.reason


def test_without_details_the_verdict_is_the_same() -> None:
    verdicts = [World(4, answer).run() for answer in (slow(1), with_details(slow(1), there=0.4))]
    assert verdicts[0].metadata["named"] == verdicts[1].metadata["named"] == "node-1"


def test_after_a_probe_whose_details_never_came_the_workers_are_new() -> None:
    step = Round(5, Phase.CONFIRM, (Probe((0, 1), Role.ACCUSED),))
    start = LaunchOrder(1, 29500, "nccl", MIB, 3, 1, 4, 60.0)

    def fresh(*details: Detail | None) -> bool:
        after = [played(asked(2, 2), *details)]
        probes = probing.next_probes(
            step, SHAPE, hellos(2, 2), LaunchRound(start), after, left=60.0, hung=False
        )
        return probes is not None and probes.common.fresh

    assert fresh(Detail((0.1, 0.1), 0.1, 0.1), None)
    assert not fresh(*[Detail((0.1, 0.1), 0.1, 0.1)] * 2)


WORKER = """
import json, sys
from check_nccl_allreduce.worker.probes import ProbeTask, Prober
rank, port = int(sys.argv[1]), int(sys.argv[2])
import torch.distributed as dist
kept = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, use_libuv=False) if rank == 0 else None
order = ProbeTask("gloo", 1 << 20, 2, 1, 20.0, rank, 4, "127.0.0.1", port, "p", 20.0, True)
prober = Prober(rank % 2)
times = prober.run(order, lambda *_: None).times
detail = prober.refine(order)
members = dist.get_world_size()
done = dist.TCPStore("127.0.0.1", port, is_master=False, use_libuv=False)
done.set(f"over{rank}", "1")
done.wait([f"over{i}" for i in range(4)])
print(json.dumps({"times": times, "detail": detail, "members": members}))
"""


@needs_torch
def test_of_two_nodes_with_two_workers_each_worker_measures_with_its_counterpart(
    tmp_path: Path,
) -> None:
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), str(port)],
            env={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    said = [json.loads(one.communicate(timeout=100)[0]) for one in ranks]
    assert all(len(one["times"]) == 2 and one["members"] == 2 for one in said)
    assert all(len(one["detail"]) == 3 and min(one["detail"]) > 0 for one in said)
