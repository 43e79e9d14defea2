"""The metrics of the extender, the controller and the agent, each in a registry of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from preflight_gpu_scheduler.api.names import COLLECTED_REASONS

__all__ = ["AgentMetrics", "ExtenderMetrics", "GpuControllerMetrics", "MirrorAges", "WriteMetrics"]

_BUCKETS: Final = (
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
)
PHASES: Final = ("Pending", "Reserved", "Bound", "Failed")
"""Of a GpuClaim."""


class WriteMetrics:
    """What is written, by a controller or an extender."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.writes = Counter(
            "gpu_scheduler_lease_writes",
            "Writes on Leases, and Bindings.",
            ["op", "result"],
            registry=registry,
        )


class ExtenderMetrics(WriteMetrics):
    """The metrics of one extender, in ``registry``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.seconds = Histogram(
            "gpu_scheduler_calls_seconds",
            "Time of a call.",
            ["verb"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.calls = Counter(
            "gpu_scheduler_calls", "Calls of kube-scheduler.", ["verb", "result"], registry=registry
        )
        self.binds = Counter(
            "gpu_scheduler_binds", "Pods brought to be bound.", ["result"], registry=registry
        )

        self.kept = Gauge(
            "gpu_scheduler_kept_gpus",
            "GPUs that are kept, as they become free, for a gang that waits.",
            registry=registry,
        )


class GpuControllerMetrics(WriteMetrics):
    """The metrics of one controller, in ``registry``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.leader = Gauge("gpu_scheduler_leader", "1 while this replica acts.", registry=registry)
        self.collected = Counter(
            "gpu_scheduler_collected",
            "Leases deleted because nobody can use them.",
            ["reason"],
            registry=registry,
        )
        for reason in COLLECTED_REASONS:
            self.collected.labels(reason)
        self.reclaimed = Counter(
            "gpu_scheduler_reclaimed",
            "Reservations taken back from pods that wait.",
            registry=registry,
        )
        self.unlocked = Gauge(
            "gpu_scheduler_unlocked_pods",
            "Bound pods without the lease of a GPU that they have.",
            registry=registry,
        )
        self.unknown = Gauge(
            "gpu_scheduler_unknown_gpus",
            "GPUs that a condition or annotation names, and that its node does not have.",
            registry=registry,
        )
        self.relocked = Counter(
            "gpu_scheduler_relocked", "Leases that were lost and made again.", registry=registry
        )
        self.leases = Gauge(
            "gpu_scheduler_leases", "Leases by what they are.", ["state"], registry=registry
        )
        self.claims = Gauge(
            "gpu_scheduler_claims", "GpuClaims by phase.", ["phase"], registry=registry
        )
        self.gangs = Gauge(
            "gpu_scheduler_gangs",
            "Gangs that wait, and that have a plan.",
            ["state"],
            registry=registry,
        )
        self.gang_wait = Histogram(
            "gpu_scheduler_gang_wait_seconds",
            "From a gang's being whole to its GPUs.",
            buckets=(0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800),
            registry=registry,
        )
        self._devices = Gauge(
            "gpu_scheduler_devices",
            "GPUs of a node: free, leased, unusable.",
            ["node", "state"],
            registry=registry,
        )
        self.stale = Gauge(
            "gpu_scheduler_stale_nodes", "Nodes whose GpuNodeStatus is too old.", registry=registry
        )

    def counted(self, phases: Mapping[str, int], devices: Mapping[str, Mapping[str, int]]) -> None:
        """``phases``: claims in each; ``devices``: by node, how many are in which state."""
        for phase in PHASES:
            self.claims.labels(phase).set(phases.get(phase, 0))
        self._devices.clear()  # of nodes that have gone nothing is said any more
        for node, states in devices.items():
            for state, number in states.items():
                self._devices.labels(node, state).set(number)


class AgentMetrics:
    """The metrics of one agent, in ``registry``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.devices = Gauge(
            "gpu_agent_devices", "GPUs of this node by health.", ["health"], registry=registry
        )
        self.nvml = Gauge(
            "gpu_agent_nvml_up", "1 where NVML answered the last look, else 0.", registry=registry
        )
        self.published = Counter(
            "gpu_agent_publish", "Writes of the status.", ["result"], registry=registry
        )


class MirrorAges(Collector):
    """For how long each mirror has been behind; ``behind`` is asked when somebody reads the
    metrics.
    """

    def __init__(self, registry: CollectorRegistry, behind: object) -> None:
        self._behind = behind
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Seconds by the path of each mirror, at this moment."""
        family = GaugeMetricFamily(
            "gpu_scheduler_mirror_behind_seconds", "How far mirrors are behind.", labels=["path"]
        )
        behind: dict[str, float] = self._behind() if callable(self._behind) else {}
        for path, seconds in behind.items():
            family.add_metric([path], seconds)
        yield family
