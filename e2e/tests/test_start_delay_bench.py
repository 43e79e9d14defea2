"""The bench of a pod's start on a cluster: what it makes of logs."""

from __future__ import annotations

import pytest
from preflight_e2e.bench import start_delay
from preflight_e2e.bench.start_delay import Line, StartedPod


def test_a_log_is_read_with_the_time_of_each_line() -> None:
    [first, last] = start_delay.lines(
        "1970-01-01T00:00:02.500000123Z torch is loaded after 1.5 s\n1970-01-01T00:00:04Z ok\n"
    )
    assert first == Line(2.5, "torch is loaded after 1.5 s")
    assert last == Line(4.0, "ok")


def test_a_tools_time_is_what_the_check_says_of_it() -> None:
    assert (
        start_delay.tools_of(
            [Line(1, "x"), Line(9, "took 3.100 s; 5 run(s) of its tools: 2.750 s of that")]
        )
        == 2.75
    )


def test_of_torch_its_loading_and_its_rounds_count_once_and_not_the_wait_for_others() -> None:
    log = [
        Line(0, "fabric unknown"),
        Line(5, "torch is loaded after 4.0 s"),
        Line(9, "round 1: 1 of 2 ranks here, gloo"),
        Line(12, "here: median 3.000 ms"),
        Line(13, "nccl-allreduce: passed OK: fine"),
    ]
    assert start_delay.tools_of(log) == 4.0 + 3.0


def pod(created: float, *, own: float) -> StartedPod:
    """Three checks of a second and more, in which a tool works for one; half a second before each
    container.
    """
    checks, now = [], created + 2.0
    for _ in start_delay.CHECKS:
        checks.append(
            (
                Line(now, "begins"),
                Line(now + 1 + own, "took 1.1 s; 1 run(s) of its tools: 1.000 s of that"),
            )
        )
        now += 1 + own + 0.5
    return StartedPod(created, tuple(checks), now)


def test_what_is_added_is_neither_the_tools_nor_what_a_pod_without_checks_needs() -> None:
    checked, plain = (
        [pod(100.0 * i, own=0.25) for i in range(3)],
        [StartedPod(0.0, (), 1.5), StartedPod(10.0, (), 11.5)],
    )
    assert start_delay.added(checked, plain) == pytest.approx(0.5 + 3 * 0.25 + 3 * 0.5)
    told = start_delay.shares(checked, plain)
    assert sum(told.values()) == pytest.approx(start_delay.added(checked, plain))
    assert told["nccl-loopback, beyond its tools"] == pytest.approx(0.25)
    assert told["nccl-allreduce to the pod's own container"] == pytest.approx(0.5)
