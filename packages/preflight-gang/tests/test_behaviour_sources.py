"""The source is part of what a gang is: two sources may give two gangs one name."""

from __future__ import annotations

import anyio
import pytest
from leading import Leading
from played import Cluster
from preflight_gang.api.sources import BUILT_IN
from preflight_gang.controller import workload_watch
from preflight_gang.controller.workload_watch import WorkloadWatch
from preflight_gang.report.show import show
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_proto import names
from preflight_testing.plugin import ApiFixture
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio

LABELS, QUEUE = ("labels-0", "labels-1"), ("kueue-0", "kueue-1")


async def test_gangs_of_two_sources_with_one_name_do_not_wait_for_each_other(
    cluster: Cluster, leading: Leading
) -> None:
    for name in (*LABELS, *QUEUE):
        await cluster.admit(name, gang="train", source=name.partition("-")[0])
    for number, name in enumerate(LABELS):
        await cluster.address(name, f"10.0.0.{number + 1}")
    rosters = await cluster.answered("sealed", *LABELS)
    assert {r.nnodes for r in rosters} == {2}
    assert [cluster.published(name) for name in QUEUE] == [None, None]
    for number, name in enumerate(QUEUE):
        await cluster.address(name, f"10.0.0.{number + 3}")
    rosters = await cluster.answered("sealed", *QUEUE)
    assert {(r.nnodes, r.master_addr) for r in rosters} == {(2, "10.0.0.3")}
    for source in ("labels", "kueue"):
        found = await cluster.config_map("train", source)
        assert f"{source}-0:10.0.0." in found["data"]["peers"]
        assert found["metadata"]["annotations"][names.PREFIX + "gang-source"] == source


async def test_show_names_each_of_two_gangs_with_one_name(
    cluster: Cluster, api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
    for name in (LABELS[0], QUEUE[0]):
        await cluster.admit(name, gang="train", source=name.partition("-")[0])
    both = await show(cluster.namespace, "train", BUILT_IN)
    assert "(by labels; ConfigMap preflight-train.labels)" in both
    assert "(by kueue; ConfigMap preflight-train.kueue)" in both
    assert "kueue" not in await show(cluster.namespace, "labels:train", BUILT_IN)


async def test_objects_are_followed_in_another_version_once_theirs_is_served_no_more(
    cluster: Cluster, target: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when an operator's upgrade retires the version that was found first."""
    found: list[str | None] = ["/apis/scheduling.k8s.io/v1alpha9/podgroups", None]

    async def served(client: Client, group: str, resource: str) -> str | None:
        return found.pop(0) if found else f"/apis/{group}/v1alpha2/{resource}"

    monkeypatch.setattr(workload_watch, "served", served)
    monkeypatch.setattr(workload_watch, "ABSENT_RETRY", 0.05)
    changes: list[str] = []
    async with Client(target, agent="tests") as client, anyio.create_task_group() as group:
        watch = WorkloadWatch(client, lambda *change: changes.append(change[2]), BUILT_IN)
        group.start_soon(watch.run)
        await until(
            lambda: (
                "does not serve" in str(watch.find("schedulingGroup", cluster.namespace, "train"))
            ),
            "the version is missed",
            seconds=10,
        )
        await until(
            lambda: (
                watch.find("schedulingGroup", cluster.namespace, "train") == "does not exist yet"
            ),
            "another one is found",
        )
        group.cancel_scope.cancel()
