"""The controller's metrics, under the names of NVIDIA's driver where that has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from preflight_kube.client.client import Requests
from preflight_kube.client.watch_lag import Mirrors
from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

__all__ = ["ControllerMetrics"]


class _Counted(Collector):
    """Figures that somebody else keeps, asked for at each scrape."""

    def __init__(
        self, requests: Requests, mirrors: Mirrors, statuses: Callable[[], Mapping[str, int]]
    ) -> None:
        self._requests, self._mirrors, self._statuses = requests, mirrors, statuses

    def collect(self) -> Iterator[Metric]:
        domains = GaugeMetricFamily(
            "nvidia_dra_compute_domain_info",
            "ComputeDomains by the status that they show.",
            labels=["status"],
        )
        for status, count in sorted(self._statuses().items()):
            domains.add_metric([status], count)
        yield domains
        sent = CounterMetricFamily(
            "compute_domain_requests", "Requests to the API server.", labels=["verb"]
        )
        for verb, count in sorted(dict(self._requests.count).items()):
            sent.add_metric([verb], count)
        yield sent
        behind = GaugeMetricFamily(
            "compute_domain_behind",
            "1 while the mirror of a collection is behind.",
            labels=["path"],
        )
        for path, seconds in sorted(self._mirrors.behind().items()):
            behind.add_metric([path], 1 if seconds else 0)
        yield behind


class ControllerMetrics:
    """One set a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leader = Gauge(
            "compute_domain_leader", "1 on the replica that leads.", registry=self.registry
        )
        self.actions = Counter(
            "compute_domain_actions", "What was done, by kind.", ["action"], registry=self.registry
        )
        self.conflicts = Gauge(
            "compute_domain_template_conflicts",
            "ComputeDomains whose template's name is taken by something else.",
            registry=self.registry,
        )

        self.shared = Gauge(
            "compute_domain_shared_cliques",
            "NVLink cliques in which more than one ComputeDomain is active.",
            registry=self.registry,
        )

    def show(
        self, requests: Requests, mirrors: Mirrors, statuses: Callable[[], Mapping[str, int]]
    ) -> None:
        """Have what others count shown, too."""
        self.registry.register(_Counted(requests, mirrors, statuses))
