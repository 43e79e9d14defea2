"""Time of tools, by a clock that a test moves."""

from __future__ import annotations

from contextlib import suppress

from preflight_proto.check.child import Spent


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_tools_one_after_the_other_count_each_and_side_by_side_once() -> None:
    clock = Clock()
    spent = Spent(clock)
    for seconds in (2.0, 3.0):
        with suppress(FileNotFoundError), spent:
            clock.now += seconds
            raise FileNotFoundError  # one that is missing takes its time too
        clock.now += 10
    assert (spent.runs, spent.seconds) == (2, 5.0)
    with spent:
        clock.now += 1
        with spent:
            clock.now += 2
        clock.now += 1
    assert (spent.runs, spent.seconds) == (4, 9.0)
