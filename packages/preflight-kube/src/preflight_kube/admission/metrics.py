"""Metrics of an admission port: reviews, connections, the certificate."""

from __future__ import annotations

from functools import cache
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class ReviewMetrics(Protocol):
    """What reviews are counted with."""

    refused: Counter
    """Requests that were not reviews, by HTTP status."""

    def answered(self, path: str, result: str, seconds: float, read: int, sent: int) -> None:
        """Count a review that was answered; ``read`` and ``sent`` are bytes."""

    def failed(self, path: str) -> None:
        """Count a review to which there is no answer."""


class AdmissionMetrics:
    """Every name begins with ``prefix``. Values of labels come from closed sets: paths of
    applications, results, reasons.
    """

    def __init__(self, prefix: str, registry: CollectorRegistry) -> None:
        self.reviews = Counter(
            f"{prefix}_admission_reviews",
            "Admission reviews, by path and by what was answered: allowed, patched, denied, failed.",
            ["path", "result"],
            registry=registry,
        )
        self.seconds = Histogram(
            f"{prefix}_admission_seconds",
            "Time from a whole review to its answer, by path.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.refused = Counter(
            f"{prefix}_admission_refused",
            "Requests that were not reviews, by HTTP status.",
            ["status"],
            registry=registry,
        )
        self.handshakes_failed = Counter(
            f"{prefix}_admission_handshakes_failed",
            "TLS handshakes that failed, by reason.",
            ["reason"],
            registry=registry,
        )
        self.connections_cut = Counter(
            f"{prefix}_admission_connections_cut",
            "Connections that were cut off, by reason.",
            ["reason"],
            registry=registry,
        )
        self.certificate_expiry = Gauge(
            f"{prefix}_admission_certificate_expiry_seconds",
            "When the serving certificate expires, in seconds since the epoch.",
            registry=registry,
        )
        # Looking a child up by its labels costs as much as counting.
        self._seconds_of, self._reviews_of = cache(self.seconds.labels), cache(self.reviews.labels)

    def answered(self, path: str, result: str, seconds: float, read: int, sent: int) -> None:
        """Count a review that was answered; its bytes are not counted."""
        del read, sent
        self._seconds_of(path).observe(seconds)
        self._reviews_of(path, result).inc()

    def failed(self, path: str) -> None:
        """Count a review to which there is no answer."""
        self._reviews_of(path, "failed").inc()

    def cut(self, port: str, reason: str) -> None:
        """Count a connection that was cut off."""
        self.connections_cut.labels(reason).inc()
