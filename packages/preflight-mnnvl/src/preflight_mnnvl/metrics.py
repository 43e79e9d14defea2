"""Metrics, in Prometheus' text. Label values come from closed sets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal

from preflight_kube.client.client import Client
from preflight_kube.runtime.controller import RuntimeMetrics, show_lag
from preflight_proto.program import package_version
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from preflight_mnnvl.api.types import Key

STATES: Final = (
    *("wanted", "made", "owned-by-set", "adopted"),
    *("blocked", "ending", "unsupported", "unclaimed"),
)
_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_LATENCY: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """One registry for a replica of the controller or of the webhook."""

    def __init__(self) -> None:
        # Else each has a second series: when this process began.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.runtime = RuntimeMetrics(self.registry)
        self._states: dict[Key, set[str]] = {}
        gauge = partial(Gauge, registry=self.registry)
        build = gauge(
            "preflight_build_info",
            "1; which version of which program runs.",
            ["program", "version"],
        )
        build.labels("preflight-mnnvl", package_version("preflight-mnnvl")).set(1)
        self.supported = gauge(
            "mnnvl_supported",
            "1 where multi-node NVLink can be had by what the cluster serves and the configuration.",
        )
        self.fabric_nodes = gauge(
            "mnnvl_fabric_nodes", "Nodes with a label nvidia.com/gpu.clique that is not empty."
        )

    def controller(self, unclaimed: Callable[[], float], client: Client) -> None:
        """Add what the controller counts."""
        gauge = partial(Gauge, registry=self.registry)
        self.leader = gauge("mnnvl_leader", "1 while this replica leads.")
        self.domains = gauge(
            "mnnvl_domains", "ComputeDomains by state, as the leader sees them.", ["state"]
        )
        for state in STATES:
            self.domains.labels(state).set_function(partial(self._count, state))
        self.adoption = Histogram(
            "mnnvl_adoption_seconds",
            "From when a PodGang was seen to when the ComputeDomain belonged to it.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.writes = Counter(
            "mnnvl_writes",
            "Writes by kind of object and result: created, adopted, released, announced, told, conflict, refused, failed.",
            ["kind", "result"],
            registry=self.registry,
        )
        gauge(
            "mnnvl_unclaimed_podcliques",
            "PodCliques that ask for the fabric, or were given a domain, and whose pods do not get the claim.",
        ).set_function(unclaimed)
        self._follows(client)

    def admission(self, client: Client) -> None:
        """Add what the webhook counts."""
        self.admissions = Counter(
            "mnnvl_admission",
            "Reviews by kind and result: injected, unchanged, not-enabled, no-gpu, denied, unsupported, failed.",
            ["kind", "result"],
            registry=self.registry,
        )
        self.latency = Histogram(
            "mnnvl_admission_latency_seconds",
            "From a review's last byte to its answer.",
            buckets=_LATENCY,
            registry=self.registry,
        )
        self._follows(client)

    def _follows(self, client: Client) -> None:
        self.runtime.sends(client)
        show_lag("mnnvl_mirror_behind_seconds", self.registry, client)

    def supports(self, ok: Callable[[], bool], nodes: Callable[[], int | None]) -> None:
        """Show what the cluster can do now."""
        self.supported.set_function(ok)
        self.fabric_nodes.set_function(lambda: nodes() or 0)

    def domain(self, key: Key, state: str, *, wanted: bool, exists: bool) -> None:
        """Count what a reconcile found; the state `gone` takes the domain out."""
        self._states.pop(key, None)
        if state != "gone":
            counted = {state: True, "wanted": wanted, "made": exists}
            self._states[key] = {name for name, counts in counted.items() if counts}

    def _count(self, state: str) -> float:
        # A scrape is answered by a thread of its own.
        return float(sum(state in states for states in list(self._states.values())))

    def event(self, result: Literal["written", "failed"]) -> None:
        """Count what became of an Event."""
        self.writes.labels("Event", "told" if result == "written" else result).inc()

    def forget_domains(self) -> None:
        """Count none: this replica does not lead."""
        self._states.clear()
