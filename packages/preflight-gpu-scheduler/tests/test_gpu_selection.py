"""The choice is what brute force over all sets finds by the stated order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_gpu_scheduler.api import messages
from preflight_gpu_scheduler.api.claim import Mode, Policy, Want
from preflight_gpu_scheduler.api.gpu_node_status import Device
from preflight_gpu_scheduler.core.gpu_selection import (
    Slot,
    Topology,
    choose,
    mask_of,
    score,
    shared,
    topology,
)


def adjacent(ids: Sequence[int]) -> bool:
    return max(ids) - min(ids) == len(ids) - 1


def order(
    slots: Topology, free: frozenset[int], want: Want, ids: tuple[int, ...]
) -> tuple[object, ...]:
    """The order of the documentation, by counting and nothing else."""
    of = {slot.id: slot for slot in slots}
    islands = {of[one].island for one in ids}
    slowest = min(of[one].bandwidth for one in ids)
    if want.policy == "spread":
        return (-len(islands), ids)
    if want.mode == "Ignore":
        return (ids,)
    left = sum(of[one].island in islands for one in free) - len(ids)
    return (len(islands), not adjacent(ids), left, -slowest, ids)


def allowed(slots: Topology, want: Want, ids: tuple[int, ...]) -> bool:
    if want.mode != "Required":
        return True
    of = {slot.id: slot for slot in slots}
    one_island = len({of[one].island for one in ids}) == 1
    return one_island and adjacent(ids) and all(of[one].bandwidth >= want.least for one in ids)


def brute(slots: Topology, free: frozenset[int], want: Want) -> tuple[int, ...]:
    def best(fixed: frozenset[int]) -> tuple[int, ...] | None:
        sets = (
            ids
            for ids in combinations(sorted(free), want.count)
            if fixed <= set(ids) and allowed(slots, want, ids)
        )
        return min(sets, key=lambda ids: order(slots, free, want, ids), default=None)

    prefer = (
        [one for one in want.prefer if one in free][: want.count]
        if want.policy == "preferIds"
        else []
    )
    for most in range(len(prefer), -1, -1):
        if found := best(frozenset(prefer[:most])):
            return found
    return ()


def node(islands: Sequence[int], bandwidths: Sequence[float] = ()) -> Topology:
    owner = [f"island-{n}" for n, size in enumerate(islands) for _ in range(size)]
    return tuple(
        Slot(n, one, bandwidths[n] if bandwidths else 450.0) for n, one in enumerate(owner)
    )


WANTS = [
    Want(count=1),
    Want(count=1, policy="spread"),
    Want(count=1, mode="Required"),
    Want(count=1, mode="Ignore"),
    Want(count=1, policy="preferIds", prefer=(5, 2)),
    Want(count=1, policy="preferIds", prefer=(5, 2), mode="Required"),
]


@pytest.mark.parametrize("islands", [(8,), (4, 4), (2, 2, 2, 2)], ids=str)
@pytest.mark.parametrize("want", WANTS, ids=lambda one: f"{one.policy}-{one.mode}")
def test_the_choice_equals_brute_force_on_every_mask_of_eight_gpus(
    islands: tuple[int, ...], want: Want
) -> None:
    slots = node(islands)
    for mask in range(1 << 8):
        free = frozenset(n for n in range(8) if mask >> n & 1)
        for count in range(1, 9):
            asked = Want(count=count, policy=want.policy, mode=want.mode, prefer=want.prefer)
            expected = brute(slots, free, asked) if len(free) >= count else ()
            assert choose(slots, mask, asked).ids == expected, (sorted(free), asked)


@st.composite
def nodes(draw: st.DrawFn) -> Topology:
    ids = sorted(draw(st.sets(st.integers(0, 11), min_size=1, max_size=8)))
    island, speed = st.sampled_from("abcd"), st.sampled_from([32.0, 300.0, 450.0])
    return tuple(Slot(one, draw(island), draw(speed)) for one in ids)


@st.composite
def wants(draw: st.DrawFn) -> Want:
    policy: Policy = draw(st.sampled_from(["contiguous", "spread", "preferIds"]))
    mode: Mode = (
        "Preferred"
        if policy == "spread"
        else draw(st.sampled_from(["Required", "Preferred", "Ignore"]))
    )
    prefer = (
        tuple(draw(st.lists(st.integers(0, 11), unique=True, max_size=4)))
        if policy == "preferIds"
        else ()
    )
    least = draw(st.sampled_from([0.0, 100.0, 400.0])) if mode == "Required" else 0.0
    return Want(count=draw(st.integers(1, 8)), policy=policy, mode=mode, least=least, prefer=prefer)


@given(nodes(), wants(), st.integers(0, 255))
def test_gaps_between_ids_mixed_islands_and_speeds_change_nothing_of_that(
    slots: Topology, want: Want, mask: int
) -> None:
    mask &= (1 << len(slots)) - 1
    free = frozenset(slot.id for n, slot in enumerate(slots) if mask >> n & 1)
    found = choose(slots, mask, want)
    assert found.ids == (brute(slots, free, want) if len(free) >= want.count else ())
    assert bool(found.ids) != bool(found.why)
    assert 0 <= found.score <= 10
    assert set(found.ids) <= free


@given(nodes(), wants(), st.integers(0, 255), st.sets(st.integers(0, 11), max_size=4))
def test_own_leases_are_kept_where_a_choice_with_them_is_allowed(
    slots: Topology, want: Want, mask: int, own: set[int]
) -> None:
    mask &= (1 << len(slots)) - 1
    free = frozenset(slot.id for n, slot in enumerate(slots) if mask >> n & 1)
    mine = tuple(sorted(own & free))[: want.count]
    found = choose(slots, mask, want, mine)
    assert bool(found.ids) == bool(choose(slots, mask, want).ids)
    sets = combinations(sorted(free), want.count)
    if any(set(mine) <= set(ids) and allowed(slots, want, ids) for ids in sets):
        assert set(mine) <= set(found.ids)


@pytest.mark.parametrize(
    ("islands", "free", "count", "expected"),
    [((2, 1), {0, 1, 2}, 2, (0, 1)), ((2, 2), {1, 2, 3}, 2, (2, 3)), ((4,), {0, 2, 3}, 2, (2, 3))],
)
def test_the_examples_of_the_specification(
    islands: tuple[int, ...], free: set[int], count: int, expected: tuple[int, ...]
) -> None:
    slots = node(islands)
    assert choose(slots, mask_of(slots, free), Want(count=count)).ids == expected


@pytest.mark.parametrize("count", [8, 32, 48])
def test_on_a_node_of_many_gpus_without_links_the_choice_is_the_best_one_and_no_long_matter(
    count: int,
) -> None:
    slots = node((1,) * 64)
    free = frozenset(range(64)) - {3, 52}
    found = choose(slots, mask_of(slots, free), Want(count=count))
    assert found.ids == tuple(range(4, 4 + count))
    scattered = frozenset(n for n in range(64) if n % 8)
    found = choose(slots, mask_of(slots, scattered), Want(count=count))
    assert found.ids == tuple(sorted(scattered))[:count]


def test_an_unhealthy_a_mig_and_an_unknown_gpu_are_no_part_of_the_topology() -> None:
    devices = [
        Device(id=0),
        Device(id=1, health="Unhealthy"),
        Device(id=2, health="Unknown"),
        Device(id=3, mig=True),
    ]
    assert [slot.id for slot in topology(devices)] == [0]


def test_of_a_node_that_says_other_gpus_each_time_few_topologies_are_kept() -> None:
    for speed in range(5000):
        choose(topology([Device(id=0, bandwidth_gbps=speed)]), 1, Want(count=1))
    assert max(shared.cache_info().currsize, choose.cache_info().currsize) <= 4096
    assert topology([Device(id=0, uuid="A")]) is topology([Device(id=0, uuid="B")])


@pytest.mark.parametrize(
    ("want", "free", "why"),
    [
        (Want(count=9), 0xFF, messages.TOO_SMALL),
        (Want(count=3), 0b11, messages.TOO_FEW),
        (Want(count=4, mode="Required"), 0b00110011, messages.NO_ISLAND),
        (Want(count=5, mode="Required"), 0xFF, messages.ISLANDS_TOO_SMALL),
        (Want(count=2, mode="Required", least=900.0), 0xFF, messages.ISLANDS_TOO_SMALL),
        (Want(count=2, mode="Required"), 0b00000101, messages.NOT_ADJACENT),
    ],
)
def test_why_not_is_one_of_the_constants(want: Want, free: int, why: str) -> None:
    assert choose(node((4, 4)), free, want).why == why


@pytest.mark.parametrize(
    ("want", "free", "points"),
    [
        (Want(count=4), 0x0F, 10),
        (Want(count=2), 0x0F, 8),
        (Want(count=2), 0b0101, 4),
        (Want(count=5), 0xFF, 2),
        (Want(count=2, policy="spread"), 0xFF, 10),
        (Want(count=2, policy="spread"), 0x0F, 2),
    ],
)
def test_scores_say_how_well_it_fits(want: Want, free: int, points: int) -> None:
    assert choose(node((4, 4)), free, want).score == points


def test_nothing_left_over_is_better_than_much_left_over() -> None:
    slots = node((8,))
    there = slots[:4]
    assert score(there, there, Want(count=4)) > score(slots, there, Want(count=4)) == 6
