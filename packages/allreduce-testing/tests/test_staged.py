"""In every staged world no healthy node is blamed, in its first gangs."""

from __future__ import annotations

import pytest
from allreduce_testing.worlds.faults import Collisions, Marks, Older, Storm
from allreduce_testing.worlds.simulation import play_staged, simulate
from allreduce_testing.worlds.staged import WORLDS, known
from allreduce_testing.worlds.stages import StagedFabric, StagedWorld
from check_nccl_allreduce.localise import Verdict

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


def test_a_node_of_another_kind_is_not_blamed_though_one_hairpin_is_faster_than_its_rate() -> None:
    """At 2/5 of the rate: its paths reach 44 % of normal, and it itself 41 and 45 %."""
    world = next(world for world in WORLDS if world.name == "two kinds, hidden, all known")
    verdict, _ = play_staged(StagedFabric(world, 326))
    assert (verdict.blamed, verdict.named) == ((), (6,))
    assert "compare the kinds of the adapters" in verdict.reason


def test_a_sick_node_is_blamed_though_one_hairpin_is_as_slow_as_a_lower_rate() -> None:
    """It has 35 % left: its paths reach 34 % of normal, and it itself 37 and 33 %."""
    world = next(world for world in WORLDS if world.name == "sick")
    fabric = StagedFabric(world, 240)
    verdict, _ = play_staged(fabric)
    assert set(verdict.blamed) == fabric.judged() == {3}


def test_a_node_slow_to_itself_and_beyond_its_leaf_but_good_behind_it_is_not_blamed() -> None:
    """A small rack's uplink is slow, and for another reason the node's hairpin is."""
    world = next(
        w for w in WORLDS if w.name == "slow to themselves, and a small rack's slow uplink"
    )
    fabric = StagedFabric(world, 24)
    verdict, _ = play_staged(fabric)
    assert len(fabric.shape.behind(fabric.shape.leaf[12])) > 1
    assert verdict.blamed == ()


def _played(name: str, number: int) -> tuple[Verdict, StagedFabric]:
    fabric = StagedFabric(next(world for world in WORLDS if world.name == name), number)
    return play_staged(fabric)[0], fabric


def test_the_slowest_port_of_a_line_card_that_slows_most_of_the_gang_is_not_blamed() -> None:
    """It reaches 67 % of the reference, which itself is 60 % of what three nodes reach."""
    verdict, _ = _played("line card, ports unequally slow, all known", 1372)
    assert (verdict.blamed, verdict.named) == ((), (1, 2, 5))
    assert "where the fastest reach more" in verdict.reason


def test_a_sick_node_as_slow_as_a_line_card_makes_most_of_the_gang_is_named() -> None:
    verdict, fabric = _played("line card and a sick node", 771)
    assert set(fabric.shown()) == {2} <= set(verdict.named)


def test_a_node_whose_gpu_throttles_late_is_blamed_after_two_rounds_against_it() -> None:
    verdict, fabric = _played("throttles", 109)
    assert set(verdict.blamed) == fabric.judged() == {0}
    assert len({edge.round for edge in verdict.suspects[0].evidence}) == 2


def test_a_node_good_in_between_is_not_blamed_for_the_paths_on_which_its_flows_collide() -> None:
    """Its GPU says that it throttles, which does not slow it: two of seven paths are slow."""
    world = StagedWorld(
        "throttle marks and collisions",
        (Marks(0.1, ("throttle",)), Collisions(node=True)),
        labels=("true",),
        counted=True,
        configured=True,
        rail=False,
        leaves=(2, 6),
    )
    verdict, _ = play_staged(StagedFabric(world, 13))
    assert (verdict.blamed, verdict.named) == ((), (1,))
    assert "with others it was good in between" in verdict.reason


def test_a_node_of_an_older_kind_is_not_blamed_where_pcie_limits_the_others_to_themselves() -> None:
    fabric = StagedFabric(known("an older kind that lacks less to itself", Older()), 4)
    verdict, _ = play_staged(fabric)
    assert (verdict.blamed, set(verdict.named)) == ((), fabric.truth.named)


def test_a_slow_node_is_not_blamed_while_nobody_can_tell_of_others_behind_its_leaf() -> None:
    """They have fewer GPUs, and no other pair is like theirs: a line card slows them as well."""
    verdict, fabric = _played("fewer GPUs on some nodes, and a line card", 29)
    assert verdict.blamed == ()
    assert set(verdict.named) & fabric.truth.slow.keys()


def test_a_slow_node_is_not_blamed_beside_one_of_its_leaf_that_is_a_little_slow() -> None:
    verdict, fabric = _played("pause frames from another job", 241)
    assert set(fabric.truth.slow) == {1, 4}
    assert (verdict.blamed, 4 in verdict.named) == ((), True)


@pytest.mark.parametrize("number", [1313, 2060])
def test_a_victim_of_pause_frames_is_not_blamed_where_one_good_hairpin_hides_the_milder_one(
    number: int,
) -> None:
    verdict, fabric = _played("pause frames from another job", number)
    assert (verdict.blamed, set(verdict.named)) == ((), set(fabric.truth.slow))


def test_a_victim_of_pause_frames_is_not_blamed_where_the_milder_one_alone_makes_the_reference() -> (
    None
):
    storm = Storm(share=(0.3, 0.88), often=0.9)
    world = known("pause frames on a leaf of two or three", storm, leaves=(2, 3))
    fabric = StagedFabric(world, 41)
    verdict, _ = play_staged(fabric)
    assert set(fabric.truth.slow) == {0, 1}
    assert (verdict.blamed, verdict.named) == ((), (1,))
