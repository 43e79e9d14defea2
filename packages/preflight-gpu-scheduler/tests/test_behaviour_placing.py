"""Pods placed by a real kube-scheduler, that asks our extender, against a real API server."""

from __future__ import annotations

import pytest
from plane import Plane
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.names import lease_name

pytestmark = [pytest.mark.timeout(240), pytest.mark.anyio]


async def test_a_pod_gets_neighbouring_gpus_their_leases_and_the_annotations_in_one_binding(
    world: Plane,
) -> None:
    await world.node("a", 8, islands=2)
    await world.claim("two", 2)
    extender = await world.extender()
    world.scheduler(extender.port)
    await world.pod("p", "two")
    pod = await world.bound("p")
    assert pod.annotation(names.ALLOCATED_ANNOTATION) == "a:0,1"
    raw = await world.raw(f"/api/v1/namespaces/{world.namespace}/pods/p")
    said = raw["metadata"]["annotations"]
    assert said[names.CUDA_ANNOTATION] == said[names.NVIDIA_ANNOTATION] == "GPU-a-0,GPU-a-1"
    leases = await world.leases()
    assert set(leases) == {lease_name("a", 0), lease_name("a", 1)}
    assert {one.holder for one in leases.values()} == {pod.metadata.uid}


async def test_nobody_is_evicted_where_the_pod_would_not_get_its_gpus_all_the_same(
    world: Plane,
) -> None:
    for name, value in (("low", 1), ("lower", 2), ("middle", 3), ("high", 9)):
        named, path = (
            f"{name}-{world.namespace}",
            "/apis/scheduling.k8s.io/v1/priorityclasses",
        )
        await world.client.create(path, {"metadata": {"name": named}, "value": value})
        world.cleanup.append(f"{path}/{named}")
    for name in ("a", "b"):
        await world.node(name, 4, islands=2)
    await world.services()
    # Of a the scheduler would evict the two of lowest priority, and they share no island.
    for where, classes in (
        ("a", ("low", "middle", "low", "middle")),
        ("b", ("lower", "lower", "middle", "middle")),
    ):
        for gpu, priority in enumerate(classes):
            claim, pod = f"{where}-{gpu}", f"{where}-{gpu}"
            devices = {"policy": "preferIds", "preferIds": [gpu], "count": 1}
            await world.claim(claim, 1, devices=devices)
            spec = {
                "priorityClassName": f"{priority}-{world.namespace}",
                "nodeSelector": {"kubernetes.io/hostname": where},
            }
            await world.pod(pod, claim, spec=spec)
            assert str((await world.bound(pod)).allocated) == f"{where}:{gpu}"
    await world.claim("pair", 2, topology={"mode": "Required"})
    await world.pod("p", "pair", spec={"priorityClassName": f"high-{world.namespace}"})
    assert str((await world.bound("p")).allocated) == "b:0,1"
    left = {one.metadata.name for one in world.watcher.pods.values()}
    assert left == {"p", *(f"a-{n}" for n in range(4)), "b-2", "b-3"}
