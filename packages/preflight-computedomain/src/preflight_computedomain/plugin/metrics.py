"""The plugin's metrics, under the names of NVIDIA's driver where that has them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ..names import DRIVER

__all__ = ["OPERATIONS", "PREPARE", "UNPREPARE", "PluginMetrics"]

PREPARE = "NodePrepareResources"
UNPREPARE = "NodeUnprepareResources"
OPERATIONS = {PREPARE: "prepare", UNPREPARE: "unprepare"}
"""As NVIDIA's driver labels them, by the kubelet's name of the call."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45)


class PluginMetrics:
    """One set a process. Series of requests exist from the start, with 0."""

    def __init__(self, node: str, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        own = self.registry
        self.requests = Counter(
            "nvidia_dra_requests_total",
            "Calls of the kubelet.",
            ("driver", "operation"),
            registry=own,
        )
        self.seconds = Histogram(
            "nvidia_dra_request_duration_seconds",
            "How long they took.",
            ("driver", "operation"),
            buckets=_SECONDS,
            registry=own,
        )
        self.inflight = Gauge(
            "nvidia_dra_requests_inflight",
            "Calls under way.",
            ("driver", "operation"),
            registry=own,
        )
        for operation in OPERATIONS.values():
            self.requests.labels(DRIVER, operation)
            self.seconds.labels(DRIVER, operation)
            self.inflight.labels(DRIVER, operation)
        self.nvml = Gauge(
            "compute_domain_nvml_up",
            "1 where NVML answered the last question, else 0.",
            registry=own,
        )
        prepared = Gauge(
            "nvidia_dra_prepared_devices",
            "Devices in use.",
            ("node", "driver", "device_type"),
            registry=own,
        )
        self.prepared = prepared.labels(node, DRIVER, "channel")
        self.prepare_errors = Counter(
            "nvidia_dra_node_prepare_errors_total",
            "Claims not prepared.",
            ("driver", "error_type"),
            registry=own,
        )
        self.unprepare_errors = Counter(
            "nvidia_dra_node_unprepare_errors_total",
            "Claims not unprepared.",
            ("driver", "error_type"),
            registry=own,
        )
        self.permanent_errors = Counter(
            "compute_domain_permanent_errors_total",
            "Claims not prepared for a reason that does not go away by waiting.",
            ("reason",),
            registry=own,
        )
        self.stale_claims = Gauge(
            "compute_domain_stale_claims",
            "Claims that are prepared here and no longer exist.",
            registry=own,
        )
        self.corrupt_checkpoints = Gauge(
            "compute_domain_corrupt_checkpoints",
            "Checkpoints that were moved aside since the start.",
            registry=own,
        )
        self.slice_writes = Counter(
            "compute_domain_slice_writes_total",
            "Writes of the node's ResourceSlice.",
            ("verb",),
            registry=own,
        )
