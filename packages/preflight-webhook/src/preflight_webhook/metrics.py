"""The webhook's Prometheus metrics, under ADR-026's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .sources import SOURCES

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
# A review takes some tens of microseconds; what is above a second is the machine's trouble, not ours.
_BUCKETS: Final = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)


class _Plain(Collector):
    """What is counted as plain numbers, for it is counted at every review."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        flying = GaugeMetricFamily(
            "preflight_webhook_in_flight", "Requests that wait for their body or for a resource claim."
        )
        flying.add_metric([], self._metrics.in_flight)
        yield flying
        volume = CounterMetricFamily("preflight_webhook_bytes", "Bytes of reviews and answers.", labels=["direction"])
        volume.add_metric(["read"], self._metrics.bytes_read)
        volume.add_metric(["sent"], self._metrics.bytes_sent)
        yield volume


class Metrics:
    """One set of metrics with a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.injections = Counter(
            "preflight_injection", "Admission reviews by what was decided.", ["result"], registry=self.registry
        )
        self.skips = Counter(
            "preflight_check_skipped",
            "Checks that were not injected, by reason.",
            ["check", "reason"],
            registry=self.registry,
        )
        self.unseen_environments = Counter(
            "preflight_unseen_environment",
            "Pods whose envFrom may hold variables that a check would inherit, by what it names; its content is not read.",
            ["kind"],
            registry=self.registry,
        )
        self.rejected = Counter(
            "preflight_webhook_bad_requests",
            "Requests that were no admission review, by status.",
            ["status"],
            registry=self.registry,
        )
        self.latency = Histogram(
            "preflight_webhook_latency_seconds",
            "Time from a whole request to its answer.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.certificate_expiry = Gauge(
            "preflight_webhook_certificate_expiry_timestamp_seconds",
            "When the serving certificate ends.",
            registry=self.registry,
        )
        self.config_generation = Gauge(
            "preflight_webhook_config_generation",
            "How many configurations have been taken since the start.",
            registry=self.registry,
        )
        self.config_valid = Gauge(
            "preflight_webhook_config_valid",
            "0 while the configuration file holds one that was refused; the one before it holds.",
            registry=self.registry,
        )
        self.config_refused = Counter(
            "preflight_webhook_config_refused", "Configurations that were refused.", registry=self.registry
        )
        self.in_flight = 0
        self.bytes_read = self.bytes_sent = 0
        self.registry.register(_Plain(self))
        self.lookups = Counter(
            "preflight_webhook_lookups",
            "Resource claims asked for, by result: known (no request), found, absent, failed.",
            ["result"],
            registry=self.registry,
        )
        self.claims_kept = Gauge("preflight_webhook_claims_kept", "Resource claims in memory.", registry=self.registry)
        self.policies = Gauge(
            "preflight_webhook_preflight_configs",
            "Namespaces in which a PreflightConfig is in force.",
            registry=self.registry,
        )
        self.policies_behind = Gauge(
            "preflight_webhook_preflight_configs_behind",
            "1 while PreflightConfigs cannot be read; those seen last hold.",
            registry=self.registry,
        )
        self.members = Counter(
            "preflight_gang_members", "Members of gangs, by what told their gang.", ["source"], registry=self.registry
        )
        results = ("injected", "stamped", "unchanged", "no-gpu", "no-checks", "windows", "denied")
        self._results: dict[str, Counter] = {result: self.injections.labels(result) for result in results}
        self._sources = {source: self.members.labels(source) for source in SOURCES}

    def decided(self, result: str, seconds: float) -> None:
        if (counter := self._results.get(result)) is None:  # one with its reason
            counter = self._results[result] = self.injections.labels(result)
        counter.inc()
        self.latency.observe(seconds)

    def stamped(self, source: str) -> None:
        if (counter := self._sources.get(source)) is None:  # one of the configuration's
            counter = self._sources[source] = self.members.labels(source)
        counter.inc()

    def unseen(self, kinds: Iterable[str]) -> None:
        for kind in kinds:
            self.unseen_environments.labels(kind).inc()

    def text(self) -> bytes:
        """The exposition for `/metrics`."""
        return generate_latest(self.registry)
