"""What ranks reduce, and what it comes to, element by element as :mod:`.worker.pattern` says it."""

from __future__ import annotations

from check_nccl_allreduce.worker import pattern


def _row(table: list[int], shift: int) -> list[int]:
    return [table[(i * pattern.P + shift) % pattern.M] for i in range(pattern.M)]


def first_row(world: int, rank: int, iteration: int) -> list[int]:
    """The first M elements of a rank's data; the rest repeats them."""
    return _row(pattern.values(world), rank * pattern.Q + iteration)


def expected(world: int, iteration: int) -> list[int]:
    """The first M elements of what every rank must hold afterwards; the rest repeats them."""
    return _row(pattern.sums(world), iteration)
