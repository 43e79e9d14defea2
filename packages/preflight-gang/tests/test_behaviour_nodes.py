"""A pod is told about its node: once it is bound, once, and with its first roster where that is
early enough.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from gangs import CHECKS
from leading import Leading, settled
from played import Cluster
from preflight_proto import names
from preflight_proto.names import INSTANCE_TYPE_LABEL
from preflight_testing.waiting import until
from test_nodes import OF_THE_GANG, OF_THE_NODE, ZONE

pytestmark = pytest.mark.anyio

TOLD = {
    names.INSTANCE_TYPE_ANNOTATION: "p5.48xlarge",
    names.TOPOLOGY_ANNOTATION: f'{{"{ZONE}":"eu-1a"}}',
}


class Nodes:
    """Nodes of the test's own, though all of a cluster share their names' space."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.name = f"node-{cluster.namespace}"

    async def join(self, **labels: str) -> None:
        said = {INSTANCE_TYPE_LABEL: "p5.48xlarge", ZONE: "eu-1a", **labels}
        await self.cluster.client.create(
            "/api/v1/nodes",
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name, "labels": said}},
        )


@pytest.fixture
async def nodes(cluster: Cluster) -> AsyncIterator[Nodes]:
    made = Nodes(cluster)
    yield made
    await cluster.client.delete(f"/api/v1/nodes/{made.name}")


def spec(volume: dict[str, Any]) -> dict[str, Any]:
    """With that volume, which the first check mounts where it is about the node."""
    mounts = [volume["name"]] if volume is OF_THE_NODE else [], [names.GANG_VOLUME]
    checks = [
        {
            "name": names.container_name(check),
            "image": "x",
            "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in mounted],
        }
        for check, mounted in zip(CHECKS, mounts, strict=True)
    ]
    gang = [{"name": names.GANG_VOLUME, "emptyDir": {}}] if volume is OF_THE_NODE else []
    return {"initContainers": checks, "volumes": [*gang, volume]}


def about_node(cluster: Cluster, pod: str) -> dict[str, str]:
    found: dict[str, str] = cluster.pods[pod]["metadata"].get("annotations", {})
    return {key: value for key, value in found.items() if key in TOLD}


def patches(leading: Leading, pod: str) -> list[list[dict[str, Any]]]:
    return [
        one.json()
        for one in leading.wire.sent
        if one.is_roster and one.path.endswith(f"/pods/{pod}")
    ]


async def test_a_pod_whose_first_check_reads_it_is_told_when_it_is_bound(
    cluster: Cluster, leading: Leading, nodes: Nodes
) -> None:
    await nodes.join()
    await cluster.admit("pod-0", node=nodes.name, spec=spec(OF_THE_NODE))
    await until(lambda: about_node(cluster, "pod-0") == TOLD, "it is told")
    await cluster.report("pod-0", message="something changes")
    await settled(cluster, leading)
    assert len(patches(leading, "pod-0")) == 1


async def test_a_pod_that_came_before_its_node_was_known_is_told_when_it_is(
    cluster: Cluster, leading: Leading, nodes: Nodes
) -> None:
    await cluster.admit("pod-0", node=nodes.name, spec=spec(OF_THE_NODE))
    await settled(cluster, leading)
    assert about_node(cluster, "pod-0") == {}
    await nodes.join()
    await until(lambda: about_node(cluster, "pod-0") == TOLD, "it is told")


async def test_what_the_gang_check_alone_reads_costs_no_write_of_its_own(
    cluster: Cluster, leading: Leading, nodes: Nodes
) -> None:
    await nodes.join()
    # Nodes are read from the first pod on that shows facts of its own.
    await cluster.admit("first", node=nodes.name, spec=spec(OF_THE_NODE))
    await until(lambda: about_node(cluster, "first") == TOLD, "the node is known")
    await cluster.pair(node=nodes.name, spec=spec(OF_THE_GANG))
    await cluster.answered("sealed", "pod-0", "pod-1")
    topology = {names.TOPOLOGY_ANNOTATION: TOLD[names.TOPOLOGY_ANNOTATION]}
    await until(
        lambda: about_node(cluster, "pod-0") == about_node(cluster, "pod-1") == topology,
        "both are told",
    )
    await settled(cluster, leading)
    assert [len(patches(leading, pod)) for pod in ("pod-0", "pod-1")] == [1, 1]


async def test_a_pod_without_any_annotation_is_told(
    cluster: Cluster, leading: Leading, nodes: Nodes
) -> None:
    await nodes.join()
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "alone", "labels": {names.CHECKED_LABEL: "true"}},
        "spec": {
            "nodeName": nodes.name,
            "containers": [{"name": "train", "image": "x"}],
            **spec(OF_THE_NODE),
        },
    }
    await cluster.client.create(f"/api/v1/namespaces/{cluster.namespace}/pods", body)
    await until(
        lambda: "alone" in cluster.pods and about_node(cluster, "alone") == TOLD, "it is told"
    )
