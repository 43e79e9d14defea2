"""Gangs of two nodes: which of them is blamed, and by what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from check_nccl_allreduce.control.rounds import ProbeRound, Probes
from check_nccl_allreduce.localise import (
    APART,
    FATAL,
    MAX_ROUNDS,
    Endpoint,
    Kind,
    Local,
    Phase,
    Result,
    Role,
    Round,
    State,
    Status,
    Verdict,
    Zone,
    next,
)
from check_nccl_allreduce.probing import LONGER, EndpointMap, last_start
from leaf_gangs import DOWN, NORMAL

SECONDS = 5.0
HAIRPIN = 50.0
Share = Callable[[int, float], float]
"""What a node's adapter does to itself, of normal, by its position and the time."""


def played(
    adapter: Share,
    path: float = 1.0,
    ends: tuple[Endpoint, Endpoint] | None = None,
    zone: Zone = Zone.BELOW,
) -> tuple[Verdict, list[Round]]:
    """A pair is as fast as the slowest of both adapters and the path between them."""
    ends = ends or ends_of()
    now, rounds = 0.0, []

    def pair() -> float:
        return NORMAL * min(path, adapter(0, now), adapter(1, now))

    state = State(ends, 7).after_gang(zone, pair())
    while isinstance(step := next(state, now), Round):
        now += step.wait + SECONDS
        answers = [
            HAIRPIN * adapter(probe.members[0], now) if probe.role is Role.HAIRPIN else pair()
            for probe in step.probes
        ]
        state = state.after(step, [Result(Status.OK, one) for one in answers], now)
        rounds.append(step)
    return step, rounds


def ends_of(down: int | None = None) -> tuple[Endpoint, Endpoint]:
    """Two nodes of one kind, a port of one of which is down."""
    a, b = (
        Endpoint(name, "H100/8", pair_floor=80.0, local=Local((DOWN,)) if i == down else Local())
        for i, name in enumerate("ab")
    )
    return a, b


def slow_inside(bad: int, share: float = 0.4, until: float = 1e9) -> Share:
    return lambda one, now: share if one == bad and now < until else 1.0


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 0.7])
def test_the_one_that_is_slow_to_itself_and_whose_device_says_why_is_blamed(
    bad: int, share: float
) -> None:
    verdict, rounds = played(slow_inside(bad, share))
    assert (verdict.kind, verdict.fatal_for, verdict.named) == (Kind.PAIR, (), (bad,))
    verdict, rounds = played(slow_inside(bad, share), ends=ends_of(bad))
    assert (verdict.kind, verdict.fatal_for, verdict.named) == (Kind.NODE, (bad,), (bad,))
    [suspect] = verdict.suspects
    assert suspect.score is not None
    assert (suspect.score.noise >= FATAL, suspect.score.kinds) == (True, ("path", "local"))
    assert verdict.rounds <= MAX_ROUNDS
    assert sum(one.wait for one in rounds) <= APART


def test_where_both_are_fast_to_themselves_the_path_is_slow_and_nobody_is_blamed() -> None:
    verdict, rounds = played(lambda *_: 1.0, path=0.4)
    assert (verdict.kind, verdict.fatal_for, verdict.named) == (Kind.PAIR, (), (0, 1))
    assert [one.phase for one in rounds] == [Phase.HAIRPIN]


def test_where_both_are_slow_to_themselves_nobody_is_blamed() -> None:
    verdict, _ = played(lambda *_: 0.4)
    assert (verdict.kind, verdict.fatal_for, verdict.named) == (Kind.PAIR, (), (0, 1))


def test_one_that_was_busy_for_40_seconds_is_not_blamed() -> None:
    verdict, _ = played(slow_inside(1, until=40.0))
    assert (verdict.kind, verdict.fatal_for) == (Kind.PAIR, ())


def test_a_pair_that_is_well_when_it_is_measured_again_blames_nobody() -> None:
    """Its adapter is slow again as it is measured to itself."""
    again = SECONDS + APART + SECONDS
    verdict, _ = played(lambda one, now: 0.4 if one == 1 and now != again else 1.0)
    assert (verdict.fatal_for, verdict.named) == ((), (1,))


@pytest.mark.parametrize("other", [0, 1])
def test_who_carried_somebody_elses_bytes_is_busy_and_the_gang_is_not_judged(other: int) -> None:
    ends = list(ends_of(1))
    ends[other] = replace(ends[other], local=Local((), silence=50.0, foreign=9.0))
    verdict, _ = played(slow_inside(1), ends=(ends[0], ends[1]))
    assert (verdict.kind, verdict.inconclusive, verdict.fatal_for) == (Kind.BUSY, True, ())
    assert set(verdict.named) >= {other}
    assert f"{'ab'[other]} (9 GB/s" in verdict.reason


def test_what_is_little_of_a_pairs_floor_does_not_explain_a_pair_that_is_far_below_it() -> None:
    ends = [replace(end, local=Local((), silence=50.0, foreign=0.5)) for end in ends_of()]
    verdict, _ = played(lambda *_: 1.0, path=0.05, ends=(ends[0], ends[1]))
    assert (verdict.kind, verdict.inconclusive) == (Kind.PAIR, False)


def test_nodes_of_one_nvlink_domain_meet_over_it_so_that_a_slow_adapter_does_not_explain_their_pair() -> (
    None
):
    ends = (
        Endpoint("a", "GB200/4", nvlink="c1.1", local=Local((DOWN,))),
        Endpoint("b", "GB200/4", nvlink="c1.1"),
    )
    verdict, _ = played(slow_inside(0), ends=ends)
    assert (verdict.fatal_for, verdict.named) == ((), (0,))


def test_nodes_with_different_adapters_are_not_compared() -> None:
    ends = (Endpoint("a", "H100/8", nic="8x200"), Endpoint("b", "H100/8", nic="8x400"))
    verdict, _ = played(slow_inside(0), ends=ends)
    assert (verdict.kind, verdict.fatal_for) == (Kind.PAIR, ())


def test_a_gang_that_is_not_below_its_floor_has_nobody_blamed() -> None:
    verdict, _ = played(slow_inside(0), zone=Zone.BETWEEN)
    assert (verdict.fatal_for, verdict.fails) == ((), False)


@pytest.mark.parametrize(("ends", "rounds"), [(2, 3), (3, 6)])
def test_a_second_look_waits_as_long_as_there_is_time_for_the_rounds_that_can_follow(
    ends: int, rounds: int
) -> None:
    """Two endpoints have three rounds more after their first hairpins, never six."""
    shape = EndpointMap(
        tuple(Endpoint(str(one)) for one in range(ends)), tuple((one,) for one in range(ends))
    )
    first = ProbeRound(Probes(2, (), {}, Round(2, Phase.HAIRPIN, ())), took=4.0)
    assert last_start(shape, [first], 10.0, 100.0) == pytest.approx(110.0 - rounds * LONGER * 4.0)
