"""The reduced numbers: exact, and different wherever something goes wrong.
Without torch, on lists.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache

import pytest
from check_nccl_allreduce.worker import pattern
from residuals import expected, first_row

WORLDS = [2, 3, 8]
T = 4

Reduced = list[int]


@cache
def inputs(world: int, iteration: int = T) -> list[list[int]]:
    return [first_row(world, rank, iteration) for rank in range(world)]


def total(rows: list[list[int]]) -> Reduced:
    return [sum(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("world", WORLDS)
def test_the_table_is_the_sum_of_all_ranks(world: int) -> None:
    assert total(inputs(world)) == expected(world, T)


def test_a_world_larger_than_the_period_is_summed_too() -> None:
    world = pattern.M + 5
    f = pattern.values(world)
    by_hand = sum(f[(7 + r * pattern.Q) % pattern.M] for r in range(world))
    assert pattern.sums(world)[7] == by_hand


@pytest.mark.parametrize("world", [2, 64, 16384, 65536, (1 << 24) - 1])
def test_no_sum_leaves_what_float32_counts_exactly(world: int) -> None:
    assert world * pattern.bound(world) < 1 << 24
    assert max(map(abs, pattern.values(world))) <= pattern.bound(world)


def test_a_world_that_float32_cannot_count_is_refused() -> None:
    with pytest.raises(ValueError, match="16777216 ranks"):
        pattern.bound(1 << 24)


def dropped_rank(world: int) -> Reduced:
    return total(inputs(world)[:-1])


def doubled_rank(world: int) -> Reduced:
    rows = inputs(world)
    return total([*rows, rows[0]])


def doubled_in_the_place_of_another(world: int) -> Reduced:
    rows = inputs(world)
    return total([rows[0], rows[0], *rows[2:]])


def swapped_chunks(world: int) -> Reduced:
    right = expected(world, T)
    return [*right[4096:8192], *right[:4096], *right[8192:]]


def previous_iteration(world: int) -> Reduced:
    return expected(world, T - 1)


def flipped_bit(world: int) -> Reduced:
    right = expected(world, T)
    bits = struct.unpack("<i", struct.pack("<f", right[77]))[0] ^ 1
    return [*right[:77], struct.unpack("<f", struct.pack("<i", bits))[0], *right[78:]]


def one_ranks_copy_only(world: int) -> Reduced:
    return inputs(world)[0]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    "mutant",
    [
        dropped_rank,
        doubled_rank,
        doubled_in_the_place_of_another,
        swapped_chunks,
        previous_iteration,
        flipped_bit,
        one_ranks_copy_only,
    ],
)
def test_a_wrong_reduction_differs_from_what_is_expected(
    mutant: Callable[[int], Reduced], world: int
) -> None:
    right, wrong = expected(world, T), mutant(world)
    differing = sum(a != b for a, b in zip(right, wrong, strict=True))
    if mutant is flipped_bit:
        assert differing == 1
    else:
        assert differing > 0.1 * (8192 if mutant is swapped_chunks else pattern.M)


def test_a_constant_per_rank_would_miss_swapped_chunks_and_ours_does_not_repeat_within_a_period() -> (
    None
):
    row = first_row(2, 0, 0)
    assert len(set(row)) > 1000
    assert all(row[shift:] != row[:-shift] for shift in (1, 1024, 4096, 32768))
