"""The metrics of both programs, under the names of NVIDIA's driver where that has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from preflight_kube.client.client import Client
from preflight_kube.runtime.controller import RuntimeMetrics
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from preflight_computedomain.api.names import CLAIMS, DOMAINS, DRIVER, SLICES, TEMPLATES

PREPARE = "NodePrepareResources"
UNPREPARE = "NodeUnprepareResources"
OPERATIONS = {PREPARE: "prepare", UNPREPARE: "unprepare"}
"""As NVIDIA's driver labels them, by the kubelet's name of the call."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45)


class ControllerMetrics:
    """One set a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.runtime = RuntimeMetrics(self.registry)
        gauge = partial(Gauge, registry=self.registry)
        self.leader = gauge("compute_domain_leader", "1 on the replica that leads.")
        self.actions = Counter(
            "compute_domain_actions", "What was done, by kind.", ["action"], registry=self.registry
        )
        self.conflicts = gauge(
            "compute_domain_template_conflicts",
            "ComputeDomains whose template's name is taken by something else.",
        )
        self.shared = gauge(
            "compute_domain_shared_cliques",
            "NVLink cliques in which more than one ComputeDomain is active.",
        )

    def show(self, client: Client, statuses: Callable[[], Mapping[str, int]]) -> None:
        """Show what ``client`` sends, how far mirrors are, and ComputeDomains by status."""
        self.runtime.sends(client)
        gauge = partial(Gauge, registry=self.registry)
        info = "ComputeDomains by the status that they show."
        domains = gauge("nvidia_dra_compute_domain_info", info, ["status"])
        for status in statuses():
            domains.labels(status).set_function(partial(lambda of: statuses()[of], status))
        what = "1 while the mirror of a collection is behind."
        behind = gauge("compute_domain_behind", what, ["path"])
        for path in (DOMAINS, TEMPLATES, CLAIMS, SLICES):
            is_behind = partial(lambda path: bool(client.mirrors.behind().get(path)), path)
            behind.labels(path).set_function(is_behind)


class PluginMetrics:
    """One set a process. Series of requests exist from the start, with 0."""

    def __init__(self, node: str) -> None:
        self.registry = CollectorRegistry()
        gauge = partial(Gauge, registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        self.requests = counter(
            "nvidia_dra_requests", "Calls of the kubelet.", ["driver", "operation"]
        )
        self.seconds = Histogram(
            "nvidia_dra_request_duration_seconds",
            "How long they took.",
            ["driver", "operation"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.inflight = gauge(
            "nvidia_dra_requests_inflight", "Calls under way.", ["driver", "operation"]
        )
        for operation in OPERATIONS.values():
            for family in (self.requests, self.seconds, self.inflight):
                family.labels(DRIVER, operation)
        up = "1 where NVML answered the last question, else 0."
        self.nvml = gauge("compute_domain_nvml_up", up)
        prepared = gauge(
            "nvidia_dra_prepared_devices", "Devices in use.", ["node", "driver", "device_type"]
        )
        self.prepared = prepared.labels(node, DRIVER, "channel")
        self.prepare_errors = counter(
            "nvidia_dra_node_prepare_errors", "Claims not prepared.", ["driver", "error_type"]
        )
        self.unprepare_errors = counter(
            "nvidia_dra_node_unprepare_errors", "Claims not unprepared.", ["driver", "error_type"]
        )
        permanent = "Claims not prepared for a reason that does not go away by waiting."
        self.permanent_errors = counter("compute_domain_permanent_errors", permanent, ["reason"])
        stale = "Claims that are prepared here and no longer exist."
        self.stale_claims = gauge("compute_domain_stale_claims", stale)
        corrupt = "Checkpoints that were moved aside since the start."
        self.corrupt_checkpoints = gauge("compute_domain_corrupt_checkpoints", corrupt)
        writes = "Writes of the node's ResourceSlice."
        self.slice_writes = counter("compute_domain_slice_writes", writes, ["verb"])
