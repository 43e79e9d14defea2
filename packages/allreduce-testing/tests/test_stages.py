"""A staged fabric measures what its layout says: who passes what, and who is told."""

from __future__ import annotations

import pytest
from allreduce_testing.worlds.faults import (
    Beyond,
    Busy,
    Collisions,
    Kinds,
    SickNode,
    SlowToThemselves,
)
from allreduce_testing.worlds.simulation import play_staged, simulate
from allreduce_testing.worlds.staged import WORLDS
from allreduce_testing.worlds.stages import NORMAL, StagedFabric, StagedWorld, WorldFault
from check_nccl_allreduce.localise import Phase, Probe, Role, Round


def quiet(*faults: WorldFault, **changed: object) -> StagedFabric:
    """A gang whose measurements are exact."""
    world = StagedWorld("exact", faults, nodes=(16, 16), leaves=(4, 4), noise=(0, 0), spread=0)
    for key, value in {"dips": 0.0, "restless": 0.0, **changed}.items():
        object.__setattr__(world, key, value)
    return StagedFabric(world, 0)


def share(fabric: StagedFabric, *members: int) -> float:
    """What the members reach of normal."""
    role = Role.HAIRPIN if len(members) == 1 else Role.MATCH
    step = Round(2, Phase.MATCH, (Probe(tuple(sorted(members)), role),))
    return round(fabric.measure(step)[0].gbps / NORMAL, 3)


@pytest.mark.parametrize("stage", ["adapter", "link", "port"])
def test_what_is_between_a_node_and_its_leaf_slows_its_pairs_and_its_hairpin(stage: str) -> None:
    fabric = quiet(SickNode(stage=stage, share=(0.5, 0.5)))
    (bad,) = fabric.truth.blamable
    assert fabric.truth.sick == ({bad} if stage == "adapter" else set())
    assert (share(fabric, bad), share(fabric, bad, (bad + 1) % 16)) == (0.5, 0.5)
    assert share(fabric, (bad + 1) % 16, (bad + 2) % 16) == 1.0


def test_a_loop_inside_the_adapter_passes_no_cable() -> None:
    fabric = quiet(SickNode(stage="link", share=(0.5, 0.5)), hairpins="adapter")
    (bad,) = fabric.truth.blamable
    assert (share(fabric, bad), share(fabric, bad, (bad + 1) % 16)) == (1.0, 0.5)


def test_a_line_card_slows_pairs_and_hairpins_of_its_nodes_and_is_no_nodes_fault() -> None:
    fabric = quiet(Beyond("card", (3, 3), share=(0.5, 0.5)))
    behind = [i for i in range(16) if fabric.shape.card[i] == -1]
    assert len(behind) == 3
    assert len({fabric.shape.leaf[i] for i in behind}) == 1
    assert fabric.truth.blamable == set()
    assert {share(fabric, i) for i in behind} == {0.5}


@pytest.mark.parametrize("rail", [True, False])
def test_a_hairpin_passes_the_uplink_in_a_rail_optimised_fabric_alone(rail: bool) -> None:
    fabric = quiet(Beyond("uplink", (2, 2), share=(0.5, 0.5)), rail=rail)
    a, b = fabric.shape.behind(max(fabric.shape.leaf))
    other = next(i for i in range(16) if i not in {a, b})
    assert (share(fabric, a, b), share(fabric, a, other)) == (1.0, 0.5)
    assert share(fabric, a) == (0.5 if rail else 1.0)


def test_a_neighbours_traffic_ends_and_what_it_moves_is_known() -> None:
    fabric = quiet(Busy(begins=(0, 0), lasts=(60, 60), share=(0.5, 0.5)), seconds=(5.0, 5.0))
    fabric.background = [0.0] * 16
    (busy,) = [i for i in range(16) if fabric.foreign(i, 0, 100)]
    assert fabric.foreign(busy, 10, 55) == 200
    assert fabric.foreign(busy, 50, 100) == 40
    assert share(fabric, busy) == 0.5
    fabric.now = 61
    assert share(fabric, busy) == 1.0
    assert fabric.truth.blamable == set()


def test_a_neighbour_that_sends_nothing_is_seen_by_the_time_it_takes_of_processors() -> None:
    fabric = quiet(Busy((1, 1), share=(0.5, 0.5), mute=True), counted=True)
    (busy,) = fabric.truth.named
    assert share(fabric, busy) == 0.5
    loads = [one.local.load for one in fabric.told(fabric.state).endpoints]
    assert [i for i, load in enumerate(loads) if load > 0.9] == [busy]
    assert fabric.foreign(busy, 0, 1) == fabric.background[busy]


def test_collisions_that_move_slow_one_path_for_a_while() -> None:
    fabric = quiet(Collisions(often=0.5, moves=(10, 20)), rail=False)
    leaves = fabric.shape.leaf
    far = [(0, i) for i in range(16) if leaves[i] != leaves[0]]
    reached = [[share(fabric, *pair) for pair in far] for _ in range(8)]
    assert min(min(one) for one in reached) < 0.8
    assert any(len({min(1.0, one[i]) for one in reached}) > 1 for i in range(len(far)))
    assert {share(fabric, 0, i) for i in range(1, 16) if leaves[i] == leaves[0]} == {1.0}


def test_a_leaf_that_cannot_carry_all_of_its_nodes_slows_them_together_and_not_alone() -> None:
    fabric = quiet(Beyond("leaf", capacity=(0.5, 0.5)))
    pairs = {leaf: fabric.shape.behind(leaf) for leaf in set(fabric.shape.leaf)}
    probes = [Probe((a, b), Role.MATCH) for a, b, *rest in pairs.values()]
    probes += [Probe((c, d), Role.MATCH) for _, _, c, d in pairs.values()]
    reached = fabric.measure(Round(2, Phase.MATCH, tuple(probes)))
    slow = {probe.members[0] for probe, one in zip(probes, reached, strict=True) if one.gbps < 300}
    assert 0 < len(slow) < 8
    assert {share(fabric, i) for i in range(16)} == {1.0}


def test_whoever_is_slow_to_itself_has_good_paths() -> None:
    fabric = quiet(SlowToThemselves(often=1.0, share=(0.5, 0.5)))
    assert (share(fabric, 0), share(fabric, 0, 1)) == (0.5, 1.0)
    assert not fabric.truth.named


def test_of_a_kind_that_is_visible_the_endpoint_says_so() -> None:
    fabric = quiet(Kinds((0.5,), (2, 2), visible=True))
    assert sorted({one.nic for one in fabric.state.endpoints}) == ["8x200", "8x400"]
    assert {one.nic for one in quiet(Kinds((0.5,))).state.endpoints} == {"8x400"}


def test_what_a_sick_nodes_device_counts_comes_with_the_rounds() -> None:
    fabric = quiet(SickNode(tells=("errors",)), counted=True)
    (bad,) = fabric.truth.sick
    _, state = play_staged(fabric)
    assert [i for i, one in enumerate(state.endpoints) if one.local.errors] == [bad]
    assert state.endpoints[bad].local.errors[0].rounds == 1 + len(state.rounds)


def test_every_staged_world_has_a_name_of_its_own_and_can_be_played() -> None:
    assert len({world.name for world in WORLDS}) == len(WORLDS) >= 30
    played = simulate(WORLDS, gangs=2)
    assert all(tally.gangs == 2 and tally.max_rounds <= 8 for tally in played.values())
