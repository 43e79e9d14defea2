"""How late a period's end is acted upon, by a clock that only passes while nobody can do anything:
the same on every machine.
"""

from __future__ import annotations

import asyncio
import selectors
import ssl
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from doubled import SINCE, condition, double, running, write_status
from leading import Leading, leads
from player import job, wrapper
from preflight_appwrapper.api.conditions import since
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import wrapper_from
from preflight_appwrapper.controller import apply, controller
from preflight_appwrapper.core.phase_context import PhaseContext, deadline
from preflight_appwrapper.core.snapshot import LeaderState, Mirrored, observe
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_kube.clock import Clock
from preflight_testing.apidouble import ApiRequest
from preflight_testing.waiting import until

WRAPPERS = 200
ROUND_TRIP = 0.15


class Selector(selectors.DefaultSelector):
    """Asks what has come, and never waits: the loop's time passes instead."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if not events and timeout is None:
            return super().select(0.01)
        if not events:
            self.passed += max(0.0, timeout or 0.0)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time is that of the timers that have rung."""

    def __init__(self) -> None:
        self.clock = Selector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.passed


def virtual(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller's wall clock is that of the loop."""

    class Virtual(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            start = datetime.fromisoformat(SINCE) + timedelta(minutes=10)
            return start + timedelta(seconds=asyncio.get_running_loop().time())

    for module in (apply, controller):
        monkeypatch.setattr(module, "datetime", Virtual)


class Slow:
    """Takes its time for each request; ``twice``: wrappers that two workers wrote at a time."""

    def __init__(self) -> None:
        self.writing: set[str] = set()
        self.twice: list[str] = []

    async def admit(self, request: ApiRequest) -> ApiRequest:
        writes = request.method in {"PUT", "DELETE"}
        name = request.path.removesuffix("/status").rpartition("/")[2]
        if writes and name in self.writing:
            self.twice.append(name)
        if writes:
            self.writing.add(name)
        await asyncio.sleep(ROUND_TRIP)
        self.writing.discard(name)
        return request


async def reset(namespaces: int, failing: float) -> Leading:
    """200 workloads whose pods all fail within ``failing`` seconds, until each has been reset."""
    async with double() as api:
        for i in range(WRAPPERS):
            running(api, f"w-{i}", namespace=f"ns-{i % namespaces}")
        slow = Slow()
        api.admit = slow.admit
        target = Connection(api.url, ssl.create_default_context())
        clock = Clock(asyncio.get_running_loop().time)
        ours = Client(target, agent="tests", clock=clock)
        async with leads(target, client=ours) as leading:
            await until(
                lambda: leading.counted("appwrapper_look_seconds_count") >= WRAPPERS, "all looks"
            )
            for i in range(WRAPPERS):
                await asyncio.sleep(failing / WRAPPERS)
                write_status(api, "pods", f"ns-{i % namespaces}", f"w-{i}", {"phase": "Failed"})
            await until(
                lambda: leading.counted("appwrapper_lateness_seconds_count") >= WRAPPERS,
                "all resets",
                600,
            )
            assert slow.twice == []
            return leading


@pytest.mark.parametrize(("namespaces", "failing"), [(1, 0.0), (10, 1.0), (200, 3.0)])
def test_of_200_workloads_whose_grace_ends_in_the_same_seconds_99_in_100_are_reset_within_2_s(
    monkeypatch: pytest.MonkeyPatch, namespaces: int, failing: float
) -> None:
    virtual(monkeypatch)
    options = {"loop_factory": VirtualLoop}
    leading = anyio.run(reset, namespaces, failing, backend_options=options)
    late = leading.counted("appwrapper_lateness_seconds_count") - leading.counted(
        "appwrapper_lateness_seconds_bucket", le="2.0"
    )
    assert late <= WRAPPERS / 100


def test_a_period_ends_with_the_fraction_that_this_leader_knows_and_else_a_second_later() -> None:
    whole = datetime(2026, 1, 1, tzinfo=UTC)
    exact = whole + timedelta(milliseconds=300)
    assert deadline(whole, 60) == whole + timedelta(seconds=61)
    assert deadline(exact, 60) == exact + timedelta(seconds=60)
    assert deadline(whole, 0) == whole


def test_what_this_leader_sees_in_the_very_second_counts_from_then_and_is_written_as_it_was() -> (
    None
):
    at = datetime.fromisoformat(SINCE)
    raw = wrapper(job())
    raw["status"] = {
        "phase": "Running",
        "conditions": [condition("ResourcesDeployed", "True"), condition("Unhealthy", "True")],
    }
    before, memory = wrapper_from(raw), LeaderState(uid="wrapper-uid")

    def used(seconds: float) -> PhaseContext:
        now = at + timedelta(seconds=seconds)
        seen = observe(before, Mirrored(complete=True), memory, suffix="x", now=now, clock=seconds)
        return PhaseContext.of(before, seen, WrapperRules(), now)

    for seconds in (0.25, 0.75, 3000.0):
        context = used(seconds)
        assert context.since(context.status, "Unhealthy") == at + timedelta(seconds=0.25)
        assert context.status == before.status
        moved = context.put(context.status, "Unhealthy", False, "FoundNoFailedPods")
        assert since(moved, "Unhealthy") == at + timedelta(seconds=int(seconds))
    memory.first_seen.clear()
    context = used(1.5)
    assert context.since(context.status, "Unhealthy") == at
