"""When members are told to wait."""

from __future__ import annotations

from preflight_gang.pacing import SLICE, Pace


def uids(count: int) -> list[str]:
    return [f"uid-{i}" for i in range(count)]


def test_a_new_gang_is_given_a_second_to_complete() -> None:
    pace = Pace(since=100.0)
    assert pace.turn(uids(2), 100.25) == ([], 0.75)
    assert pace.turn(uids(2), 101.0) == (uids(2), None)


def test_the_next_round_comes_five_seconds_after_the_last_began() -> None:
    pace = Pace(since=100.0)
    pace.turn(uids(2), 102.0)
    assert pace.turn(uids(1), 103.0) == ([], 4.0)
    assert pace.turn(uids(1), 107.0) == (uids(1), None)


def test_a_large_gang_is_given_more_time() -> None:
    pace = Pace(since=0.0)
    assert pace.turn(uids(4000), 1.0) == ([], 19.0)
    pace.turn(uids(4000), 20.0)
    assert pace.turn(uids(4000), 20.5)[0], "the round that has begun goes on"


def test_a_round_is_told_in_slices_and_each_member_once() -> None:
    pace, everyone = Pace(since=0.0), uids(2 * SLICE + 1)
    told: list[str] = []
    again: float | None = 0.0
    while again is not None:
        turn, again = pace.turn(everyone, 10.0)
        assert len(turn) <= SLICE
        told += turn
    assert told == everyone


def test_who_no_longer_waits_loses_its_turn() -> None:
    pace, everyone = Pace(since=0.0), uids(SLICE + 2)
    pace.turn(everyone, 10.0)
    assert pace.turn(everyone[:-1], 10.1) == ([everyone[-2]], None)
