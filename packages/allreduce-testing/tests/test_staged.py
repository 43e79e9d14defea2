"""In every staged world no healthy node is blamed, in its first gangs."""

from __future__ import annotations

import pytest
from allreduce_testing.worlds.faults import Collisions, Marks, Older, Storm
from allreduce_testing.worlds.simulation import play_staged, simulate
from allreduce_testing.worlds.staged import WORLDS, known
from allreduce_testing.worlds.stages import StagedFabric, StagedWorld

GANGS = 30


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_no_healthy_node_is_blamed(world: StagedWorld) -> None:
    tally = simulate([world], gangs=GANGS)[world.name]
    assert tally.max_rounds <= 8
    assert tally.healthy_blamed == 0


COLLIDING = known(
    "throttle marks and collisions",
    Marks(0.1, ("throttle",)),
    Collisions(node=True),
    leaves=(2, 6),
    configured=True,
)
OLDER = known("an older kind that lacks less to itself", Older())
FEW_BEHIND = known(
    "pause frames on a leaf of two or three", Storm(share=(0.3, 0.88), often=0.9), leaves=(2, 3)
)
KIND, STORM = "compare the kinds of the adapters", "pause frames from another job"

JUDGED_WRONGLY_ONCE: dict[
    str, tuple[str | StagedWorld, int, tuple[int, ...], tuple[int, ...], str]
] = {
    "at half of the rate; its paths reach 55 % of the reference, 53 % of what good paths do": (
        *("two kinds, hidden, one node", 211, (), (4,), KIND),
    ),
    "at 2/5 of the rate; its paths reach 44 % of normal, and it itself 41 and 45 %": (
        *("two kinds, hidden, all known", 326, (), (6,), KIND),
    ),
    "older, and PCIe limits the others to themselves": (OLDER, 4, (), (10,), KIND),
    "sick; its paths reach 34 % of normal, and it itself 37 and 33 %": (
        "sick",
        240,
        (3,),
        (3,),
        "",
    ),
    "behind a small rack's slow uplink, and slow to itself for another reason": (
        *("slow to themselves, and a small rack's slow uplink", 24, (), (12,), "good in between"),
    ),
    "it reaches 67 % of the reference, which is 60 % of what three nodes reach": (
        *("line card, ports unequally slow, all known", 1372, (), (1, 2, 5), "fastest reach more"),
    ),
    "sick, and as slow as a line card makes most of the gang": (
        *("line card and a sick node", 771, (), (2, 3, 6, 8), ""),
    ),
    "throttles late, after which there are two rounds against it": (
        *("throttles", 109, (0,), (0, 5), "in 2 rounds"),
    ),
    "its GPU throttles, which does not slow it: two of seven paths are slow": (
        *(COLLIDING, 13, (), (1,), "with others it was good in between"),
    ),
    "others behind its line card have fewer GPUs, and no pair is like theirs": (
        *("fewer GPUs on some nodes, and a line card", 29, (), (6,), ""),
    ),
    "beside one of its leaf that is a little slow": (STORM, 241, (), (1, 4), ""),
    "beside a milder victim with one good hairpin": (STORM, 1313, (), (2, 8), ""),
    "beside another such one": (STORM, 2060, (), (4, 13), ""),
    "beside a milder victim that alone makes the reference": (FEW_BEHIND, 41, (), (1,), ""),
}
"""What a slow node is: its world and gang, who is blamed and named, and what is said of it."""


@pytest.mark.parametrize(
    ("world", "number", "blamed", "named", "says"),
    JUDGED_WRONGLY_ONCE.values(),
    ids=JUDGED_WRONGLY_ONCE,
)
def test_a_gang_that_was_judged_wrongly_once(
    world: str | StagedWorld,
    number: int,
    blamed: tuple[int, ...],
    named: tuple[int, ...],
    says: str,
) -> None:
    if isinstance(world, str):
        world = next(each for each in WORLDS if each.name == world)
    fabric = StagedFabric(world, number)
    verdict, _ = play_staged(fabric)
    assert (verdict.blamed, verdict.named) == (blamed, named)
    assert says in verdict.reason
    assert set(blamed) == fabric.judged() or not blamed
