"""Reconciles are counted by what came of them, under names that dashboards know."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import ExitStack
from types import SimpleNamespace
from typing import cast

import anyio
import pytest
from kube_world import going
from preflight_kube.client.client import Client, Fenced, KubeError
from preflight_kube.client.watch_lag import Mirrors
from preflight_kube.runtime.controller import Controller, RuntimeMetrics, show_lag
from preflight_kube.runtime.workqueue import Key, Queue
from preflight_testing.waiting import until
from prometheus_client import CollectorRegistry, Gauge

pytestmark = pytest.mark.anyio


async def test_each_reconcile_is_counted_by_its_result_and_the_queue_by_its_length() -> None:
    registry = CollectorRegistry()
    metrics, queue = RuntimeMetrics(registry), Queue("thing")
    held = anyio.Event()

    def value(metric: str, /, **labels: str) -> float | None:
        return registry.get_sample_value(metric, labels)

    def results(result: str) -> float | None:
        return value("controller_runtime_reconcile_total", controller="things", result=result)

    async def reconcile(key: Key) -> float | None:
        match key[1]:
            case "refused":
                raise KubeError("no", 403)
            case "fenced":
                raise Fenced("leadership had ended")
            case "later":
                return 3600.0
            case "held":
                await held.wait()
        return None

    async with going() as group:
        controller = Controller("things", queue, reconcile, workers=1, metrics=metrics)
        group.start_soon(controller.run)
        for name in ("done", "refused", "fenced", "later", "held"):
            queue.add(("ns", name))
        await until(lambda: results("requeue_after"), "four")
        await anyio.wait_all_tasks_blocked()
        queue.add(("ns", "waits"))
        assert value("workqueue_depth", name="things") == 1
        adds = value("workqueue_adds_total", name="things")
        assert adds is not None
        assert adds >= 6  # what was refused is added again
        held.set()
        await until(lambda: results("success") == 3, "all")
    assert results("error")
    assert [results(it) for it in ("fenced", "requeue_after")] == [1, 1]
    assert value("controller_runtime_reconcile_time_seconds_count", controller="things")
    assert value("workqueue_depth", name="things") is None


async def test_a_fault_over_one_object_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """A single worker, as more would each be stopped by it."""
    queue, done = Queue("thing"), anyio.Event()

    async def reconcile(key: Key) -> float | None:
        if key[1] == "bad":
            raise IndexError("list index out of range")
        done.set()
        return None

    async with going() as group:
        controller = Controller("things", queue, reconcile, workers=1, metrics=RuntimeMetrics())
        group.start_soon(controller.run)
        for name in ("bad", "good"):
            queue.add(("ns", name))
        with anyio.fail_after(20):
            await done.wait()
    assert "list index out of range" in caplog.text


async def test_a_controller_and_a_namespace_that_come_as_metrics_are_read_spoil_no_read() -> None:
    """They are read by a thread of their own."""
    registry = CollectorRegistry()
    metrics = RuntimeMetrics(registry)

    class Other(Queue):
        @property
        def depth(self) -> int:
            group.enter_context(metrics.shown("more", Queue("thing")))
            return super().depth

    class Ready(OrderedDict[Key, None]):
        def __len__(self) -> int:
            other.add(("another", "x"))
            return super().__len__()

    other = Other("thing")
    other._ready["ns"] = Ready({("ns", "x"): None})
    with ExitStack() as group:
        group.enter_context(metrics.shown("things", other))
        assert registry.get_sample_value("workqueue_depth", {"name": "things"}) == 1


def test_leadership_is_shown_while_it_lasts() -> None:
    registry = CollectorRegistry()
    metrics = RuntimeMetrics(registry)

    def leads() -> float | None:
        return registry.get_sample_value("leader_election_master_status", {"name": "lease"})

    own = Gauge("things_leader", "1 on the replica that leads.", registry=registry)
    with metrics.leading("lease", own):
        assert (leads(), registry.get_sample_value("things_leader")) == (1, 1)
    assert (leads(), registry.get_sample_value("things_leader")) == (0, 0)


def test_how_far_mirrors_are_behind_is_the_one_that_is_furthest_behind() -> None:
    registry, now = CollectorRegistry(), [0.0]
    mirrors = Mirrors(lambda: now[0])
    show_lag(
        "things_mirror_behind_seconds", registry, cast(Client, SimpleNamespace(mirrors=mirrors))
    )

    def behind() -> float | None:
        return registry.get_sample_value("things_mirror_behind_seconds")

    assert behind() == 0
    for since, path in ((10.0, "/api/v1/pods"), (30.0, "/api/v1/nodes")):
        now[0] = since
        mirrors.falls_behind(path, path, "refused")
    now[0] = 40.0
    assert behind() == 30
    for path in ("/api/v1/pods", "/api/v1/nodes"):
        mirrors.follows(path, path)
    assert behind() == 0
