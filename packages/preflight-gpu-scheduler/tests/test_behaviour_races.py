"""More pods than GPUs, from two namespaces, by one scheduler and by two that both think they lead:
no GPU is ever two pods'.
"""

from __future__ import annotations

import random
from functools import partial

import anyio
import pytest
import repeats
from plane import Plane, plane
from preflight_gpu_scheduler.api import names
from preflight_testing.apiserver import ApiServer

pytestmark = pytest.mark.timeout(300 * repeats.REPEAT)
PODS, GPUS = 50, 8


@pytest.mark.parametrize("order", ["in turns", "one namespace first", "at once"])
@pytest.mark.parametrize("world_is", ["counted", "not counted", "of two schedulers"])
def test_fifty_pods_that_want_eight_gpus_get_each_of_them_once(
    real_api_server: ApiServer, order: str, world_is: str
) -> None:
    async def body(number: int) -> None:
        config = {"count_resource": ""} if world_is == "not counted" else {}
        async with plane(real_api_server, **config) as world:
            other = await world.make_namespace(f"{world.namespace}-b")
            await world.node("a", GPUS)
            for namespace in (world.namespace, other):
                await world.claim("one", 1, namespace=namespace)
            for n in range(2 if world_is == "of two schedulers" else 1):
                extender = await world.extender()
                world.scheduler(extender.port, f"scheduler-{n}")
            await world.controller()
            wanted = [
                (f"p-{n}", namespace)
                for n in range(PODS // 2)
                for namespace in (world.namespace, other)
            ]
            if order == "one namespace first":
                wanted.sort(key=lambda one: one[1])
            if order == "at once":
                random.Random(number).shuffle(wanted)
                async with anyio.create_task_group() as group:
                    for name, namespace in wanted:
                        group.start_soon(_create, world, name, namespace)
            else:
                for name, namespace in wanted:
                    await _create(world, name, namespace)
            await world.until("every GPU is given", lambda: len(world.watcher.given) == GPUS)
            await world.explained()
            # Those that have them go, and the same number of others get them.
            for uid, pod in list(world.watcher.pods.items()):
                if pod.bound and pod.allocated is not None:
                    await world.delete_pod(pod.metadata.name, namespace=pod.metadata.namespace)
                    await world.until("it has gone", partial(_gone, world, uid))
            await world.until("every GPU is given again", lambda: len(world.watcher.given) == GPUS)
            await world.explained()
            seen = [
                uuid for where in (world.namespace, other) for uuid in await _told(world, where)
            ]
            assert sorted(seen) == [f"GPU-a-{n}" for n in range(GPUS)]

    repeats.run(body)


async def _create(world: Plane, name: str, namespace: str) -> None:
    await world.pod(name, "one", namespace=namespace)


async def _told(world: Plane, namespace: str) -> list[str]:
    """The UUIDs that the containers of all bound pods are told."""
    pods = (await world.raw(f"/api/v1/namespaces/{namespace}/pods"))["items"]
    annotations = [one["metadata"]["annotations"] for one in pods if one["spec"].get("nodeName")]
    return [uuid for one in annotations for uuid in one[names.NVIDIA_ANNOTATION].split(",")]


def _gone(world: Plane, uid: str) -> bool:
    return uid not in world.watcher.pods
