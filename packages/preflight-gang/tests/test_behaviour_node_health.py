"""NodeHealth: what conditions and results say of a node is written down, by one leader and the
next.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
from leading import Leading, leads, settled
from played import Cluster, clock, container
from preflight_gang.controller import node_health
from preflight_kube.api.node_health import NodeHealth, path
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client, NotFound
from preflight_kube.runtime.writes import Answer, Write, apply
from preflight_proto import names
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio

GPU = "GPU-5c1b8f0e-0000-4000-8000-000000000003"
CONDITION = {
    "type": "NCCLLoopbackTestBandwidth",
    "status": "True",
    "reason": "NCCLLoopbackTestBandwidthIsNotHealthy",
    "message": f"ErrorCode:SLOW_GPU GPU_UUID:{GPU} is slow. Recommended Action=CONTACT_SUPPORT;",
    "lastTransitionTime": "2026-11-20T08:00:00Z",
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's next look is not waited for, but where a test is about that."""
    monkeypatch.setattr(node_health, "MIN_INTERVAL", 0.05)
    monkeypatch.setattr(node_health, "LOOK_AGAIN", 0.05)


class Node:
    """One of the test's own, and what is written of it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self.name = cluster, f"node-{cluster.namespace}"
        self.health: NodeHealth | None = None

    async def join(self, **status: Any) -> None:
        about = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}}
        await self._cluster.client.create("/api/v1/nodes", about)
        if status:
            await self.becomes(**status)

    async def becomes(self, **status: Any) -> None:
        """Have its kubelet or the platform connector write its status."""
        await self._cluster.client.merge_patch(
            f"/api/v1/nodes/{self.name}/status", {"status": status}
        )

    async def run(self, name: str, outcome: str, code: str, at: int | str, **more: Any) -> None:
        """A pod of it whose nccl-loopback has ended at that time, or second."""
        said = {"v": 1, "check": "nccl-loopback", "outcome": outcome, "code": code, "gated": True}
        line = json.dumps({**said, "duration": 1.0, **more})
        ended = container(
            "nccl-loopback",
            "ended",
            code=int(outcome == "failed"),
            message=line,
            runs=name + self._cluster.namespace,
        )
        time = clock(at) if isinstance(at, int) else at
        ended["state"]["terminated"]["finishedAt"] = time
        checks = [{"name": names.container_name("nccl-loopback"), "image": "x"}]
        await self._cluster.admit(
            name, gang=name, size=1, node=self.name, spec={"initContainers": checks, "volumes": []}
        )
        await self._cluster.report(name, ended)

    async def is_written(self, so: Callable[[NodeHealth], bool], what: str) -> NodeHealth:
        """Wait until what is written of it is ``so``."""
        found: NodeHealth | None = None
        with anyio.move_on_after(60):
            while found is None or not so(found):
                await anyio.sleep(0.02)
                try:
                    found = await self._cluster.client.get(path(self.name), NodeHealth)
                except NotFound:
                    continue
            return found
        raise AssertionError(f"not {what}: {found}")


@pytest.fixture
async def node(cluster: Cluster) -> AsyncIterator[Node]:
    made = Node(cluster)
    yield made
    for where in ("/api/v1/nodes/" + made.name, path(made.name)):
        try:
            await cluster.client.delete(where)
        except NotFound:
            continue


async def test_a_condition_makes_its_node_sick_and_a_pass_after_the_repair_well(
    cluster: Cluster, leading: Leading, node: Node
) -> None:
    await node.join(conditions=[CONDITION])
    sick = await node.is_written(lambda it: it.status.state == "Sick", "sick")
    assert (sick.status.since, sick.status.found_by) == (
        CONDITION["lastTransitionTime"],
        CONDITION["type"],
    )
    assert (sick.status.code, sick.status.gpu) == ("SLOW_GPU", GPU)
    assert sick.status.by_word_of == "NodeCondition"
    uid = (await cluster.client.get(f"/api/v1/nodes/{node.name}", dict))["metadata"]["uid"]
    assert sick.spec.node_uid == uid
    assert [owner.uid for owner in sick.metadata.owner_references] == [uid]

    await node.becomes(conditions=[{**CONDITION, "status": "False"}])
    repaired = await node.is_written(lambda it: it.status.state == "Unknown", "repaired")
    assert repaired.status.repaired is not None
    assert [one.uuid for one in repaired.status.gpus] == [GPU]
    await node.run("before", "passed", "OK", 1)
    await node.run("after", "passed", "OK", "2999-01-01T00:00:00Z")  # written as now
    well = await node.is_written(lambda it: it.status.state == "Healthy", "well")
    assert well.status.revalidated == well.status.last_pass
    assert well.status.gpus == ()


async def test_a_run_that_ends_while_the_record_is_written_is_in_the_next_one(
    cluster: Cluster, leading: Leading, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.join(conditions=[CONDITION])
    await node.is_written(lambda it: it.status.state == "Sick", "sick")
    written, ended = anyio.Event(), anyio.Event()

    async def held(client: Client, write: Write) -> Answer:
        answer = await apply(client, write)
        if write.path == path(node.name):
            written.set()
            await ended.wait()
        return answer

    monkeypatch.setattr(node_health, "apply", held)
    await node.becomes(conditions=[{**CONDITION, "status": "False"}])
    await written.wait()
    await node.run("good", "passed", "OK", "2999-01-01T00:00:00Z")
    passed = {"check": "nccl-loopback", "result": "passed"}
    await until(lambda: leading.counted("preflight_check_total", **passed), "it is counted")
    ended.set()
    await node.is_written(lambda it: it.status.state == "Healthy", "well")


async def test_a_result_makes_its_node_suspect_and_what_it_measured_is_kept(
    cluster: Cluster, leading: Leading, node: Node
) -> None:
    await node.join()
    await node.run("good", "passed", "OK", 1, measured=480.0)
    await node.is_written(lambda it: it.status.state == "Healthy", "well")
    await node.run("bad", "failed", "SLOW_GPU", 2, measured=90.0, subject=GPU, blames="SLOW_GPU")
    found = await node.is_written(lambda it: it.status.state == "Suspect", "suspect")
    (check,) = found.status.checks
    assert (found.status.by_word_of, found.status.gpu) == ("PodResult", GPU)
    assert (found.status.measured, found.status.usual) == (90.0, 480.0)
    assert check.failed is not None
    assert check.failed.pod == f"{cluster.namespace}/bad"
    about = {"check": "nccl-loopback", "node": node.name}
    await until(lambda: leading.counted("preflight_measured_gbps", **about) == 90, "it is shown")
    assert leading.counted("preflight_nodes", state="Suspect") >= 1


async def test_the_next_leader_shows_what_was_of_pods_that_have_gone(
    cluster: Cluster, target: Connection, node: Node
) -> None:
    await node.join()
    about = {"check": "nccl-loopback", "node": node.name}
    async with leads(target) as first:
        await node.run("good", "passed", "OK", 1, measured=480.0)
        await node.is_written(lambda it: it.status.state == "Healthy", "well")
        await cluster.delete("good")
        await settled(cluster, first)
    for metric in ("preflight_measured_gbps", "preflight_node_last_pass_timestamp_seconds"):
        assert first.counted(metric, **about) == 0, "who leads no more shows nothing"
    async with leads(target, epoch=2) as second:
        await until(
            lambda: second.counted("preflight_measured_gbps", **about) == 480, "it is shown"
        )
        await settled(cluster, second)
        assert not [one for one in second.wire.sent if one.path.startswith(path(node.name))]


async def test_nothing_is_written_where_nothing_has_changed(
    cluster: Cluster, leading: Leading, node: Node
) -> None:
    await node.join(conditions=[CONDITION])
    written = await node.is_written(lambda it: it.status.state == "Sick", "sick")
    await node.becomes(
        conditions=[
            {**CONDITION, "lastHeartbeatTime": "2026-11-26T10:00:00Z"},
            {"type": "Ready", "status": "True", "reason": "R", "message": "m"},
        ]
    )
    await node.run("alone", "skipped", "ONE_GPU", 1)
    await until(
        lambda: leading.counted("preflight_check_total", check="nccl-loopback", result="skipped"),
        "the run is counted",
    )
    await settled(cluster, leading)
    now = await cluster.client.get(path(node.name), NodeHealth)
    assert now.metadata.resource_version == written.metadata.resource_version


async def test_a_node_without_gpus_has_no_record(
    cluster: Cluster, leading: Leading, node: Node
) -> None:
    await node.join(capacity={"cpu": "8", "nvidia.com/gpu": "0"})
    await settled(cluster, leading)
    assert leading.controller.reports.health.cache.get(node.name) is None


async def test_many_changes_within_seconds_are_one_write(
    cluster: Cluster, leading: Leading, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.join(conditions=[CONDITION])
    await node.is_written(lambda it: it.status.state == "Sick", "sick")
    monkeypatch.setattr(node_health, "MIN_INTERVAL", 600.0)
    before = len(leading.wire.sent)
    for second in range(3):
        await node.run(f"pod-{second}", "passed", "OK", second)
    await until(
        lambda: (
            leading.counted("preflight_check_total", check="nccl-loopback", result="passed") == 3
        ),
        "the runs are counted",
    )
    await settled(cluster, leading)
    puts = [one for one in leading.wire.sent[before:] if one.path == f"{path(node.name)}/status"]
    assert len(puts) <= 1


async def test_a_record_that_somebody_has_deleted_is_made_again(
    cluster: Cluster, leading: Leading, node: Node
) -> None:
    await node.join(conditions=[CONDITION])
    first = await node.is_written(lambda it: it.status.state == "Sick", "sick")
    await cluster.client.delete(path(node.name))
    await node.is_written(
        lambda it: it.metadata.uid != first.metadata.uid and it.status.state == "Sick", "made again"
    )


async def test_the_record_of_an_earlier_node_of_the_name_is_left_to_the_garbage_collector(
    cluster: Cluster, leading: Leading, node: Node
) -> None:
    await node.join(conditions=[CONDITION])
    first = await node.is_written(lambda it: it.status.state == "Sick", "sick")
    await cluster.client.delete(f"/api/v1/nodes/{node.name}")
    await node.join(capacity={"nvidia.com/gpu": "8"})
    await settled(cluster, leading)
    assert node.name not in [name for name, _ in leading.metrics.fleet()]
    await cluster.client.delete(path(node.name))  # as the garbage collector does
    found = await node.is_written(
        lambda it: it.metadata.uid != first.metadata.uid and it.status.since is not None, "its own"
    )
    assert found.status.state == "Unknown"


async def test_what_ran_on_an_earlier_node_of_the_name_says_nothing_of_the_new_one(
    cluster: Cluster, target: Connection, node: Node
) -> None:
    await node.join(capacity={"nvidia.com/gpu": "8"})
    async with leads(target):
        await node.run("bad", "failed", "SLOW_GPU", 1, blames="SLOW_GPU")
        await node.is_written(lambda it: it.status.state == "Suspect", "suspect")
    for of_it in (f"/api/v1/nodes/{node.name}", path(node.name)):
        await cluster.client.delete(of_it)
    await anyio.sleep(1.1)  # times of creation are whole seconds
    await node.join(capacity={"nvidia.com/gpu": "8"})
    async with leads(target, epoch=2) as second:
        await settled(cluster, second)
        found = await node.is_written(lambda it: it.status.since is not None, "its own")
        assert found.status.state == "Unknown"
        await node.run("good", "passed", "OK", 2)
        now = await node.is_written(lambda it: it.status.last_pass is not None, "tested")
        assert (now.status.state, now.status.checks[0].failed) == ("Healthy", None)
