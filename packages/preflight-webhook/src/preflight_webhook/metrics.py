"""The webhook's Prometheus metrics, under ADR-026's names."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from preflight_proto.gang_source import BUILT_IN
from preflight_proto.program import package_version
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

# A review takes some tens of microseconds; what is above a second is the machine's trouble, not
# ours.
_BUCKETS: Final = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)


_ABOUT: Final = {
    "preflight_build_info": "1; which version of which program runs.",
    "preflight_check_skipped": "Configured checks that did not apply, by reason.",
    "preflight_unseen_environment": "Pods whose envFrom may hold variables that a check would inherit, by what it names; its content is not read.",
    "preflight_webhook_bad_requests": "Requests that were not admission reviews, by status.",
    "preflight_webhook_certificate_expiry_timestamp_seconds": "When the serving certificate ends.",
    "preflight_webhook_certificate_valid": "0 while the serving certificate has expired or is not valid yet.",
    "preflight_webhook_watching": "By what is watched, 0 while it cannot be looked at: what was read last is in use.",
    "preflight_webhook_connections_closed": "Connections that were cut off, by port and reason: full, stalled, bytes (of unfinished requests).",
    "preflight_webhook_handshakes_failed": "TLS handshakes that came to nothing, by reason: certificate-refused (by clients), client-certificate, no-tls, timeout, ended.",
    "preflight_webhook_config_generation": "How many configurations have been taken since the start.",
    "preflight_webhook_config_valid": "0 while the configuration file is refused and the one before it is in use.",
    "preflight_webhook_config_refused": "Configurations that were refused.",
    "preflight_webhook_lookups": "Resource claims asked for, by result: known (no request), found, absent, failed.",
    "preflight_webhook_claims_kept": "Resource claims in memory.",
    "preflight_webhook_preflight_configs": "Namespaces in which a PreflightConfig is in force.",
    "preflight_webhook_preflight_configs_behind": "1 while PreflightConfigs cannot be read; those seen last apply.",
    "preflight_webhook_bytes": "Bytes of reviews and answers.",
    "preflight_injection": "Admission reviews. stamped: a gang's member without a check; mirror: of a static pod; no-checks-REASON and stamped-REASON where one reason left all checks out.",
    "preflight_gang_members": "Members of gangs, by what named their gang.",
    "preflight_webhook_unreadable": "Objects of the API server that were skipped as they cannot be read, by kind.",
}
_RESULTS: Final = "injected stamped unchanged no-gpu no-checks windows mirror denied"


class _Plain(Collector):
    """What is counted as plain numbers, for it is counted at every review."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        metrics = self._metrics
        latency = HistogramMetricFamily(
            "preflight_webhook_latency_seconds", "Time from a whole request to its answer."
        )
        bounds = [*map(floatToGoString, _BUCKETS), "+Inf"]
        up_to = accumulate(metrics.latencies)
        latency.add_metric([], list(zip(bounds, up_to, strict=True)), metrics.seconds)
        yield latency
        flying = (
            "Requests that wait for their body or for a resource claim; most are answered at once."
        )
        yield GaugeMetricFamily("preflight_webhook_in_flight", flying, metrics.in_flight)

        def counter(name: str, labels: list[str]) -> CounterMetricFamily:
            return CounterMetricFamily(name, _ABOUT[name], labels=labels)

        volume = {"read": metrics.bytes_read, "sent": metrics.bytes_sent}
        unreadable = {"PreflightConfig": metrics.unreadable()}
        for family, values in (
            (counter("preflight_webhook_bytes", labels=["direction"]), volume),
            (counter("preflight_injection", labels=["result"]), metrics.results),
            (counter("preflight_gang_members", labels=["source"]), metrics.members),
            (counter("preflight_webhook_unreadable", labels=["kind"]), unreadable),
        ):
            for value, number in list(values.items()):  # a scrape has a thread of its own
                family.add_metric([value], number)
            yield family


class Metrics:
    """One set of metrics with a registry of its own."""

    def __init__(self) -> None:
        # Else each has a second series: when this process began.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()

        def counter(name: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(name, _ABOUT[name], labels, registry=self.registry)

        def gauge(name: str, labels: Sequence[str] = ()) -> Gauge:
            return Gauge(name, _ABOUT[name], labels, registry=self.registry)

        program = "preflight-webhook"
        info = gauge("preflight_build_info", labels=["program", "version"])
        info.labels(program, package_version(program)).set(1)
        self.skips = counter("preflight_check_skipped", labels=["check", "reason"])
        self.unseen_environments = counter("preflight_unseen_environment", labels=["kind"])
        self.refused = counter("preflight_webhook_bad_requests", labels=["status"])
        self.certificate_expiry = gauge("preflight_webhook_certificate_expiry_timestamp_seconds")
        self.certificate_valid = gauge("preflight_webhook_certificate_valid")
        self.watching = gauge("preflight_webhook_watching", labels=["watcher"])
        self.closed = counter("preflight_webhook_connections_closed", labels=["port", "reason"])
        self.handshakes_failed = counter("preflight_webhook_handshakes_failed", labels=["reason"])
        self.config_generation = gauge("preflight_webhook_config_generation")
        self.config_valid = gauge("preflight_webhook_config_valid")
        self.config_refused = counter("preflight_webhook_config_refused")
        self.lookups = counter("preflight_webhook_lookups", labels=["result"])
        self.claims_kept = gauge("preflight_webhook_claims_kept")
        self.policies = gauge("preflight_webhook_preflight_configs")
        self.policies_behind = gauge("preflight_webhook_preflight_configs_behind")
        self.unreadable: Callable[[], int] = lambda: 0
        self.in_flight = self.bytes_read = self.bytes_sent = 0
        self.results: dict[str, int] = dict.fromkeys(_RESULTS.split(), 0)
        self.members: dict[str, int] = dict.fromkeys(BUILT_IN, 0)
        # By bucket, the last for what is above all.
        self.latencies, self.seconds = [0] * (len(_BUCKETS) + 1), 0.0
        self.registry.register(_Plain(self))

    def answered(self, _: str, result: str, seconds: float, read: int, sent: int) -> None:
        """Count a review and its bytes; ``result`` may carry its reason."""
        self.results[result] = self.results.get(result, 0) + 1
        self.latencies[bisect_left(_BUCKETS, seconds)] += 1
        self.seconds += seconds
        self.bytes_read += read
        self.bytes_sent += sent

    def failed(self, _: str) -> None:
        """Count nothing more: a review without an answer is among the refused."""

    def cut(self, port: str, reason: str) -> None:
        """Count a connection that was cut off."""
        self.closed.labels(port, reason).inc()
