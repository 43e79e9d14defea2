"""What checks leave behind: one Event and one count a run, whoever leads and how often."""

from __future__ import annotations

from typing import Any

import pytest
from gangs import result_line
from leading import Leading, leads, settled
from played import Cluster, clock, container, opt_in
from preflight_gang.controller import reports
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio

SICK = result_line("dcgm-diag", "failed", "DCGM_FR_FAULTY_MEMORY", "GPU 3 has faulty memory.")


async def a_sick_pod(cluster: Cluster, restarts: int = 0) -> None:
    sick = container(
        "dcgm-diag", "backoff", code=1, message=SICK, restarts=restarts, runs=cluster.namespace
    )
    await cluster.report("pod-0", sick, container("nccl-allreduce", "waiting"))


def failures(leading: Leading) -> tuple[float, float, float]:
    """Of dcgm-diag: runs, runs that failed with that code, and runs whose time was taken."""
    return (
        leading.counted("preflight_check_total", check="dcgm-diag", result="failed"),
        leading.counted(
            "preflight_check_failures_total",
            check="dcgm-diag",
            node="node-a",
            error_code="DCGM_FR_FAULTY_MEMORY",
        ),
        leading.counted("preflight_check_duration_seconds_count", check="dcgm-diag"),
    )


async def test_a_check_that_ended_becomes_an_event_that_a_person_can_act_on(
    cluster: Cluster, leading: Leading
) -> None:
    uid = await cluster.admit("pod-0")
    await a_sick_pod(cluster)
    await until(lambda: cluster.events, "an Event")
    (event,) = cluster.events
    assert (event["type"], event["reason"]) == ("Warning", "PreflightFailed")
    assert (
        event["message"]
        == "dcgm-diag on node-a failed DCGM_FR_FAULTY_MEMORY: GPU 3 has faulty memory."
    )
    assert event["involvedObject"]["uid"] == uid
    assert event["involvedObject"]["fieldPath"] == "spec.initContainers{preflight-dcgm-diag}"
    assert event["reportingComponent"] == "preflight-gang"


async def test_a_run_whose_event_may_have_expired_is_not_counted_by_the_next_leader(
    cluster: Cluster, leading: Leading
) -> None:
    for name, second in (("old", -3600), ("new", 0)):
        await cluster.admit(name)
        ended = container("dcgm-diag", "ended", code=1, message=SICK, runs=name + cluster.namespace)
        ended["state"]["terminated"]["finishedAt"] = clock(second)
        await cluster.report(name, ended)
    await until(lambda: len(cluster.events) == 2, "both have an Event")
    await until(lambda: failures(leading)[0], "one is counted")
    await settled(cluster, leading)
    assert failures(leading) == (1, 1, 1)
    ends = {event["lastTimestamp"] for event in cluster.events}
    assert ends == {clock(-3600), clock(0)}, "of then, and not of when the Event was written"


def allreduce(code: str = "LOW_BANDWIDTH", blames: str = "", gbps: float = 90.0) -> str:
    said = f'"outcome":"failed","code":"{code}","gated":true,"duration":9.5,"reason":"slow.","measured":{gbps}'
    return f'{{"v":1,"check":"nccl-allreduce",{said}' + (
        f',"blames":"{blames}"}}' if blames else "}"
    )


async def test_of_a_gang_with_one_slow_node_that_node_alone_is_blamed(
    cluster: Cluster, leading: Leading
) -> None:
    for name, blames in (("pod-0", ""), ("pod-1", "NODE_SLOW")):
        await cluster.admit(name)
        ended = container(
            "nccl-allreduce",
            "ended",
            code=1,
            message=allreduce(blames=blames),
            runs=name + cluster.namespace,
        )
        await cluster.report(
            name, container("dcgm-diag", "ended", runs=name + cluster.namespace), ended
        )

    def failed() -> float:
        labels = {"check": "nccl-allreduce", "node": "node-a", "error_code": "LOW_BANDWIDTH"}
        return leading.counted("preflight_check_failures_total", **labels)

    await until(lambda: failed() == 2, "both have failed")
    blamed = {"check": "nccl-allreduce", "node": "node-a", "error_code": "NODE_SLOW"}
    assert leading.counted("preflight_blamed_total", **blamed) == 1


async def test_a_run_is_counted_once_and_each_of_a_restarted_check_is_another_one(
    cluster: Cluster, leading: Leading
) -> None:
    await cluster.admit("pod-0")
    await a_sick_pod(cluster)
    await cluster.report("pod-0", message="something else changes")
    await settled(cluster, leading)
    await until(lambda: failures(leading) == (1, 1, 1), "the first is counted")
    await a_sick_pod(cluster, restarts=1)
    await until(lambda: failures(leading) == (2, 2, 2), "the second is counted")
    await until(lambda: len(cluster.events) == 2, "an Event of each")


async def test_a_controller_that_comes_after_counts_no_run_again(
    cluster: Cluster, target: Connection
) -> None:
    await cluster.admit("pod-0")
    async with leads(target) as first:
        await a_sick_pod(cluster)
        await until(lambda: failures(first) == (1, 1, 1), "it is counted")
    # A second run has ended just now: the status still tells of the first.
    later = result_line("dcgm-diag", "failed", "DCGM_FR_LATER")
    again = container(
        "dcgm-diag", "ended", code=1, message=later, restarts=1, runs=cluster.namespace
    )
    again["lastState"] = container(
        "dcgm-diag", "ended", code=1, message=SICK, runs=cluster.namespace
    )["state"]
    await cluster.report("pod-0", again, container("nccl-allreduce", "waiting"))
    async with leads(target, epoch=2) as second:
        await until(
            lambda: any("DCGM_FR_LATER" in event["message"] for event in cluster.events),
            "it is reported",
        )
        await until(lambda: failures(second)[0], "it is counted")
        assert failures(second) == (1, 0, 1), "the later run alone"
    assert len(cluster.events) == 2


IMAGE = 'Back-off pulling image "registry.example/dcgm:typo"'


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be started for half a second could not be started."""
    monkeypatch.setattr(reports, "PATIENCE", 0.5)


async def pulls_in_vain(cluster: Cluster, restarts: int = 0) -> None:
    pulling = container("dcgm-diag", "pulling", message=IMAGE, restarts=restarts)
    await cluster.report("pod-0", pulling, container("nccl-allreduce", "waiting"))


def not_started(leading: Leading) -> tuple[float, float, float]:
    """Of dcgm-diag: inconclusive runs, those by the image, and those whose time was taken."""
    return (
        leading.counted("preflight_check_total", check="dcgm-diag", result="inconclusive"),
        leading.counted(
            "preflight_check_failures_total",
            check="dcgm-diag",
            node="node-a",
            error_code="IMAGE_PULL",
        ),
        leading.counted("preflight_check_duration_seconds_count", check="dcgm-diag"),
    )


@pytest.mark.usefixtures("impatient")
async def test_a_check_whose_image_cannot_be_pulled_is_inconclusive_with_one_event(
    cluster: Cluster, leading: Leading
) -> None:
    await cluster.admit("pod-0")
    await pulls_in_vain(cluster)
    await until(lambda: not_started(leading) == (1, 1, 0), "it is counted")
    await cluster.report("pod-0", message="something else changes")
    await settled(cluster, leading)
    (event,) = cluster.events
    assert (event["type"], event["reason"]) == ("Warning", "PreflightInconclusive")
    assert event["message"].startswith(
        "dcgm-diag on node-a inconclusive IMAGE_PULL: it could not be started for 60 s"
    )
    assert IMAGE in event["message"]
    assert "see that the image exists" in event["message"]
    assert not_started(leading) == (1, 1, 0)


# --- what anybody may write


async def a_forged_pod(
    cluster: Cluster, name: str, ended: dict[str, Any], *, node: str = "node-a"
) -> None:
    """A pod with the label and a container of the check's name, as anybody can create it."""
    await cluster.admit(name, gang=name, node=node)
    await cluster.report(name, ended, container("nccl-allreduce", "waiting"))


async def test_where_nobody_opted_in_nothing_is_counted_and_no_event_made(
    cluster: Cluster, client: Client, target: Connection
) -> None:
    await opt_in(client, cluster.namespace, None)
    async with leads(target) as leading:
        for i in range(3):
            sick = container(
                "dcgm-diag", "backoff", code=1, message=SICK, runs=f"{cluster.namespace}-{i}"
            )
            await a_forged_pod(cluster, f"forged-{i}", sick)
        await until(
            lambda: leading.counted("preflight_config_errors_total", error="namespace"),
            "it is noted",
        )
        await settled(cluster, leading)
        assert failures(leading) == (0, 0, 0)
        assert leading.counted("preflight_config_errors_total", error="namespace") == 1
        assert not cluster.events
        assert not [sent for sent in leading.wire.writes() if sent.path.endswith("/events")]


async def test_what_ended_before_its_namespace_was_known_to_be_opted_in_is_counted(
    cluster: Cluster, client: Client, target: Connection
) -> None:
    await opt_in(client, cluster.namespace, None)
    async with leads(target) as leading:
        await cluster.admit("pod-0")
        await a_sick_pod(cluster)
        await until(
            lambda: leading.counted("preflight_config_errors_total", error="namespace"),
            "it is noted",
        )
        await opt_in(client, cluster.namespace, "enabled")
        await until(lambda: failures(leading) == (1, 1, 1), "it is counted")


async def test_a_node_a_code_and_a_time_that_a_check_cannot_have_are_not_counted_as_such(
    cluster: Cluster, leading: Leading
) -> None:
    invented = result_line("dcgm-diag", "failed", "INVENTED").replace("9.5", "1e308")
    sick = container("dcgm-diag", "backoff", code=1, message=invented, runs=cluster.namespace)
    await a_forged_pod(cluster, "forged", sick, node="node-of-nobody")
    await until(
        lambda: leading.counted(
            "preflight_check_failures_total", check="dcgm-diag", node="other", error_code="other"
        ),
        "it is counted",
    )
    assert "node-of-nobody" not in [node for node, _ in leading.metrics.fleet()]
    # Its container ran from second 5 to second 60, as the kubelet says.
    assert leading.counted("preflight_check_duration_seconds_sum", check="dcgm-diag") <= 56
