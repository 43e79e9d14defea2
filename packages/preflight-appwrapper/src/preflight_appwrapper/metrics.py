"""The controller's metrics for Prometheus."""

from __future__ import annotations

from collections import Counter as TotalOf
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from preflight_kube.client.client import Client
from preflight_kube.runtime.controller import Collected, RuntimeMetrics, show_lag
from preflight_proto.program import package_version
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily

from preflight_appwrapper.api.conditions import DELETING, HELD, find, is_true
from preflight_appwrapper.api.types import DEPLOYED, PHASES, AppWrapperStatus

_DELETION = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 3600)
_LOOK = (0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.002, 0.005, 0.01, 0.1)
_LATENESS = (0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """In a registry of its own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self.runtime = RuntimeMetrics(registry)
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        transitions = "Transitions of wrappers, by the phase they came to."
        self.phases = counter("appwrapper_phase", transitions, ["namespace", "phase"])
        self.resets = counter(
            "appwrapper_resets", "Resets, by why and by whether they count.", ["reason", "counted"]
        )
        left = "From the beginning of a deletion to the moment at which nothing is left."
        self.deletion = histogram(
            "appwrapper_deletion_seconds", left, ["forced"], buckets=_DELETION
        )
        late = "From the end of a period to the write that acted on it."
        self.lateness = histogram("appwrapper_lateness_seconds", late, buckets=_LATENESS)
        spent = "CPU time that it takes to see one wrapper with its pods and to decide."
        self.looks = histogram("appwrapper_look_seconds", spent, buckets=_LOOK)
        self.writes = counter("appwrapper_writes", "Writes by kind and result.", ["kind", "result"])
        held = "Nodes that the brake keeps from being marked, of the node labeler."
        self.nodes_held = gauge("appwrapper_nodes_held", held)
        self.leader = gauge("appwrapper_leader", "1 on the replica that leads.")
        build = gauge("appwrapper_build_info", "1, with the version.", ["version"])
        build.labels(package_version("preflight-appwrapper")).set(1)
        self.statuses: Callable[[], Iterable[AppWrapperStatus]] = tuple
        """Those of all wrappers, as the controller knows them."""
        registry.register(Collected(self._current))

    def event(self, result: str) -> None:
        """Count what became of an Event."""
        self.writes.labels("event", result).inc()

    def _current(self) -> Iterator[Metric]:
        """Count what the wrappers' statuses say, when somebody asks."""
        counted, held, moved, blocked = TotalOf[str](), 0, 0, 0
        for status in self.statuses():
            counted[status.phase] += 1
            held += is_true(status, HELD)
            deleting = find(status, DELETING)
            blocked += deleting is not None and deleting.status == "True" and bool(deleting.message)
            if status.phase in DEPLOYED:  # what has ended is not moved any more
                moved = max(moved, status.migration_count)
        family = GaugeMetricFamily("appwrapper_current", "Wrappers by phase.", labels=["phase"])
        for phase in PHASES:
            family.add_metric([phase or "New"], counted[phase])
        yield family
        force = "Wrappers of which even force could not delete everything."
        yield GaugeMetricFamily("appwrapper_deletion_blocked", force, blocked)
        yield GaugeMetricFamily(
            "appwrapper_evacuations_held", "Wrappers whose evacuation the brake has wait.", held
        )
        yield GaugeMetricFamily(
            "appwrapper_evacuations_in_a_row",
            "Evacuations in a row of the wrapper that has had the most.",
            moved,
        )

    def follow(self, client: Client) -> None:
        """Show what ``client`` sends, and how far what it mirrors is behind the cluster."""
        self.runtime.sends(client)
        show_lag("appwrapper_mirror_behind_seconds", self.registry, client)
