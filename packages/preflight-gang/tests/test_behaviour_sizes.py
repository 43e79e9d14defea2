"""The gang API of Kubernetes: the size stands in an object, which may come late."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from leading import Leading, leads
from played import Cluster, played
from preflight_gang.config import parse
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client.client import Client
from preflight_testing.apiserver import ASSETS, GANG_APIS, ApiServer, assets

pytestmark = pytest.mark.anyio

ASSETS_135 = "PREFLIGHT_KUBEBUILDER_ASSETS_135"
"""Names a folder with a kube-apiserver of 1.35: `workloadRef` and its Workload live in that version
alone.
"""

GANG_OF_TWO: dict[str, Any] = {"gang": {"minCount": 2}}


def pod_group(policy: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "train"},
        "spec": {"schedulingPolicy": policy},
    }


async def create_pod_group(cluster: Cluster, policy: dict[str, Any]) -> None:
    path = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{cluster.namespace}/podgroups"
    await cluster.client.create(path, pod_group(policy))


async def members(cluster: Cluster) -> None:
    """Two pods of the PodGroup `train`, as the webhook stamps them."""
    spec = {"schedulingGroup": {"podGroupName": "train"}}
    await cluster.pair(gang="train", source="schedulingGroup", about="train", size=None, spec=spec)


async def test_the_record_belongs_to_the_object_that_knows_the_size(
    cluster: Cluster, leading: Leading
) -> None:
    await create_pod_group(cluster, GANG_OF_TWO)
    await members(cluster)
    await cluster.answered("sealed", "pod-0", "pod-1")
    path = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{cluster.namespace}/podgroups/train"
    group: dict[str, Any] = await cluster.client.get(path, dict)
    (reference,) = (await cluster.config_map("train", "schedulingGroup"))["metadata"][
        "ownerReferences"
    ]
    assert reference == {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "name": "train",
        "uid": group["metadata"]["uid"],
        "blockOwnerDeletion": False,
    }


@pytest.fixture(scope="module")
def old_api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A kube-apiserver 1.35 that serves the gang API of that version."""
    older, folder = os.environ.get(ASSETS_135), assets()
    if not older or folder is None:
        pytest.skip(f"{ASSETS_135} or {ASSETS} is not set: no kube-apiserver 1.35")
    gates, groups = GANG_APIS["1.35"]
    home = tmp_path_factory.mktemp("apiserver-1.35")
    binary = Path(older) / "kube-apiserver"
    with ApiServer(
        home, folder, kube_apiserver=binary, feature_gates=gates, runtime_config=groups
    ) as server:
        yield server


@pytest.fixture
async def old(
    old_api_server: ApiServer, tmp_path: Path
) -> AsyncIterator[tuple[Cluster, Connection]]:
    """The default namespace of a 1.35 cluster."""
    target = connection({"KUBECONFIG": str(old_api_server.kubeconfig(tmp_path / "kubeconfig"))})
    async with Client(target, agent="tests") as client, played(client, "default") as cluster:
        yield cluster, target


async def test_a_gang_by_workload_ref_has_the_size_of_its_pod_group_in_the_workload(
    old: tuple[Cluster, Connection],
) -> None:
    cluster, target = old
    workload = {
        "apiVersion": "scheduling.k8s.io/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": "train"},
        "spec": {"podGroups": [{"name": "workers", "policy": GANG_OF_TWO}]},
    }
    spec = {"workloadRef": {"name": "train", "podGroup": "workers"}}
    async with leads(target):
        await cluster.pair(
            gang="train/workers", source="workloadRef", about="train", size=None, spec=spec
        )
        assert cluster.pods["pod-0"]["spec"]["workloadRef"] == spec["workloadRef"], (
            "the server knows the field"
        )
        for name in ("pod-0", "pod-1"):
            await cluster.test(name)
        why = "the size is not known: Workload train does not exist yet"
        await cluster.answered("wait", "pod-0", "pod-1", missing=(why,))
        path = "/apis/scheduling.k8s.io/v1alpha1/namespaces/default/workloads"
        await cluster.client.create(path, workload)
        rosters = await cluster.answered("sealed", "pod-0", "pod-1")
        assert [(r.rank, r.nnodes) for r in rosters] == [(0, 2), (1, 2)]


TEAMS = """
sources:
  - {name: teams, group: scheduling.k8s.io, resource: podgroups, kind: PodGroup, size: 1 + spec.schedulingPolicy.gang.minCount, podLabel: team}
"""


async def test_a_gang_of_a_configured_source_has_the_size_that_its_expression_finds(
    cluster: Cluster, target: Connection
) -> None:
    async with leads(target, config=parse(TEAMS)):
        await cluster.pair(gang="train", source="teams", about="train", size=None)
        await cluster.test("pod-0")
        why = "the size is not known: PodGroup train does not exist yet"
        await cluster.answered("wait", "pod-0", missing=(why,))
        await create_pod_group(cluster, GANG_OF_TWO)
        await cluster.answered("wait", "pod-0", missing=("1 of 3 members: no such pod yet",))
        await cluster.admit("pod-2", gang="train", source="teams", about="train", size=None)
        await cluster.address("pod-2", "10.0.0.3")
        await cluster.answered("sealed", "pod-0", "pod-1", "pod-2", nnodes=3)
