"""ADR-026's metrics, and a few that tell how the controller itself fares."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from .kube.client import Requests

__all__ = ["Metrics"]

_SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 180, 300, 600, 900, 1800, 3600)
_GANG_SECONDS = (0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
_MAX_VALUES = 2000


class Metrics:
    """One registry. Label values come from closed sets: configured checks, outcomes, and at most 2,000 others each."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seen: dict[str, set[str]] = {}
        self.checks = Counter(
            "preflight_check", "Runs of checks by result.", ["check", "result"], registry=self.registry
        )
        self.duration = Histogram(
            "preflight_check_duration_seconds",
            "How long runs of checks took.",
            ["check"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.failures = Counter(
            "preflight_check_failures",
            "Runs of checks that failed, by node and error code.",
            ["check", "node", "error_code"],
            registry=self.registry,
        )
        self.gang_wait = Histogram(
            "preflight_gang_wait_seconds",
            "From a gang's first address to its roster, by the workload's kind and name.",
            ["workload"],
            buckets=_GANG_SECONDS,
            registry=self.registry,
        )
        self.config_errors = Counter(
            "preflight_config_errors", "What could not be read, by kind.", ["error"], registry=self.registry
        )
        self.unchecked = Gauge(
            "preflight_unchecked_pods",
            "GPU pods of opted-in namespaces that carry no checks, by what may be the reason.",
            ["namespace", "reason"],
            registry=self.registry,
        )
        self.audited = Gauge(
            "preflight_audit_timestamp_seconds", "When unchecked pods were last counted.", registry=self.registry
        )
        self.leader = Gauge("preflight_gang_leader", "1 on the replica that leads.", registry=self.registry)
        self.gangs = Gauge("preflight_gang_gangs", "Gangs with at least one member.", registry=self.registry)
        self.writes = Counter(
            "preflight_gang_writes",
            "Writes to the API server by kind and result.",
            ["kind", "result"],
            registry=self.registry,
        )

    def sent(self, requests: Requests) -> None:
        """Show what a client has sent, as it counts it itself."""

        class Sent(Collector):
            def collect(self) -> Iterator[Metric]:
                count = CounterMetricFamily(
                    "preflight_gang_requests", "Requests to the API server by verb.", labels=["verb"]
                )
                size = CounterMetricFamily(
                    "preflight_gang_sent_bytes", "Bytes of bodies sent to the API server by verb.", labels=["verb"]
                )
                for family, counted in ((count, requests.count), (size, requests.bytes)):
                    for verb, value in sorted(dict(counted).items()):
                        family.add_metric([verb], value)
                    yield family

        self.registry.register(Sent())

    def bounded(self, label: str, value: str) -> str:
        """``value``, or `other` once the label has had as many values as it may."""
        seen = self._seen.setdefault(label, set())
        if value not in seen and len(seen) >= _MAX_VALUES:
            return "other"
        seen.add(value)
        return value
