"""What checks leave behind: one Event and one count a run, whoever leads and how often."""

from __future__ import annotations

import pytest
from kube_world import until
from leading import Leading, leads, settled
from played import Cluster, container, result_line
from preflight_gang import reports
from preflight_gang.kube.connection import Connection

pytestmark = pytest.mark.anyio

SICK = result_line("dcgm-diag", "failed", "DCGM_FR_FAULTY_MEMORY", "GPU 3 has faulty memory.")


async def a_sick_pod(cluster: Cluster, restarts: int = 0) -> None:
    sick = container("dcgm-diag", "backoff", code=1, message=SICK, restarts=restarts, runs=cluster.namespace)
    await cluster.report("pod-0", sick, container("nccl-allreduce", "waiting"))


def failures(leading: Leading) -> tuple[float, float, float]:
    """Of dcgm-diag: runs, runs that failed with that code, and runs whose time was taken."""
    return (
        leading.counted("preflight_check_total", check="dcgm-diag", result="failed"),
        leading.counted(
            "preflight_check_failures_total", check="dcgm-diag", node="node-a", error_code="DCGM_FR_FAULTY_MEMORY"
        ),
        leading.counted("preflight_check_duration_seconds_count", check="dcgm-diag"),
    )


async def test_a_check_that_ended_becomes_an_event_that_a_person_can_act_on(cluster: Cluster, leading: Leading) -> None:
    uid = await cluster.admit("pod-0")
    await a_sick_pod(cluster)
    await until(lambda: cluster.events, "an Event")
    (event,) = cluster.events
    assert (event["type"], event["reason"]) == ("Warning", "PreflightFailed")
    assert event["message"] == "dcgm-diag on node-a failed DCGM_FR_FAULTY_MEMORY: GPU 3 has faulty memory."
    assert event["involvedObject"]["uid"] == uid
    assert event["involvedObject"]["fieldPath"] == "spec.initContainers{preflight-dcgm-diag}"
    assert event["reportingComponent"] == "preflight-gang"


async def test_a_run_is_counted_once_however_often_it_is_seen(cluster: Cluster, leading: Leading) -> None:
    await cluster.admit("pod-0")
    await a_sick_pod(cluster)
    await cluster.report("pod-0", message="something else changes")
    await settled(cluster, leading)
    await until(lambda: failures(leading) == (1, 1, 1), "it is counted")
    assert len(cluster.events) == 1


async def test_each_run_of_a_restarted_check_is_another_one(cluster: Cluster, leading: Leading) -> None:
    await cluster.admit("pod-0")
    await a_sick_pod(cluster)
    await until(lambda: failures(leading) == (1, 1, 1), "the first is counted")
    await a_sick_pod(cluster, restarts=1)
    await until(lambda: failures(leading) == (2, 2, 2), "the second is counted")
    await until(lambda: len(cluster.events) == 2, "an Event of each")


async def test_a_controller_that_comes_after_counts_no_run_again(cluster: Cluster, target: Connection) -> None:
    await cluster.admit("pod-0")
    async with leads(target) as first:
        await a_sick_pod(cluster)
        await until(lambda: failures(first) == (1, 1, 1), "it is counted")
    # A second run has ended just now: the status still tells of the first.
    later = result_line("dcgm-diag", "failed", "DCGM_FR_LATER")
    again = container("dcgm-diag", "ended", code=1, message=later, restarts=1, runs=cluster.namespace)
    again["lastState"] = container("dcgm-diag", "ended", code=1, message=SICK, runs=cluster.namespace)["state"]
    await cluster.report("pod-0", again, container("nccl-allreduce", "waiting"))
    async with leads(target, epoch=2) as second:
        await until(lambda: any("DCGM_FR_LATER" in event["message"] for event in cluster.events), "it is reported")
        await until(lambda: failures(second)[0], "it is counted")
        assert failures(second) == (1, 0, 1), "the later run alone"
    assert len(cluster.events) == 2


async def test_what_is_no_configured_check_is_not_read(cluster: Cluster, leading: Leading) -> None:
    checks = [{"name": name, "image": "x"} for name in ("preflight-mine", "setup", "preflight-dcgm-diag")]
    await cluster.admit("pod-0", spec={"initContainers": checks})
    ended = [
        container("mine", "ended"),
        container("dcgm-diag", "ended", message=result_line("dcgm-diag", "passed", "OK")),
    ]
    setup = {**container("setup", "ended"), "name": "setup"}
    await cluster.report("pod-0", ended[0], setup, ended[1])
    await until(lambda: leading.counted("preflight_check_total", check="dcgm-diag", result="passed"), "it is counted")
    await until(lambda: cluster.events, "its Event")
    assert [event["reason"] for event in cluster.events] == ["PreflightPassed"]
    counted = {
        sample.labels["check"]
        for metric in leading.metrics.registry.collect()
        for sample in metric.samples
        if "check" in sample.labels
    }
    assert counted == {"dcgm-diag"}


async def test_a_check_without_a_readable_result_is_judged_by_its_exit_status(
    cluster: Cluster, leading: Leading
) -> None:
    await cluster.admit("pod-0")
    killed = container("dcgm-diag", "backoff", code=137, message="Killed\x07", runs=cluster.namespace)
    await cluster.report("pod-0", killed, container("nccl-allreduce", "waiting"))
    await until(lambda: cluster.events, "an Event")
    assert cluster.events[0]["reason"] == "PreflightInconclusive"
    assert cluster.events[0]["message"].startswith("dcgm-diag on node-a inconclusive KILLED")
    await until(
        lambda: leading.counted("preflight_check_total", check="dcgm-diag", result="inconclusive"), "it is counted"
    )


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
        leading.counted("preflight_check_failures_total", check="dcgm-diag", node="node-a", error_code="IMAGE_PULL"),
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
    assert event["message"].startswith("dcgm-diag on node-a inconclusive IMAGE_PULL: it could not be started for 60 s")
    assert IMAGE in event["message"]
    assert "see that the image exists" in event["message"]
    assert not_started(leading) == (1, 1, 0)


@pytest.mark.usefixtures("impatient")
async def test_a_controller_that_comes_after_does_not_count_again_what_was_not_started(
    cluster: Cluster, target: Connection
) -> None:
    await cluster.admit("pod-0")
    await pulls_in_vain(cluster)
    async with leads(target) as first:
        await until(lambda: not_started(first) == (1, 1, 0), "it is counted")
    async with leads(target, epoch=2) as second:
        tries = [one for one in second.wire.sent if one.method == "POST" and "/events" in one.path]
        await until(lambda: any(o.method == "POST" and "/events" in o.path for o in second.wire.sent), "it asks")
        await settled(cluster, second)
        assert all(one.status == 409 for one in tries)
        assert not_started(second) == (0, 0, 0)
    assert len(cluster.events) == 1


async def test_a_check_that_is_started_in_time_is_nothing_to_tell(cluster: Cluster, leading: Leading) -> None:
    await cluster.admit("pod-0")
    await pulls_in_vain(cluster)
    await cluster.report("pod-0", container("dcgm-diag", "running"), container("nccl-allreduce", "waiting"))
    await settled(cluster, leading)
    assert not cluster.events
    assert not_started(leading) == (0, 0, 0)
