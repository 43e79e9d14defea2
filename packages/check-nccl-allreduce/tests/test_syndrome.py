"""Whose part of a sum was wrong: the right rank is told, and otherwise nobody."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import cast

import pytest
from anyio.abc import SocketStream
from check_nccl_allreduce import blame, launch, syndrome
from check_nccl_allreduce.control.frames import MAX_MESSAGE
from check_nccl_allreduce.control.messages import Hello, RankReport, RankStage, Residuals, encode
from check_nccl_allreduce.launch import Worker, WorkerLine
from check_nccl_allreduce.syndrome import ResidualSample, decode
from check_nccl_allreduce.worker import pattern
from hypothesis import assume, given
from hypothesis import strategies as st
from residuals import OTHERS, Part, added, elements, flipped, residuals, right, scaled, stale
from worlds import HEALTHY, World, slow, spoils, took

WORLDS = [2, 3, 4, 8, 64, 1000, 4096]
PARTS: dict[str, Part] = {
    "lost": scaled(0),
    "counted twice": scaled(2),
    "given with bit 31 flipped": scaled(-1),
    "multiplied by 1.5": scaled(1.5),
    "multiplied by 5": scaled(5),
    "that of the iteration before": stale,
    "given with bit 22 flipped": flipped(22),
    "given with bit 21 flipped": flipped(21),
    "given with bit 23 flipped": flipped(23),
}
worlds = st.sampled_from(WORLDS) | st.integers(2, 4096)
seeds = st.integers(0, 1 << 32)


@given(worlds, seeds, st.sampled_from(sorted(PARTS)))
def test_a_rank_whose_part_was_wrong_is_told_with_what_became_of_it(
    world: int, seed: int, what: str
) -> None:
    rank = Random(seed).randrange(world)
    found = decode(world, residuals(world, {rank: PARTS[what]}, elements(seed, 48)))
    assert found is not None
    assert found.rank == rank
    assert found.what == what
    assert found.odds >= syndrome.LEAST_ODDS


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("what", ["lost", "counted twice", "given with bit 22 flipped"])
def test_one_bad_cell_is_enough_where_it_is_bad_in_every_iteration(world: int, what: str) -> None:
    where = [(iteration, 12345) for iteration in range(25)]
    found = decode(world, residuals(world, {world - 1: PARTS[what]}, where))
    assert found is not None
    assert (found.rank, found.what) == (world - 1, what)


def test_a_stuck_bit_is_told_by_the_elements_in_which_it_is_wrong() -> None:
    def stuck(*at: int) -> float:
        return (
            max(flipped(22)(*at), right(*at))
            if right(*at) > 0
            else min(flipped(22)(*at), right(*at))
        )

    found = decode(8, residuals(8, {5: stuck}, elements(3, 48)))
    assert found is not None
    assert (found.rank, found.what) == (5, "given with bit 22 flipped")


@pytest.mark.parametrize("world", WORLDS)
def test_a_few_residuals_that_chance_could_explain_accuse_nobody(world: int) -> None:
    assert decode(world, residuals(world, {1: scaled(2)}, elements(1, 2))) is None
    assert decode(world, residuals(world, {1: flipped(22)}, elements(1, 5))) is None
    assert decode(world, []) is None


def test_the_same_element_of_the_period_again_shows_nothing_more() -> None:
    where = [(0, 7 + turn * pattern.M) for turn in range(40)]
    assert decode(64, residuals(64, {3: scaled(2)}, where)) is None


def test_where_ranks_have_the_same_data_nobody_is_told() -> None:
    world = pattern.M + 5
    assert decode(world, residuals(world, {3: scaled(2)}, elements(1, 48))) is None


@given(worlds, seeds, st.integers(-5000, 5000).filter(bool))
def test_an_addend_that_has_nothing_to_do_with_the_data_accuses_nobody(
    world: int, seed: int, addend: int
) -> None:
    assert (
        decode(world, residuals(world, {seed % world: added(addend)}, elements(seed, 48))) is None
    )


@given(worlds, seeds, st.sampled_from(OTHERS), st.integers(6, 48))
def test_what_no_single_rank_did_accuses_nobody(
    world: int, seed: int, wrong: Callable[[int, int], list[ResidualSample]], count: int
) -> None:
    samples = wrong(world, seed)
    assume(samples)
    assert decode(world, samples[:count]) is None


@pytest.mark.parametrize("world", [3, 4, 8, 64])
def test_a_rank_that_loses_what_reaches_it_in_a_ring_gets_nobody_else_accused(world: int) -> None:
    size, loses = 1 << 20, 1
    samples = []
    for iteration, element in elements(5, 48, size):
        start = (
            element * world // size
        )  # of this chunk's way round the ring, which ends with the rank before it
        before = range(start, start + (loses - start) % world)
        if lost := sum(right(world, rank % world, iteration, element) for rank in before):
            samples.append(ResidualSample(iteration, element, -lost))
    assert len(samples) > 20
    assert decode(world, samples) is None


def test_what_is_no_exact_number_accuses_nobody() -> None:
    samples = residuals(8, {3: scaled(2)}, elements(1, 48))
    assert decode(8, [*samples, ResidualSample(7, 1, 0.0)]) is None


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        (range(8), "every rank holds it"),
        ([3], "rank 3 alone holds it"),
        (
            [7, 0, 1],
            "ranks 7 to 1 hold it, one after another: in a ring by rank it went wrong between rank 6 and rank 7",
        ),
        ([1, 4], "2 of 8 ranks hold it"),
    ],
)
def test_who_holds_the_wrong_copy_tells_where_it_went_wrong(ranks: list[int], says: str) -> None:
    assert syndrome.holding(ranks, 8).startswith(says)


# --- in the gang


def reported(rank: int, holders: list[int], *, world: int = 4) -> dict[int, RankReport]:
    """Members of one worker each, of which these hold a sum in which ``rank``'s part is wrong."""
    samples = tuple((*one,) for one in residuals(world, {rank: scaled(2)}, elements(1, 48)))
    return {
        one: took(HEALTHY, wrong=9, residuals=(Residuals((one,), (f"GPU-{one}",), samples),))
        if one in holders
        else took(HEALTHY)
        for one in range(world)
    }


def test_the_rank_the_node_and_the_gpu_are_told_from_one_collective() -> None:
    world = World(4, slow(), gang=dict(reported(2, [0, 1, 2, 3])))
    verdict = world.run()
    assert verdict.metadata["corrupted_rank"] == "2"
    assert verdict.metadata["corrupted_gpu"] == "GPU-2"
    says = "what is wrong in the sum is the part of worker rank 2 (GPU GPU-2, pod-2 on node-2): it was counted twice"
    assert says in verdict.reason
    assert any(line.startswith(f"the sum: {says}") for line in world.said)
    assert " to 1 " not in verdict.reason
    [marked] = [line for line in world.said if line.startswith("likelihoods: ") and "sum" in line]
    assert json.loads(marked.partition(": ")[2])["sum"] >= syndrome.LEAST_ODDS


def test_a_rank_told_by_the_sum_alone_is_named_with_what_would_settle_it() -> None:
    verdict = World(4, slow(), gang=dict(reported(2, [0, 1, 2, 3]))).run()
    assert (verdict.code, verdict.blamed, verdict.metadata["named"]) == (
        "DATA_UNLOCALISED",
        {},
        "node-2",
    )
    assert list(verdict.named) == [2]
    (finding,) = blame.verdict_of(verdict, 2).findings
    assert (finding.fatal, "to settle it: run the check again" in finding.message) == (False, True)


def test_pairs_that_repeat_it_blame_the_node_though_it_has_no_hairpin() -> None:
    one_gpu_each = {"backend": "nccl", "workers": 1}
    sum_told = World(4, spoils(2), gang=dict(reported(2, [0, 1, 2, 3])), **one_gpu_each).run()  # type: ignore[arg-type]
    assert (sum_told.blamed, sum_told.named) == ({2: "NODE_WRONG_DATA"}, {})
    assert "evidence: path, data" in sum_told.evidence[2]
    assert "worker rank 2" in sum_told.evidence[2]
    without = World(
        4,
        spoils(2),
        gang=dict.fromkeys(range(4), took(HEALTHY, wrong=9)),
        **one_gpu_each,  # type: ignore[arg-type]
    ).run()
    assert without.blamed == {}


def test_pairs_that_find_another_node_are_not_overruled_by_the_sum() -> None:
    verdict = World(4, spoils(1), gang=dict(reported(2, [0, 1, 2, 3])), backend="nccl").run()
    assert 2 not in verdict.blamed
    assert 1 not in verdict.blamed  # it has no hairpin, and the sum says nothing of it


def test_a_node_that_is_right_to_itself_is_not_blamed_by_pairs_and_the_sum() -> None:
    def answer(group: tuple[int, ...]) -> dict[int, RankReport | RankStage]:
        return {rank: took(HEALTHY, wrong=int(2 in group and len(group) > 1)) for rank in group}

    verdict = World(4, answer, gang=dict(reported(2, [0, 1, 2, 3]))).run()
    assert (verdict.blamed, verdict.metadata["named"]) == ({}, "node-2")


def test_a_part_that_is_wrong_only_in_others_copies_accuses_nobody() -> None:
    verdict = World(4, slow(), gang=dict(reported(2, [1]))).run()
    assert "corrupted_rank" not in verdict.metadata
    assert verdict.named == {}
    says = "not decided by the syndrome: the residuals follow the data of rank 2, but rank 1 alone holds it"
    assert verdict.metadata["syndrome"].startswith(says)


def test_copies_that_differ_accuse_nobody() -> None:
    mixed = {
        **reported(2, [0, 1]),
        **{rank: one for rank, one in reported(3, [2, 3]).items() if rank > 1},
    }
    verdict = World(4, slow(), gang=dict(mixed)).run()
    assert "corrupted_rank" not in verdict.metadata
    assert "follow no single rank's data; every rank holds it" in verdict.metadata["syndrome"]


def test_workers_with_the_same_wrong_sum_report_it_once_and_the_largest_report_fits_a_message() -> (
    None
):
    samples = tuple((i, (1 << 30) - 1 - i, -12345.0 - i / 1024) for i in range(48))
    stream = cast("SocketStream", None)
    same = [
        Worker(rank, rank, stream, 0.0, done=WorkerLine(samples=samples, gpu=f"GPU-{rank}"))
        for rank in (1, 0)
    ]
    (one,) = launch.residuals(same)
    assert (one.ranks, one.gpus, one.samples) == ((0, 1), ("GPU-0", "GPU-1"), samples)
    each = [
        Worker(
            rank,
            rank,
            stream,
            0.0,
            done=WorkerLine(samples=((rank, *samples[0][1:]), *samples[1:]), gpu="GPU-" + 36 * "f"),
        )
        for rank in range(16)
    ]
    report = RankReport(1, (1.5,) * 20, 25, 1 << 30, "somewhere", residuals=launch.residuals(each))
    assert len(report.residuals) == 16
    assert len(encode(report)) < MAX_MESSAGE / 2


def test_members_without_residuals_are_judged_as_before() -> None:
    hellos = {rank: Hello(rank, f"pod-{rank}", f"node-{rank}", "gloo", 1) for rank in range(2)}
    assert syndrome.gang(2, hellos, {0: took(HEALTHY, wrong=1), 1: took(HEALTHY)}) is None
