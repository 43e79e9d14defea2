"""In every staged world no healthy node is blamed, in its first gangs."""

from __future__ import annotations

import pytest
from allreduce_testing.worlds.simulation import play_staged, simulate
from allreduce_testing.worlds.staged import WORLDS
from allreduce_testing.worlds.stages import StagedFabric, StagedWorld

GANGS = 30


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_no_healthy_node_is_blamed(world: StagedWorld) -> None:
    tally = simulate([world], gangs=GANGS)[world.name]
    assert tally.max_rounds <= 8
    assert tally.healthy_blamed == 0


def test_where_few_edges_make_a_low_reference_a_node_of_half_the_rate_is_of_another_kind() -> None:
    """Its paths reach 55 % of the reference, and 53 % of what good paths do."""
    world = next(world for world in WORLDS if world.name == "two kinds, hidden, one node")
    verdict, _ = play_staged(StagedFabric(world, 211))
    assert (verdict.blamed, verdict.named) == ((), (4,))
    assert "compare the kinds of the adapters" in verdict.reason
