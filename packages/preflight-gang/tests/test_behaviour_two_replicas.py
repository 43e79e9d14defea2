"""Two controllers as processes: who leads, and that a leader that is killed or stopped loses and
breaks nothing.
"""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from played import Cluster, container, result_line
from preflight_kube.auth.connection import Connection
from preflight_testing.waiting import until
from replica import LEASE_SECONDS, Replica, replica
from wire import Sent

pytestmark = pytest.mark.anyio

PODS = ("pod-0", "pod-1", "pod-2")


@pytest.fixture
async def pair(
    request: pytest.FixtureRequest, target: Connection, cluster: Cluster, tmp_path: Path
) -> AsyncIterator[tuple[Replica, Replica]]:
    """The one that leads, and the other; a parameter is their lease's seconds."""
    lease = getattr(request, "param", LEASE_SECONDS)
    async with (
        replica(target, cluster.namespace, tmp_path / "one", lease=lease) as one,
        replica(target, cluster.namespace, tmp_path / "two", lease=lease) as two,
    ):
        await until(lambda: one.leads or two.leads, "one leads")
        assert not (one.leads and two.leads)
        yield (one, two) if one.leads else (two, one)


async def three_members(cluster: Cluster) -> None:
    for i, name in enumerate(PODS):
        await cluster.admit(name, size=3)
        await cluster.address(name, f"10.0.0.{i + 1}")


SHORT = 5
"""Seconds of a lease that a test outwaits."""


@pytest.mark.parametrize("pair", [SHORT], indirect=True)
async def test_a_leader_stopped_for_three_leases_and_continued_changes_nothing(
    cluster: Cluster, pair: tuple[Replica, Replica]
) -> None:
    leader, other = pair
    leader.wire.holds = lambda sent: sent.is_roster
    await three_members(cluster)
    await until(lambda: len(leader.wire.held) == 3, "all tellings are on the wire")
    leader.send(signal.SIGSTOP)
    began = time.monotonic()
    await cluster.answered("sealed", *PODS)  # by the other, which led meanwhile
    for name in PODS:
        await cluster.test(name)
    await cluster.test("pod-1", restarts=1)
    await cluster.answered("fail", "pod-0", "pod-2", generation=1)
    await anyio.sleep(began + 3 * SHORT - time.monotonic())
    await cluster.answered("wait", "pod-1", generation=2)
    before, sent = cluster.versions(), len(leader.wire.sent)
    late = leader.wire.held
    leader.wire.release()  # what it had sent arrives only now
    await until(lambda: all(one.status for one in late), "the late writes are answered")
    assert {one.status for one in late} == {422}, "each is refused by its tests"
    leader.send(signal.SIGCONT)
    await until(lambda: leader.said("no longer leading"), "it notices")
    await until(
        lambda: any(_renewal(one) for one in leader.wire.sent[sent:]),
        "it stands for election again",
    )
    assert cluster.versions() == before
    assert not [
        one for one in leader.wire.sent[sent:] if one.method != "GET" and "/leases" not in one.path
    ]
    assert other.leads


def _renewal(sent: Sent) -> bool:
    return sent.method == "GET" and "/leases/" in sent.path


async def test_after_a_clean_stop_the_other_leads_without_waiting_for_the_end_of_the_lease(
    cluster: Cluster, pair: tuple[Replica, Replica]
) -> None:
    leader, other = pair
    assert await leader.stop() == 0
    await until(lambda: other.leads, "the other leads", seconds=60)
    await three_members(cluster)
    rosters = await cluster.answered("sealed", *PODS)
    assert {r.epoch for r in rosters} == {2}


async def test_a_run_is_counted_once_whoever_leads(
    cluster: Cluster, pair: tuple[Replica, Replica]
) -> None:
    leader, other = pair
    await cluster.admit("pod-0")
    sick = result_line("dcgm-diag", "failed", "DCGM_FR_FAULTY_MEMORY")
    ended = container("dcgm-diag", "backoff", code=1, message=sick, runs=cluster.namespace)
    await cluster.report("pod-0", ended, container("nccl-allreduce", "waiting"))
    await until(lambda: cluster.events, "an Event")
    names = ("preflight_check_total", "dcgm-diag", "failed")
    with anyio.fail_after(600):
        while (await leader.metrics()).get(names) != 1:
            await anyio.sleep(0.02)
    assert (await leader.metrics())[("preflight_gang_leader",)] == 1
    assert (await other.metrics())[("preflight_gang_leader",)] == 0
    await leader.stop()
    # A second run has ended just now: the status still tells of the first.
    later = result_line("dcgm-diag", "failed", "DCGM_FR_XID_ERROR")
    again = container(
        "dcgm-diag", "ended", code=1, message=later, restarts=1, runs=cluster.namespace
    )
    again["lastState"] = container(
        "dcgm-diag", "ended", code=1, message=sick, runs=cluster.namespace
    )["state"]
    await cluster.report("pod-0", again, container("nccl-allreduce", "waiting"))
    await until(
        lambda: any("DCGM_FR_XID_ERROR" in event["message"] for event in cluster.events),
        "it is reported",
    )
    with anyio.fail_after(600):
        while not any(key[0] == "preflight_check_failures_total" for key in await other.metrics()):
            await anyio.sleep(0.02)
    counted = {key: value for key, value in (await other.metrics()).items() if "dcgm-diag" in key}
    assert counted[names] == 1
    assert {key[2] for key in counted if key[0] == "preflight_check_failures_total"} == {
        "DCGM_FR_XID_ERROR"
    }
    assert len(cluster.events) == 2
