"""Reconciles what a queue has, and counts it under controller-runtime's and client-go's own names,
so that dashboards made for these work.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import anyio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from preflight_kube.client.client import Client
from preflight_kube.errors import Fenced, KubeError
from preflight_kube.logs import get_logger
from preflight_kube.runtime.lease import Leadership
from preflight_kube.runtime.reflector import Reflector
from preflight_kube.runtime.workqueue import Key, Queue

T = TypeVar("T")

log = get_logger(__name__)

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)


class Collected(Collector):
    """Metrics that ``collect`` makes when somebody asks."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        """What there is now."""
        return self._collect()


def show_lag(name: str, registry: CollectorRegistry, client: Client) -> None:
    """Show in ``registry``, as the metric ``name``, for how long a mirror of ``client`` has been
    behind.
    """
    Gauge(
        name,
        "For how long the mirror that is furthest behind has been; 0 where none is.",
        registry=registry,
    ).set_function(lambda: max(client.mirrors.behind().values(), default=0.0))


class RuntimeMetrics:
    """What the kit counts of a process, in ``registry``; by default one that has nothing else."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry = CollectorRegistry() if registry is None else registry
        self._queues: dict[str, Queue] = {}
        self._client: Client | None = None
        self.reconciles = Counter(
            "controller_runtime_reconcile",
            "Reconciles, by what came of them.",
            ["controller", "result"],
            registry=registry,
        )
        self.seconds = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "From the beginning of a reconcile to its end.",
            ["controller"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._leader = Gauge(
            "leader_election_master_status",
            "1 on the replica that leads.",
            ["name"],
            registry=registry,
        )
        registry.register(Collected(self._now))

    def sends(self, client: Client) -> None:
        """Show what ``client`` sends from now on."""
        self._client = client

    @contextmanager
    def leading(self, name: str, *own: Gauge) -> Iterator[None]:
        """Show that this replica leads, as long as it does. ``own``: the service's own gauge of
        it, where dashboards know one.
        """
        gauges = (self._leader.labels(name), *own)
        for gauge in gauges:
            gauge.set(1)
        try:
            yield
        finally:
            for gauge in gauges:
                gauge.set(0)

    @contextmanager
    def shown(self, name: str, queue: Queue) -> Iterator[None]:
        """Show a queue as long as it is worked on."""
        self._queues[name] = queue
        try:
            yield
        finally:
            del self._queues[name]

    def _now(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily(
            "workqueue_depth", "Things that wait for a reconcile.", labels=["name"]
        )
        adds = CounterMetricFamily(
            "workqueue_adds", "Things that were put into the queue.", labels=["name"]
        )
        for name, queue in list(self._queues.items()):  # read by another thread
            depth.add_metric([name], queue.depth)
            adds.add_metric([name], queue.adds)
        requests = CounterMetricFamily(
            "rest_client_requests", "Requests to the API server.", labels=["verb"]
        )
        if self._client is not None:
            for verb, value in sorted(dict(self._client.requests.count).items()):
                requests.add_metric([verb], value)
        yield from (depth, adds, requests)


class Controller:
    """``workers`` at a time take keys from ``queue``. ``reconcile`` returns the seconds after which
    to do it again, or None; what raises a KubeError is done again ever later, as the queue has it.
    So is what raises anything else: a fault over one object stops no other.
    """

    def __init__(
        self,
        name: str,
        queue: Queue,
        reconcile: Callable[[Key], Awaitable[float | None]],
        *,
        workers: int,
        metrics: RuntimeMetrics,
    ) -> None:
        self._name, self._queue, self._do = name, queue, reconcile
        self._workers, self._metrics = workers, metrics

    async def run(self) -> None:
        """Reconcile until cancelled."""
        with self._metrics.shown(self._name, self._queue):
            async with anyio.create_task_group() as group:
                for _ in range(self._workers):
                    group.start_soon(self._queue.work, self._reconcile)

    async def _reconcile(self, key: Key) -> float | None:
        started, result = time.monotonic(), "error"
        try:
            again = await self._do(key)
            result = "success" if again is None else "requeue_after"
        except Fenced:
            result = "fenced"
            raise
        except KubeError:
            raise
        except Exception as fault:
            log.exception("fault of this program", controller=self._name, key="/".join(key))
            raise KubeError(f"a fault of this program: {type(fault).__name__}") from None
        finally:
            self._metrics.reconciles.labels(self._name, result).inc()
            self._metrics.seconds.labels(self._name).observe(time.monotonic() - started)
        return again


def leads(
    kind: str,
    of: Reflector[T],
    queue: Queue,
    reconcile: Callable[[Client, T], Awaitable[float | None]],
    *,
    client: Client,
    metrics: RuntimeMetrics,
    workers: int = 4,
) -> Callable[[Leadership], Awaitable[None]]:
    """``Parts.lead`` of a service with one controller: whoever leads reconciles every object of
    the mirror ``of``, which has the index ``name``, then those whose keys ``queue`` has.
    ``reconcile`` writes by the client that it is given, which sends nothing once the leadership has
    ended; what is gone is not reconciled.
    """

    async def work(fenced: Client, key: Key) -> float | None:
        item = of.newest("name", "/".join(key))
        return None if item is None else await reconcile(fenced, item)

    async def lead(leadership: Leadership) -> None:
        do = partial(work, client.fenced(leadership.valid))
        with metrics.leading(kind):
            await Controller(kind, queue, do, workers=workers, metrics=metrics).run()

    def everything() -> Iterator[Key]:
        for name in of.values("name"):
            namespace, _, own = name.rpartition("/")
            yield namespace, own

    queue.everything = everything
    metrics.sends(client)
    return lead
