"""Claims and scheduling with the real kube-scheduler and resource claim controller: nodes and the
channels that they offer are objects without kubelets.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from cliques import DRIVER, ON, clique, pcs
from live import Space, api_server, leading, space_of
from preflight_testing.apiserver import ApiServer, assets
from preflight_testing.grove import pods
from registered import registered

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
NODES = [f"node-{i}" for i in range(4)]
CHANNELS = "compute-domain.nvidia.com"
CLASS = "compute-domain-default-channel.nvidia.com"
RESOURCE = "/apis/resource.k8s.io/v1"


@pytest.fixture(scope="module")
def scheduled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Four nodes that offer a channel each."""
    with api_server(tmp_path_factory.mktemp("scheduled")) as server:
        cel = f'device.driver == "{CHANNELS}" && device.attributes["{CHANNELS}"].type == "channel"'
        made: Json = {
            "metadata": {"name": CLASS},
            "spec": {"selectors": [{"cel": {"expression": cel}}]},
        }
        server.call("POST", f"{RESOURCE}/deviceclasses", made)
        for name in NODES:
            amounts = {"cpu": "64", "memory": "512Gi", "pods": "200", "nvidia.com/gpu": "8"}
            ready = [{"type": "Ready", "status": "True"}]
            status = {"capacity": amounts, "allocatable": amounts, "conditions": ready}
            about = {
                "name": name,
                "labels": {"kubernetes.io/hostname": name, "nvidia.com/gpu.clique": "rack.0"},
            }
            found = server.call("POST", "/api/v1/nodes", {"metadata": about, "status": status})
            # A node begins as not ready for the API server, and nobody here takes that taint away.
            found["spec"].pop("taints", None)
            server.call("PUT", f"/api/v1/nodes/{name}", found)
            channel = {
                "name": "channel-0",
                "attributes": {"type": {"string": "channel"}, "id": {"int": 0}},
            }
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": CHANNELS, "nodeName": name, "pool": pool, "devices": [channel]}
            server.call(
                "POST", f"{RESOURCE}/resourceslices", {"metadata": {"name": name}, "spec": spec}
            )
        with scheduler(server):
            yield server


@contextmanager
def scheduler(server: ApiServer) -> Iterator[None]:
    folder = assets()
    assert folder is not None
    access = server.kubeconfig(server.home / "scheduler.kubeconfig")
    command = [
        str(folder / "kube-scheduler"),
        f"--kubeconfig={access}",
        "--leader-elect=false",
        "--secure-port=0",
    ]
    with (server.home / "scheduler.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def test_four_pods_of_a_domain_go_to_four_nodes_and_a_fifth_waits_until_one_of_them_ends(
    scheduled: ApiServer, tmp_path: Path
) -> None:
    async with (
        space_of(scheduled, tmp_path, DRIVER, webhook=True) as space,
        leading(space.target, DRIVER),
        registered(space, DRIVER, tmp_path / "tls"),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(space.driver.run)
        await space.grove.apply(pcs("t", [clique("w", 1, replicas=5)], annotations=ON))
        await space.grove.turn()
        (stored,) = (await space.grove.all("podcliques")).values()
        path = f"/api/v1/namespaces/{space.namespace}/pods"
        for pod in pods(stored):
            pod["spec"].pop("schedulingGates")
            await space.client.create(path, pod)

        async def placed() -> list[str]:
            return sorted(
                node
                for one in (await space.all(path)).values()
                if (node := one["spec"].get("nodeName"))
            )

        await space.settled(placed, NODES, 60)
        await space.happens(lambda: _told(space, path), "the scheduler's reason", 60)
        (domain,) = (await space.domains()).values()
        claims = [
            one
            for one in (await space.all(space.claim_path("resourceclaims"))).values()
            if "allocation" in one.get("status", {})
        ]
        named = {
            config["opaque"]["parameters"]["domainID"]
            for one in claims
            for config in one["status"]["allocation"]["devices"]["config"]
            if "opaque" in config
        }
        assert (len(claims), named) == (4, {domain["metadata"]["uid"]})
        gone = next(
            name for name, one in (await space.all(path)).items() if "nodeName" in one["spec"]
        )
        await space.client.delete(f"{path}/{gone}?gracePeriodSeconds=0")
        await space.settled(placed, NODES, 60)
        await space.client.delete(path + "?gracePeriodSeconds=0")
        tasks.cancel_scope.cancel()


async def _told(space: Space, path: str) -> bool:
    waiting = [one for one in (await space.all(path)).values() if "nodeName" not in one["spec"]]
    said = [
        condition.get("message", "")
        for one in waiting
        for condition in one["status"].get("conditions", [])
    ]
    return len(waiting) == 1 and any("cannot allocate all claims" in one for one in said)
