"""Pods placed by a real kube-scheduler, that asks our extender, against a real API server."""

from __future__ import annotations

import anyio
import pytest
from plane import plane
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.names import lease_name
from preflight_testing.apiserver import ApiServer

pytestmark = pytest.mark.timeout(240)


def test_a_pod_gets_neighbouring_gpus_their_leases_and_the_annotations_in_one_binding(
    real_api_server: ApiServer,
) -> None:
    async def body() -> None:
        async with plane(real_api_server) as world:
            await world.node("a", 8, islands=2)
            await world.claim("two", 2)
            extender = await world.extender()
            world.scheduler(extender.port)
            await world.pod("p", "two")
            pod = await world.bound("p")
            assert pod.metadata.said[names.ALLOCATED_ANNOTATION] == "a:0,1"
            raw = await world.raw(f"/api/v1/namespaces/{world.namespace}/pods/p")
            said = raw["metadata"]["annotations"]
            assert said[names.CUDA_ANNOTATION] == said[names.NVIDIA_ANNOTATION] == "GPU-a-0,GPU-a-1"
            leases = await world.leases()
            assert set(leases) == {lease_name("a", 0), lease_name("a", 1)}
            assert {one.holder for one in leases.values()} == {pod.metadata.uid}

    anyio.run(body)
