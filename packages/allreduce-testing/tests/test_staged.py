"""In every staged world no healthy node is blamed, in its first gangs."""

from __future__ import annotations

import pytest
from allreduce_testing.worlds.simulation import simulate
from allreduce_testing.worlds.staged import WORLDS
from allreduce_testing.worlds.stages import StagedWorld

GANGS = 30
BLAMED = frozenset(
    {
        "line card",
        "line card, all known",
        "line card, ports unequally slow, all known",
        "line card, ports unequally slow",
        "line card of two",
        "line card whose links count errors",
        "two line cards",
        "line card and a slow leaf",
        "slow leaf",
        "slow leaf, labels lie",
        "slow uplink",
        "slow leaf, labels lie, layout known",
        "slow leaf with one member, labels lie",
        "slow leaf with one member, stale labels",
        "rails, lone node",
        "rails, lone node, labels lie",
        "rails, small rack",
        "rails, line card",
        "rails, one node's flows collide",
        "two kinds, hidden",
        "two kinds, hidden, one node",
        "two kinds, hidden, all known",
        "two kinds, hidden, one node, all known",
        "two kinds, hidden, and a sick node",
        "neighbour's traffic of 60 to 150 s",
        "neighbour's traffic of 60 to 150 s, nothing counted",
        "neighbour's traffic, lasting",
        "neighbour's traffic, lasting, nothing counted",
        "neighbour's traffic, lasting, all known",
        "neighbour's traffic of 60 to 150 s, all known",
        "neighbour's traffic, two nodes",
        "neighbour's traffic and a sick node",
        "two nodes, a neighbour's traffic",
        "two nodes, slow uplink",
        "two nodes, two kinds",
        "hosts of two beside hosts of one",
        "hairpins late, line card",
        "short of time, neighbour's traffic",
        "marks and a line card",
        "marks and a neighbour's traffic",
        "marks on all and a line card",
        "marks on all and a lone node",
        "a fast pair, lone node",
        "restless latencies, small rack",
        "line card and a sick node",
        "lone node and a sick node",
        "lone node and a neighbour's traffic",
        "many things",
    }
)
"""Worlds in which localisation is known to blame healthy nodes; no other one may join them."""


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_no_healthy_node_is_blamed(world: StagedWorld) -> None:
    tally = simulate([world], gangs=GANGS)[world.name]
    assert tally.max_rounds <= 8
    if world.name not in BLAMED:
        assert tally.healthy_blamed == 0


def test_worlds_in_which_healthy_nodes_are_blamed_exist() -> None:
    assert {world.name for world in WORLDS} >= BLAMED
