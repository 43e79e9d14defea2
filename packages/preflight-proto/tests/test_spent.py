"""Time of tools, by a clock that a test moves."""

from __future__ import annotations

from preflight_proto.check.child import Spent


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_tools_one_after_the_other_count_each_and_what_lies_between_does_not() -> None:
    clock = Clock()
    spent = Spent(clock)
    for seconds in (2.0, 3.0):
        with spent:
            clock.now += seconds
        clock.now += 10
    assert (spent.runs, spent.seconds) == (2, 5.0)


def test_tools_side_by_side_count_once() -> None:
    clock = Clock()
    spent = Spent(clock)
    with spent:
        clock.now += 1
        with spent:
            clock.now += 2
        clock.now += 1
    assert (spent.runs, spent.seconds) == (2, 4.0)


def test_a_tool_that_is_missing_takes_its_time_too() -> None:
    clock = Clock()
    spent = Spent(clock)
    try:
        with spent:
            clock.now += 1
            raise FileNotFoundError
    except FileNotFoundError:
        pass
    assert spent.seconds == 1.0
