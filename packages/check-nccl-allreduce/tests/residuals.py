"""Wrong sums without a collective: what every element differs by where ranks' parts go wrong, for
any world. Pure.

``python residuals.py TRIALS`` prints how many of so many corruptions that no single rank did accuse
one.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from random import Random

from check_nccl_allreduce.syndrome import ResidualSample, decode
from check_nccl_allreduce.worker import pattern

Part = Callable[[int, int, int, int], float]
"""(world, rank, iteration, element) → what this rank gives to the sum."""


@lru_cache(maxsize=64)
def table(world: int) -> list[int]:
    return pattern.values(world)


@lru_cache(maxsize=64)
def totals(world: int) -> list[int]:
    return pattern.sums(world)


def right(world: int, rank: int, iteration: int, element: int) -> int:
    return table(world)[(element * pattern.P + rank * pattern.Q + iteration) % pattern.M]


def total(world: int, iteration: int, element: int) -> int:
    return totals(world)[(element * pattern.P + iteration) % pattern.M]


def _row(values: list[int], shift: int) -> list[int]:
    return [values[(element * pattern.P + shift) % pattern.M] for element in range(pattern.M)]


def first_row(world: int, rank: int, iteration: int) -> list[int]:
    """The first M elements of a rank's data; the rest repeats them."""
    return _row(table(world), rank * pattern.Q + iteration)


def expected(world: int, iteration: int) -> list[int]:
    """The first M elements of what every rank must hold afterwards; the rest repeats them."""
    return _row(totals(world), iteration)


def scaled(factor: float) -> Part:
    return lambda *at: factor * right(*at)


def stale(world: int, rank: int, iteration: int, element: int) -> int:
    return right(world, rank, iteration - 1, element)


def flipped(bit: int) -> Part:
    def part(*at: int) -> float:
        bits = struct.unpack("<I", struct.pack("<f", right(*at)))[0] ^ 1 << bit
        return float(struct.unpack("<f", struct.pack("<I", bits))[0])

    return part


def added(addend: float) -> Part:
    return lambda *at: right(*at) + addend


def elements(seed: int, count: int, size: int = 1 << 21) -> list[tuple[int, int]]:
    """(iteration, element) of so many wrong elements, as a rank reports them: eight of an iteration
    at most.
    """
    chance = Random(seed)
    return [(i // 8, chance.randrange(size)) for i in range(count)]


def residuals(
    world: int, wrong: Mapping[int, Part], where: Sequence[tuple[int, int]]
) -> list[ResidualSample]:
    """Of these elements, those that differ where these ranks give something else."""
    found = []
    for iteration, element in where:
        at = (iteration, element)
        residual = sum(
            part(world, rank, *at) - right(world, rank, *at) for rank, part in wrong.items()
        )
        if residual:
            found.append(ResidualSample(iteration, element, residual))
    return found


def two_parts(world: int, seed: int) -> list[ResidualSample]:
    one, other = Random(seed).sample(range(world), 2)
    return residuals(world, {one: scaled(0), other: scaled(0)}, elements(seed, 48))


def one_in_the_place_of_another(world: int, seed: int) -> list[ResidualSample]:
    one, other = Random(seed).sample(range(world), 2)
    return residuals(world, {one: scaled(0), other: scaled(2)}, elements(seed, 48))


def two_parts_in_turns(world: int, seed: int) -> list[ResidualSample]:
    one, other = Random(seed).sample(range(world), 2)
    turns = [((one, other)[i % 2], at) for i, at in enumerate(elements(seed, 48))]
    return [found for rank, at in turns for found in residuals(world, {rank: scaled(0)}, [at])]


def exchanged_chunks(world: int, seed: int) -> list[ResidualSample]:
    half = 1 << 20
    found = [
        (t, i, total(world, t, (i + half) % (2 * half)) - total(world, t, i))
        for t, i in elements(seed, 48)
    ]
    return [ResidualSample(*one) for one in found if one[2]]


def previous_sum(world: int, seed: int) -> list[ResidualSample]:
    found = [(t, i, total(world, t - 1, i) - total(world, t, i)) for t, i in elements(seed, 48)]
    return [ResidualSample(*one) for one in found if one[2]]


def anything(world: int, seed: int) -> list[ResidualSample]:
    chance, most = Random(seed), pattern.bound(world)
    return [
        ResidualSample(t, i, chance.randint(1, most) * chance.choice((-1, 1)))
        for t, i in elements(seed, 48)
    ]


def powers(world: int, seed: int) -> list[ResidualSample]:
    """The likest to a flipped bit that has nothing to do with the data."""
    chance = Random(seed)
    return [
        ResidualSample(t, i, 2 ** chance.randrange(9) * chance.choice((-1, 1)))
        for t, i in elements(seed, 48)
    ]


OTHERS: list[Callable[[int, int], list[ResidualSample]]] = [
    two_parts,
    one_in_the_place_of_another,
    two_parts_in_turns,
    exchanged_chunks,
    previous_sum,
    anything,
    powers,
]


def main(trials: int) -> None:
    chance = Random(1)
    for wrong in OTHERS:
        accused = told = 0
        for _ in range(trials // 50):
            world = chance.choice([2, 3, 4, 8, 64, chance.randint(2, 4096), 4096])
            for _ in range(50):
                samples = wrong(world, chance.randrange(1 << 32))[: chance.randint(2, 48)]
                told += len(samples) > 1
                accused += decode(world, samples) is not None
        print(f"{wrong.__name__}: {accused} of {told} accuse a rank")


if __name__ == "__main__":
    main(int(sys.argv[1]))
