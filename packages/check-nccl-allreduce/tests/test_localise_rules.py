"""What measurements must be for a rule to hold: whom a node meets and when, what a disturbed round
says, and which rules stand in the way.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from allreduce_testing.worlds.faults import Kinds, Pauses, SickNode
from allreduce_testing.worlds.simulation import play, play_staged, simulate
from allreduce_testing.worlds.staged import known
from allreduce_testing.worlds.stages import StagedFabric, StagedWorld
from check_nccl_allreduce.localise import (
    APART,
    Grade,
    Phase,
    Probe,
    Result,
    Role,
    Round,
    next,
)
from check_nccl_allreduce.localise.evidence import Evidence
from check_nccl_allreduce.localise.silence import halved
from check_nccl_allreduce.localise.witness import Court
from leaf_gangs import gang, ok


def behind(switches: int) -> Callable[[int], str]:
    return lambda i: f"d{i * 31 % switches}"


@pytest.mark.parametrize("seed", range(20))
def test_nobody_meets_the_same_partner_twice_where_the_first_matching_shows_that_labels_lie(
    seed: int,
) -> None:
    state = gang(8, behind(3), seed=seed)
    first = next(state)
    assert isinstance(first, Round)
    # Behind three switches, and not as the labels say.
    answers = [
        ok(latency=(18e-6 if probe.members[0] // 3 == probe.members[1] // 3 else 19e-6))
        for probe in first.probes
    ]
    second = next(state.after(first, answers, 5.0))
    assert isinstance(second, Round)
    assert second.phase is Phase.MATCH
    assert not {p.members for p in first.probes} & {p.members for p in second.probes}


@pytest.mark.parametrize(
    "world",
    [
        *(
            StagedWorld(f"labels {word}", (SickNode((1, 3)),), 40, nodes=(8, 72), labels=(word,))
            for word in ("true", "stale", "absent", "shuffled", "coarse")
        ),
        known("drift", SickNode((1, 3)), gangs=40, nodes=(8, 72), drift=0.03),
        known(
            "two generations",
            Kinds((1 / 2,), (12, 12), visible=True),
            SickNode((1, 3)),
            gangs=40,
            nodes=(24, 24),
        ),
    ],
    ids=lambda world: world.name,
)
def test_whatever_labels_say_nobody_healthy_is_blamed_and_who_is_bad_is_named(
    world: StagedWorld,
) -> None:
    tally = simulate([world])[world.name]
    assert tally.healthy_blamed == 0
    assert tally.bad_named >= 0.98 * tally.bad


@pytest.mark.parametrize("seed", range(10))
def test_after_the_first_hairpins_every_confirmation_waits_for_another_moment(seed: int) -> None:
    sick = {1, 2, 3}

    def measure(one: Round) -> list[Result]:
        return [ok(0.5 if sick & set(probe.members) else 1.0) for probe in one.probes]

    _, state = play(gang(9, lambda _: None, seed=seed), measure)
    phases = [played.round.phase for played in state.rounds]
    assert Phase.HAIRPIN in phases[:4]
    first = max(
        min(
            p.at
            for p, probe in ((p, q) for p in state.rounds for q in p.round.probes)
            if one in probe.members
        )
        for one in sick
    )
    after = [
        p for p in state.rounds[phases.index(Phase.HAIRPIN) :] if p.round.phase is Phase.CONFIRM
    ]
    assert after
    assert all(p.at >= first + APART for p in after)


def disturbed(accused: float, controls: tuple[float, ...]) -> Grade:
    """How an edge of node 0 is graded in a round whose controls were slow."""
    state = gang(12, lambda _: None)
    for _ in range(2):
        step = next(state)
        assert isinstance(step, Round)
        state = state.after(
            step, [ok(0.5 if 0 in probe.members else 1.0) for probe in step.probes], 5.0
        )
    pairs = [(a, a + 1) for a in range(2, 11, 2)]
    probes = [
        Probe((0, 1), Role.ACCUSED),
        *(Probe(pair, Role.CONTROL) for pair in pairs[: len(controls)]),
    ]
    state = state.after(
        Round(4, Phase.CONFIRM, tuple(probes)), [ok(accused), *map(ok, controls)], 60.0
    )
    return [e.grade for e in Evidence(state).edges if e.role is Role.ACCUSED][-1]


def test_a_round_with_slow_controls_accuses_only_who_is_slow_even_beside_the_slowest_of_them() -> (
    None
):
    assert disturbed(0.50, (0.87, 0.76, 0.80)) is Grade.BAD
    assert (
        disturbed(0.63, (0.87, 0.76, 0.80)) is Grade.NONE
    )  # below 80 % of normal, and not of the slowest control


def test_a_control_that_is_slower_than_drift_explains_makes_its_round_say_nothing() -> None:
    assert disturbed(0.50, (0.84,)) is Grade.BAD
    assert disturbed(0.30, (0.60,)) is Grade.NONE
    assert disturbed(0.30, (0.87, 0.60, 0.80)) is Grade.NONE


def test_equally_slow_suspects_keep_together_and_two_are_measured_apart() -> None:
    shares = {0: 0.3, 1: 0.46, 2: 0.47, 3: 0.6, 4: 0.5, 5: 0.5}
    assert halved([0] * 6, [0, 1, 2, 3], shares) == [1, 2]
    assert halved([0] * 6, [4, 5], shares) == [4]
    assert halved([0] * 6, [0, 1, 3], shares) == [0, 3]
    assert halved([0, 0, 1, 1, 1, 1], [0, 1, 2, 3], shares) == [0, 2]


def test_labels_clear_nobody_of_slowing_others_until_latencies_bear_them_out() -> None:
    state = gang(24, behind(6))
    first = next(state)
    assert isinstance(first, Round)
    untold = Evidence(state.after(first, [ok() for _ in first.probes], 5.0)).map
    assert max(untold.domain) > 0
    assert set(untold.seen) == {-1}
    where = untold.domain
    tiers = [ok(latency=18e-6 if where[a] == where[b] else 19e-6) for (a, b), *_ in first.probes]
    state = state.after(first, tiers, 5.0)
    second = next(state)
    assert isinstance(second, Round)
    tiers = [ok(latency=18e-6 if where[a] == where[b] else 19e-6) for (a, b), *_ in second.probes]
    told = Evidence(state.after(second, tiers, 10.0)).map
    assert told.seen == told.domain


def test_where_more_are_suspected_than_cleared_they_are_asked_about_themselves_before_a_third_matching() -> (
    None
):
    fabric = StagedFabric(known("pause frames", Pauses(), nodes=(12, 72), leaves=(8, 16)), 6)
    verdict, state = play_staged(fabric)
    assert [played.round.phase for played in state.rounds][:4] == [
        Phase.MATCH,
        Phase.MATCH,
        Phase.HAIRPIN,
        Phase.SILENCE,
    ]
    assert set(verdict.blamed) <= fabric.truth.blamable


@pytest.mark.parametrize(
    ("to_itself", "rules"), [(0.6, ()), (1.0, ("good to itself", "not bad to itself"))]
)
def test_the_rules_between_a_suspect_and_blame_are_told(
    to_itself: float, rules: tuple[str, ...]
) -> None:
    def measure(one: Round) -> list[Result]:
        return [
            ok(1.0 if 2 not in p.members else to_itself if p.role is Role.HAIRPIN else 0.6)
            for p in one.probes
        ]

    verdict, state = play(gang(12, behind(2)), measure)
    found = {rule.name for rule in Court(state).obstacles[2]}
    assert set(rules) <= found
    assert (2 in verdict.blamed) is not bool(found)
