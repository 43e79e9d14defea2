"""`preflight-gang show`: what a person sees of a gang, with or without a controller."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from leading import Leading
from played import Cluster
from preflight_gang.api.sources import BUILT_IN
from preflight_gang.cli import main
from preflight_gang.config import Config, sources_of
from preflight_gang.report.show import show
from preflight_proto.gang_source import GangSource
from preflight_testing.documents import ended
from preflight_testing.plugin import ApiFixture

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _kubeconfig(api: ApiFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))


async def test_a_sealed_gang_is_shown_with_its_members_and_ranks(
    cluster: Cluster, leading: Leading
) -> None:
    await cluster.pair()
    await cluster.answered("sealed", "pod-0", "pod-1")
    shown = (await show(cluster.namespace, "job-1", BUILT_IN)).splitlines()
    assert (
        shown[0] == f"gang {cluster.namespace}/job-1  (by labels; ConfigMap preflight-job-1.labels)"
    )
    assert shown[1] == (
        "  2 members take part, 2 of them ready; generation 1 sealed with 2, 0 passed"
    )
    assert [line.split()[:4] for line in shown[2:]] == [
        ["POD", "RANK", "NODE", "ADDRESS"],
        ["pod-0", "0", "node-a", "10.0.0.1"],
        ["pod-1", "1", "node-a", "10.0.0.2"],
    ]


async def test_what_a_gang_waits_for_is_said_once(cluster: Cluster, leading: Leading) -> None:
    for name in ("pod-0", "pod-1", "pod-2"):
        await cluster.admit(name, size=4, node="" if name == "pod-2" else "node-a")
    for i in range(2):
        await cluster.address(f"pod-{i}", f"10.0.0.{i + 1}")
        await cluster.test(f"pod-{i}")
    await cluster.answered("wait", "pod-0", "pod-1")
    shown = (await show(cluster.namespace, "job-1", BUILT_IN)).splitlines()
    assert shown[1:5] == [
        "  4 members take part, 2 of them ready; not sealed",
        "  waits for",
        "    pod-2: not scheduled yet",
        "    1 of 4 members: no such pod yet",
    ]
    assert [line.split(maxsplit=4)[4] for line in shown[6:]] == [
        "in its gang check",
        "in its gang check",
        "not scheduled yet",
    ]


async def test_without_a_controller_it_is_said_who_has_not_been_told(cluster: Cluster) -> None:
    await cluster.pair(size=3)
    await cluster.test("pod-0")
    shown = (await show(cluster.namespace, "job-1", BUILT_IN)).splitlines()
    assert shown[-2].endswith("in its gang check; not told to wait yet")


async def test_a_gang_is_found_by_one_of_its_pods_and_by_its_record(cluster: Cluster) -> None:
    await cluster.pair()
    every = await show(cluster.namespace, None, BUILT_IN)
    assert every
    for name in ("pod-1", "preflight-job-1.labels"):
        assert await show(cluster.namespace, name, BUILT_IN) == every
    assert await show(cluster.namespace, "job-2", BUILT_IN) == ""


async def test_a_gang_that_is_not_there_ends_show_with_1(cluster: Cluster) -> None:
    await cluster.pair()
    for words in (("job-2", "-n", cluster.namespace), ("-n", "another")):
        end = await anyio.to_thread.run_sync(partial(ended, main, "show", *words))
        what = 'no gang "job-2"' if "job-2" in words else "no gang"
        said = f"{what} in namespace {words[-1]}; `-n` names another one."
        assert (end.status, end.out) == (1, "")
        assert said in end.err


async def test_a_gang_of_a_configured_source_is_shown_with_its_size(cluster: Cluster) -> None:
    source = GangSource(
        name="teams",
        group="scheduling.k8s.io",
        resource="podgroups",
        kind="PodGroup",
        size="1 + 2",
        pod_label="example.com/team",
    )
    path = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{cluster.namespace}/podgroups"
    group = {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "train"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }
    await cluster.client.create(path, group)
    await cluster.pair(gang="train", source="teams", about="train", size=None)
    shown = await show(cluster.namespace, None, sources_of(Config(sources=(source,))))
    assert "3 members take part, 2 of them ready; not sealed" in shown
    assert "by teams train" in shown
