"""When members are told to wait."""

from __future__ import annotations

from preflight_gang.core.waiting import ANSWERS, AnswerPace


def uids(count: int, *, new: bool = False) -> dict[str, bool]:
    return {f"uid-{i}": new for i in range(count)}


def test_a_new_gang_is_given_a_second_to_complete() -> None:
    pace = AnswerPace(since=100.0)
    assert pace.turn(uids(2, new=True), 100.25) == ([], 0.75)
    assert pace.turn(uids(2, new=True), 101.0) == (["uid-0", "uid-1"], None)


def test_who_has_heard_hears_again_five_seconds_after_the_last_round() -> None:
    pace = AnswerPace(since=100.0)
    pace.turn(uids(2, new=True), 102.0)
    assert pace.turn(uids(2), 103.0) == ([], 4.0)
    assert pace.turn(uids(2), 107.0) == (["uid-0", "uid-1"], None)


def test_who_has_not_heard_is_told_at_once_after_the_first_second() -> None:
    pace = AnswerPace(since=100.0)
    pace.turn(uids(1, new=True), 102.0)
    assert pace.turn({"uid-0": False, "uid-1": True}, 103.0) == (["uid-1"], 4.0)


def test_a_large_gang_is_given_more_time() -> None:
    pace = AnswerPace(since=0.0)
    assert pace.turn(uids(4000, new=True), 1.0) == ([], 19.0)


def test_a_round_is_told_in_slices_and_each_member_once() -> None:
    for heard in (True, False):
        pace, waiting = AnswerPace(since=0.0), uids(2 * ANSWERS + 1, new=not heard)
        published: list[str] = []
        again: float | None = 0.0
        while again == 0.0:
            turn, again = pace.turn(waiting, 10.0)
            assert len(turn) <= ANSWERS
            published += turn
            waiting |= dict.fromkeys(turn, False)
        assert published == list(waiting)


def test_who_no_longer_waits_loses_its_turn() -> None:
    pace, waiting = AnswerPace(since=0.0), uids(ANSWERS + 2)
    pace.turn(waiting, 10.0)
    gone = list(waiting)[-1]
    del waiting[gone]
    turn, _ = pace.turn(waiting, 10.1)
    assert turn == [f"uid-{ANSWERS}"]
