"""ADR-026's metrics, and a few about the controller itself."""

from __future__ import annotations

from collections import Counter as TotalOf
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from preflight_kube.api.node_health import STATES, NodeHealthStatus, moment
from preflight_kube.client.client import Client
from preflight_kube.runtime.controller import Collected, RuntimeMetrics
from preflight_proto.program import package_version
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from preflight_gang.api import error_codes

_SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 180, 300, 600, 900, 1800, 3600)
_GANG_SECONDS = (0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
_MOST_NODES = 2000
_MOST_NAMESPACES = 2000
_MOST_CODES = 64
"""Of each check that is not a built-in one."""

Series = tuple[str, str, str]


class LabelValues:
    """At most ``most`` values: beyond, who brought the most loses the one used longest ago."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[str, OrderedDict[str, None]] = {}
        """By namespace, the least recently used first."""
        self._count = 0
        self._holders: TotalOf[str] = TotalOf()

    def use(self, namespace: str, value: str) -> list[str]:
        """Note that ``value`` is used; what is nobody's now, whose series are to be removed."""
        own = self._values.setdefault(namespace, OrderedDict())
        if value in own:
            own.move_to_end(value)
            return []
        own[value] = None
        self._count += 1
        self._holders[value] += 1
        if self._count <= self._most:
            return []
        # Ties go against who brings another one.
        largest = max(self._values, key=lambda one: (len(self._values[one]), one == namespace))
        gone, _ = self._values[largest].popitem(last=False)
        if not self._values[largest]:
            del self._values[largest]
        self._count -= 1
        self._holders[gone] -= 1
        if self._holders[gone]:
            return []
        del self._holders[gone]
        return [gone]


class _ByNode:
    """A counter by check, node and error code, of so many nodes, and unknown codes, at a time."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._nodes = LabelValues(_MOST_NODES)
        self._codes: dict[str, LabelValues] = {}
        self._series: set[Series] = set()

    def inc(self, namespace: str, check: str, node: str, code: str) -> None:
        """Count one of a pod of ``namespace``; ``node``: one that the cluster has, else empty."""
        for gone in self._nodes.use("", node):
            self._remove({series for series in self._series if series[1] == gone})
        label = error_codes.known(check, code)
        if label is None:
            label = code
            codes = self._codes.setdefault(check, LabelValues(_MOST_CODES))
            for gone in codes.use(namespace, code):
                self._remove({s for s in self._series if (s[0], s[2]) == (check, gone)})
        self._series.add((check, node, label))
        self._counter.labels(check, node, label).inc()

    def _remove(self, gone: set[Series]) -> None:
        self._series -= gone
        for series in gone:
            self._counter.remove(*series)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float]) -> Metric:
    for label, value in sorted(dict(values).items()):  # others write meanwhile
        family.add_metric([label], value)
    return family


class Metrics:
    """One registry. Label values come from closed sets: configured checks, outcomes, codes, nodes.

    What users name is bounded, and a namespace's values push out its own: :class:`LabelValues`.
    """

    def __init__(self) -> None:
        # Else each has a second series: when this process began.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.fleet: Callable[[], Iterable[tuple[str, NodeHealthStatus]]] = lambda: ()
        """What is written of each node, while this replica leads."""
        self.registry.register(Collected(self._show_fleet))
        build = gauge(
            "preflight_build_info",
            "1; which version of which program runs.",
            ["program", "version"],
        )
        build.labels("preflight-gang", package_version("preflight-gang")).set(1)
        self.checks = counter(
            "preflight_check", "Runs of checks, each counted once, by outcome.", ["check", "result"]
        )
        self.duration = histogram(
            "preflight_check_duration_seconds",
            "How long runs of checks took.",
            ["check"],
            buckets=_SECONDS,
        )
        self.failures = _ByNode(
            counter(
                "preflight_check_failures",
                "Runs of checks that failed, were inconclusive or misconfigured, by node and error code.",
                ["check", "node", "error_code"],
            )
        )
        self.blamed = _ByNode(
            counter(
                "preflight_blamed",
                "Verdicts that blame the node they were reached on, or a GPU of it; of a gang with one slow node that one.",
                ["check", "node", "error_code"],
            )
        )
        self.gang_wait = histogram(
            "preflight_gang_wait_seconds",
            "From a gang's first address to its roster, by how the gang is known.",
            ["source"],
            buckets=_GANG_SECONDS,
        )
        self.config_errors = counter(
            "preflight_config_errors",
            "What could not be read. stamp: one that does not match its pod; preflightconfig: an invalid one; namespace: one with results that is not opted in.",
            ["error"],
        )
        self.unchecked = gauge(
            "preflight_unchecked_pods",
            "GPU pods of opted-in namespaces without checks, or with claims that admission did not know so, by what may be the reason.",
            ["namespace", "reason"],
        )
        self.audited = gauge(
            "preflight_audit_timestamp_seconds", "When unchecked pods were last counted."
        )
        self.runtime = RuntimeMetrics(self.registry)
        self.leader = gauge("preflight_gang_leader", "1 on the replica that leads.")
        self.gangs = gauge("preflight_gangs", "Gangs with at least one member.")
        self.writes = counter(
            "preflight_gang_writes",
            "Writes to the API server by kind (configmap, roster, node, event, status) and result.",
            ["kind", "result"],
        )

    def follow(self, client: Client) -> None:
        """Show what ``client`` sends, and how well its mirrors follow the cluster."""
        requests, mirrors = client.requests, client.mirrors
        self.runtime.sends(client)

        def collect() -> Iterator[Metric]:
            sent = "Bytes of bodies sent to the API server by verb."
            size = CounterMetricFamily("preflight_gang_sent_bytes", sent, labels=["verb"])
            yield _filled(size, requests.bytes)
            late = "1 while a mirror of the collection is behind the cluster."
            behind = GaugeMetricFamily("preflight_gang_behind", late, labels=["path"])
            yield _filled(behind, {at: bool(lag) for at, lag in mirrors.behind().items()})
            odd = "Objects, as often as they were read, that could not be and are passed over."
            unreadable = CounterMetricFamily("preflight_gang_unreadable", odd, labels=["path"])
            yield _filled(unreadable, mirrors.unreadable)

        self.registry.register(Collected(collect))

    def _show_fleet(self) -> Iterator[Metric]:
        passed = GaugeMetricFamily(
            "preflight_node_last_pass_timestamp_seconds",
            "When a check last passed on the node, as Unix time.",
            labels=["check", "node"],
        )
        measured = GaugeMetricFamily(
            "preflight_measured_gbps",
            "The bandwidth that a check measured last on the node, in GB/s.",
            labels=["check", "node"],
        )
        usual = GaugeMetricFamily(
            "preflight_usual_gbps",
            "The median of what the last runs of a check that passed on the node measured, in GB/s.",
            labels=["check", "node"],
        )
        nodes = GaugeMetricFamily("preflight_nodes", "Nodes by their health.", labels=["state"])
        states = dict.fromkeys(STATES, 0)
        records = list(self.fleet())
        for node, status in records:
            states[status.state] += 1
            for check in status.checks:
                if check.passed is not None:
                    passed.add_metric([check.name, node], moment(check.passed.time))
                for family, gbps in ((measured, check.measured), (usual, check.usual)):
                    if gbps is not None:
                        family.add_metric([check.name, node], gbps)
        for state, count in states.items() if records else ():
            nodes.add_metric([state], count)
        yield from (passed, measured, usual, nodes)

    def count_unchecked(self, found: Mapping[tuple[str, str], int]) -> None:
        """Show pods by namespace and reason; namespaces beyond the 2,000 with the most: `other`."""
        by_namespace: TotalOf[str] = TotalOf()
        for (namespace, _), pods in found.items():
            by_namespace[namespace] += pods
        shown = {namespace for namespace, _ in by_namespace.most_common(_MOST_NAMESPACES)}
        self.unchecked.clear()
        for (namespace, reason), pods in found.items():
            label = namespace if namespace in shown else error_codes.OTHER
            self.unchecked.labels(label, reason).inc(pods)
