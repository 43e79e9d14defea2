"""Values of labels that users choose are bounded, and push out only what their own namespace
brought.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from preflight_gang.api import error_codes
from preflight_gang.metrics import LabelValues, Metrics
from preflight_kube.api.node_health import (
    STATES,
    CheckEnd,
    EndedRun,
    NodeHealthStatus,
    judge,
    noted,
)
from prometheus_client import generate_latest


def test_a_flood_of_values_pushes_out_nobody_elses() -> None:
    labels = LabelValues(10)
    for value in ("one", "two", "three"):
        assert labels.use("honest", value) == []
    gone = [one for number in range(2100) for one in labels.use("flood", f"v-{number}")]
    assert len(gone) == 2100 - 7
    assert not {"one", "two", "three"} & set(gone)
    assert labels.use("honest", "one") == []


def test_what_was_used_last_stays() -> None:
    labels = LabelValues(2)
    for value in ("old", "new", "old"):
        labels.use("ns", value)
    assert labels.use("ns", "third") == ["new"]


def test_a_value_of_two_namespaces_stays_while_one_of_them_has_it() -> None:
    labels = LabelValues(3)
    labels.use("a", "shared")
    labels.use("b", "shared")
    labels.use("b", "mine")
    assert labels.use("b", "another") == []  # b loses it, a still has it
    assert labels.use("a", "shared") == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("123456789")), max_size=200))
def test_there_are_never_more_values_than_the_most(used: list[tuple[str, str]]) -> None:
    labels, shown = LabelValues(4), set[str]()
    for namespace, value in used:
        gone = labels.use(namespace, value)
        shown.add(value)
        shown.difference_update(gone)
        assert len(shown) <= 4
        assert value in shown


def series(metrics: Metrics, name: str) -> set[tuple[str, ...]]:
    found = (
        sample
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if sample.name == name
    )
    return {tuple(sample.labels.values()) for sample in found}


def test_invented_codes_of_a_built_in_check_are_one_value_and_true_ones_stay_what_they_are() -> (
    None
):
    metrics = Metrics()
    for number in range(2100):
        metrics.failures.inc("flood", "dcgm-diag", "node-a", f"INVENTED_{number}")
    metrics.failures.inc("honest", "dcgm-diag", "node-a", "DCGM_FR_FAULTY_MEMORY")
    assert series(metrics, "preflight_check_failures_total") == {
        ("dcgm-diag", "node-a", error_codes.OTHER),
        ("dcgm-diag", "node-a", "DCGM_FR_FAULTY_MEMORY"),
    }


def test_invented_codes_of_somebodys_own_check_push_out_only_those_of_their_own_namespace() -> None:
    metrics = Metrics()
    metrics.failures.inc("honest", "disk", "node-a", "DISK_SLOW")
    for number in range(2100):
        metrics.failures.inc("flood", "disk", "node-a", f"INVENTED_{number}")
    shown = series(metrics, "preflight_check_failures_total")
    assert ("disk", "node-a", "DISK_SLOW") in shown
    assert len(shown) == 64


def test_a_verdict_that_blames_its_node_is_counted_beside_the_failures() -> None:
    metrics = Metrics()
    for node in ("node-a", "node-b"):
        metrics.failures.inc("ns", "nccl-allreduce", node, "LOW_BANDWIDTH")
    metrics.blamed.inc("ns", "nccl-allreduce", "node-b", "NODE_SLOW")
    metrics.blamed.inc("ns", "nccl-allreduce", "node-b", "INVENTED")
    assert series(metrics, "preflight_blamed_total") == {
        ("nccl-allreduce", "node-b", "NODE_SLOW"),
        ("nccl-allreduce", "node-b", error_codes.OTHER),
    }
    assert len(series(metrics, "preflight_check_failures_total")) == 2


def test_no_metric_has_a_second_series_of_when_it_was_made() -> None:
    metrics = Metrics()
    metrics.gang_wait.labels("labels").observe(1.0)
    metrics.failures.inc("ns", "dcgm-diag", "node-a", "OK")
    assert not [
        line
        for line in generate_latest(metrics.registry).decode().splitlines()
        if "_created" in line
    ]


def test_the_last_pass_and_bandwidth_of_each_node_are_shown_and_how_many_are_sick() -> None:
    metrics = Metrics()
    assert metrics.registry.get_sample_value("preflight_nodes", {"state": "Sick"}) is None
    runs = (
        EndedRun("nccl-loopback", True, CheckEnd(time="1970-01-01T00:02:30Z"), 470.0),
        EndedRun("nccl-loopback", False, CheckEnd(time="1970-01-01T00:03:20Z", blames=True), 90.0),
        EndedRun("dcgm-diag", False, CheckEnd(time="1970-01-01T00:03:20Z")),
    )
    status = NodeHealthStatus()
    for run in runs:
        status = judge(noted(status, run), (), "1970-01-01T00:04:00Z")
    metrics.fleet = lambda: [("node-a", status)]
    about = {"check": "nccl-loopback", "node": "node-a"}
    value = metrics.registry.get_sample_value
    assert value("preflight_node_last_pass_timestamp_seconds", about) == 150
    assert value("preflight_measured_gbps", about) == 90
    assert value("preflight_usual_gbps", about) == 470
    never = {"check": "dcgm-diag", "node": "node-a"}
    for name in ("preflight_node_last_pass_timestamp_seconds", "preflight_measured_gbps"):
        assert value(name, never) is None
    counts = {state: value("preflight_nodes", {"state": state}) for state in STATES}
    assert counts == {"Sick": 0, "Suspect": 1, "Unknown": 0, "Healthy": 0}


def test_the_namespaces_with_the_most_unchecked_pods_are_shown_by_name() -> None:
    metrics = Metrics()
    metrics.count_unchecked(
        {(f"ns-{number}", "running"): 1 for number in range(2100)} | {("large", "running"): 7}
    )
    shown = series(metrics, "preflight_unchecked_pods")
    assert ("large", "running") in shown
    assert len(shown) == 2001
    assert (
        metrics.registry.get_sample_value(
            "preflight_unchecked_pods", {"namespace": "other", "reason": "running"}
        )
        == 101
    )
