"""In every staged world no healthy node is blamed, in its first gangs."""

from __future__ import annotations

import pytest
from allreduce_testing.worlds.simulation import simulate
from allreduce_testing.worlds.staged import WORLDS
from allreduce_testing.worlds.stages import StagedWorld

GANGS = 30


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_no_healthy_node_is_blamed(world: StagedWorld) -> None:
    tally = simulate([world], gangs=GANGS)[world.name]
    assert tally.max_rounds <= 8
    assert tally.healthy_blamed == 0
