"""The simulation has the same figures each time; and localisation names who is slow in it."""

from __future__ import annotations

import pytest
from allreduce_testing.worlds.faults import SickNode
from allreduce_testing.worlds.simulation import simulate
from allreduce_testing.worlds.staged import known
from allreduce_testing.worlds.stages import StagedWorld
from allreduce_testing.worlds.tally import bound


def test_figures_do_not_depend_on_how_many_processes_share_the_gangs() -> None:
    world = StagedWorld("shared", gangs=60, nodes=(12, 12))
    alone, shared = (simulate([world], jobs)["shared"].figures() for jobs in (1, 2))
    assert alone == shared


@pytest.mark.parametrize("size", [3, 4, 5, 7, 8, 64])
def test_in_a_small_gang_the_one_slow_node_is_named_and_no_healthy_one(size: int) -> None:
    sick = SickNode(share=(0.65, 0.70))
    tally = simulate([known(f"N={size}", sick, nodes=(size, size))], gangs=100)[f"N={size}"]
    assert tally.healthy_blamed == 0
    assert tally.bad_named >= 0.99 * tally.bad
    assert tally.max_rounds <= 8


def test_the_bound_on_what_was_never_seen_is_three_over_the_number_of_gangs() -> None:
    assert bound(0, 3000) == pytest.approx(0.1)
    assert 0.1 < bound(1, 3000) < 0.2
    assert bound(0, 0) == 100
