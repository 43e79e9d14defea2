"""The metrics of the extender, the controller and the agent, each in a registry of its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from preflight_kube.client.client import Client
from preflight_kube.runtime.controller import RuntimeMetrics, show_lag
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_MILLISECONDS: Final = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000)
_WAITS: Final = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)
PHASES: Final = ("Pending", "Reserved", "Bound", "Failed")
"""Of a GpuClaim."""


class WriteMetrics:
    """Counts of what a controller or an extender writes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        counter = self._counter = partial(Counter, registry=registry)
        self._gauge = partial(Gauge, registry=registry)
        self._histogram = partial(Histogram, registry=registry)
        about = "Writes on Leases, and Bindings."
        self.writes = counter("gpu_scheduler_lease_writes", about, ["op", "result"])

    def follow(self, client: Client) -> None:
        """Show how far what ``client`` mirrors is behind the cluster."""
        show_lag("gpu_scheduler_mirror_behind_seconds", self._registry, client)


class ExtenderMetrics(WriteMetrics):
    """The metrics of one extender, in ``registry``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        about, buckets = "Time of a call.", [n / 1000 for n in _MILLISECONDS]
        self.seconds = histogram("gpu_scheduler_calls_seconds", about, ["verb"], buckets=buckets)
        self.calls = counter("gpu_scheduler_calls", "Calls of kube-scheduler.", ["verb", "result"])
        self.binds = counter("gpu_scheduler_binds", "Pods brought to be bound.", ["result"])
        about = "Connections of the port that were cut off."
        self.cuts = counter("gpu_scheduler_connections_cut", about, ["reason"])
        self.handshakes_failed = self.cuts
        kept = "GPUs that are kept, as they become free, for a gang that waits."
        self.kept = gauge("gpu_scheduler_kept_gpus", kept)

    def cut(self, port: str, reason: str) -> None:
        """Count a connection that was cut off."""
        self.cuts.labels(reason).inc()


class GpuControllerMetrics(WriteMetrics):
    """The metrics of one controller, in ``registry``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.runtime = RuntimeMetrics(registry)
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        about = "Leases deleted because nobody can use them."
        self.collected = counter("gpu_scheduler_collected", about, ["reason"])
        about = "Reservations taken back from pods that wait."
        self.reclaimed = counter("gpu_scheduler_reclaimed", about)
        about = "Bound pods without the lease of a GPU that they have."
        self.unlocked = gauge("gpu_scheduler_unlocked_pods", about)
        unknown = "GPUs that a condition or annotation names, and that its node does not have."
        self.unknown = gauge("gpu_scheduler_unknown_gpus", unknown)
        self.relocked = counter("gpu_scheduler_relocked", "Leases that were lost and made again.")
        self.leases = gauge("gpu_scheduler_leases", "Leases by what they are.", ["state"])
        self.claims = gauge("gpu_scheduler_claims", "GpuClaims by phase.", ["phase"])
        about = "Gangs that wait, and that have a plan."
        self.gangs = gauge("gpu_scheduler_gangs", about, ["state"])
        about = "From a gang's being whole to its GPUs."
        self.gang_wait = histogram("gpu_scheduler_gang_wait_seconds", about, buckets=_WAITS)
        devices = "GPUs of a node: free, leased, unusable."
        self._devices = gauge("gpu_scheduler_devices", devices, ["node", "state"])
        self.stale = gauge("gpu_scheduler_stale_nodes", "Nodes whose GpuNodeStatus is too old.")

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
        gauge = partial(Gauge, registry=registry)
        self.devices = gauge("gpu_agent_devices", "GPUs of this node by health.", ["health"])
        about = "1 where NVML answered when it was last asked, else 0."
        self.nvml = gauge("gpu_agent_nvml_up", about)
        about = "Writes of the status."
        self.published = Counter("gpu_agent_publish", about, ["result"], registry=registry)
