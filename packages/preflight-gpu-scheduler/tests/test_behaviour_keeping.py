"""What the controller keeps right, with a real scheduler and a real API server: collection, gates,
gangs, status, capacity.
"""

from __future__ import annotations

import re

import anyio
import pytest
import repeats
from plane import Plane, having, plane
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.controller.apply import Executor
from preflight_gpu_scheduler.controller.cache import GpuCache
from preflight_gpu_scheduler.core.protocol import CreateLease, Stored, only
from preflight_gpu_scheduler.metrics import WriteMetrics
from preflight_testing.apiserver import ApiServer
from prometheus_client import CollectorRegistry

pytestmark = [pytest.mark.timeout(300), pytest.mark.anyio]


@pytest.mark.parametrize("how", ["deleted", "Succeeded", "Failed"])
async def test_the_gpu_of_a_pod_that_ends_is_a_waiting_pods(world: Plane, how: str) -> None:
    await world.placed("first", claim="one", count=1, gpus=1)
    await world.pod("second", "one")
    if how == "deleted":
        await world.delete_pod("first")
    else:
        await world.end_pod("first", how)
    await world.bound("second")
    await world.explained()


async def test_the_lease_of_a_pod_that_came_again_under_its_name_is_the_new_ones(
    world: Plane,
) -> None:
    first = await world.placed("p", claim="one", count=1, gpus=1)
    await world.delete_pod("p")
    await world.pod("p", "one")
    second = await world.bound("p")
    assert first.metadata.uid != second.metadata.uid
    await world.explained()


async def test_a_pod_waits_behind_its_gate_for_the_claim_and_says_so(world: Plane) -> None:
    await world.node("a", 2)
    await world.services()
    await world.pod("p", "late", counted=2)

    await world.told("GpuClaimMissing")
    await world.claim("late", 2)
    pod = await world.bound("p")
    assert pod.allocated is not None
    assert pod.allocated.ids == (0, 1)


@having(sweep="1s")
async def test_a_pod_keeps_its_gpus_when_its_claim_is_deleted_and_the_next_one_waits_for_another(
    world: Plane,
) -> None:
    await world.placed("p", claim="one", count=1, gpus=2)
    await world.delete_claim("one")
    await world.pod("q", "one", counted=1)
    told = await world.told("GpuClaimMissing")
    assert told.startswith("there is no GpuClaim one in this namespace")
    assert set(world.watcher.given) == {("a", 0)}
    await world.explained()
    await world.claim("one", 1)
    await world.bound("q")
    both = {("a", 0), ("a", 1)}
    await world.until("both have their GPU", lambda: set(world.watcher.given) == both)


@having(count_resource="")
async def test_a_gpu_that_turns_well_is_not_kept_from_a_pod_by_an_older_one_that_cannot_be_placed(
    world: Plane,
) -> None:
    """Nothing else happens in the cluster that would make the scheduler try the second one."""
    await world.node("a", 1, cpu="4")
    gpu = {"id": 0, "uuid": "GPU-a-0"}
    sick = {**gpu, "health": "Unhealthy"}
    await world.status_of("a", {"total": 1, "devices": [sick]})
    await world.claim("one", 1)
    await world.services()
    for name, cpu in (("a-large-one", "64"), ("b", "1")):
        await world.pod(name, "one", cpu=cpu)

        def rejected(name: str = name) -> bool:
            said = [line for line in world.log().splitlines() if "no fit; waiting" in line]
            return any(f'"{world.namespace}/{name}"' in line for line in said)

        await world.until("it is rejected", rejected)
    await world.status_of("a", {"total": 1, "devices": [{**gpu, "health": "Healthy"}]})
    await world.bound("b")


async def test_a_pod_is_told_of_a_gpu_that_turned_sick_and_of_one_that_it_never_got(
    world: Plane,
) -> None:
    await world.placed("p", claim="one", count=1, gpus=2)
    sick = [{"id": 0, "health": "Unhealthy", "reason": "XID 79"}, {"id": 1}]
    await world.status_of("a", {"total": 2, "devices": sick})
    await world.told("GpuUnhealthy", words="GPU 0 of a is unhealthy: XID 79")
    assert (await world.read_pod("p")).bound
    await world.client.merge_patch("/api/v1/nodes/a", {"spec": {"unschedulable": True}})
    await world.pod("q", "one")
    binding = {"metadata": {"name": "q"}, "target": {"kind": "Node", "name": "a"}}
    path = f"/api/v1/namespaces/{world.namespace}/pods/q/binding"
    await world.client.create(path, {"apiVersion": "v1", "kind": "Binding", **binding})
    await world.told("GpusNotAllocated", words="sees no GPU")


async def test_a_node_is_told_who_else_hands_out_its_gpus_and_that_a_condition_names_none_of_them(
    world: Plane,
) -> None:
    await world.node("a", 4, islands=2)
    await world.controller()
    bad = {"type": "Bad", "status": "True", "message": "GPU_UUID:GPU-nobody is lost"}
    ready = {"type": "Ready", "status": "True"}
    await world.client.merge_patch(
        "/api/v1/nodes/a/status", {"status": {"conditions": [ready, bad]}}
    )
    told = await world.told("UnknownGpu", namespace="default")
    assert told == "node condition Bad names GPU-nobody, which is no GPU of this node"
    await world.status_of("a", {"total": 4, "conflicts": ["device-plugin"]})
    told = await world.told("DevicePluginConflict", namespace="default")
    assert told.startswith("a device plugin hands out the GPUs of this node, too")


@having(sweep="1s")
async def test_the_status_of_a_node_that_is_gone_goes_with_it(world: Plane) -> None:
    await world.node("a", 4)
    await world.node("b", 4)
    await world.controller()
    await world.client.delete("/api/v1/nodes/a")
    path = f"/apis/{names.API_VERSION}/gpunodestatuses"

    async def gone() -> bool:
        return await world.client.get_or_none(f"{path}/a", dict) is None

    await world.until("its status is gone", gone)
    assert await world.raw(f"{path}/b")


async def _gang(world: Plane, name: str, members: int) -> None:
    await world.claim(name, 1, gang=name)
    for n in range(members):
        await world.pod(f"{name}-{n}", name, gang_size=str(members))


@pytest.mark.timeout(300 * repeats.REPEAT)
def test_of_two_gangs_that_do_not_fit_together_one_runs_and_the_other_holds_nothing(
    real_api_server: ApiServer,
) -> None:
    async def body(_: int) -> None:
        async with plane(real_api_server) as world:
            for node in ("a", "b", "c"):
                await world.node(node, 4)
            await world.services()
            async with anyio.create_task_group() as group:
                group.start_soon(_gang, world, "red", 8)
                group.start_soon(_gang, world, "blue", 8)
            await world.until("a gang is bound", lambda: len(world.watcher.given) == 8)
            winner = next(iter(world.watcher.given.values())).split("-")[0]
            assert {pod.split("-")[0] for pod in world.watcher.given.values()} == {winner}
            await world.explained()
            loser = "blue" if winner == "red" else "red"
            for n in range(8):
                await world.delete_pod(f"{winner}-{n}")
            await world.until("the other runs", lambda: len(world.watcher.given) == 8)
            assert {pod.split("-")[0] for pod in world.watcher.given.values()} == {loser}

    repeats.run(body)


async def test_members_of_a_native_pod_group_are_a_gang_of_its_size_and_run_together(
    world: Plane,
) -> None:
    """The stock scheduler filters all of them before it binds one; the size is the PodGroup's, as
    no pod says it.
    """

    for node in ("a", "b"):
        await world.node(node, 2)
    await world.services(gates="GenericWorkload=true,GangScheduling=true")
    path = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{world.namespace}/podgroups"
    group = {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "job"},
    }
    await world.client.create(
        path, {**group, "spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}}
    )
    await world.claim("one", 1, gang="job")
    for n in range(3):
        await world.pod(f"job-{n}", "one", native="job")

    await world.told("GangWaiting")
    assert world.watcher.given == {}
    assert not await world.leases()
    await world.pod("job-3", "one", native="job")
    await world.until("all of them run", lambda: len(world.watcher.given) == 4)
    told = await world.told("GangReserved")
    assert told.startswith("gang job is reserved whole, 4 members; GPUs ")
    await world.explained()


async def test_a_pod_that_holds_gpus_and_is_not_bound_is_told_which_and_for_how_long(
    world: Plane,
) -> None:
    await world.node("a", 2)
    await world.claim("two", 2)
    await world.controller()
    await world.pod("p", "two")
    pod = await world.read_pod("p")
    executor = Executor(
        world.client,
        world.config,
        GpuCache(world.client, world.config),
        WriteMetrics(CollectorRegistry()),
    )
    for gpu in range(2):
        need = CreateLease(pod=pod, node="a", gpu=gpu)
        stored = await executor.run(only(need), 30.0)
        assert isinstance(stored, Stored)
    said = await world.told("GpusReserved")
    assert said == "it holds GPUs 0 of a, 1 of a for 60 s, and is not bound to its node yet"
    show = world.command("show", name="show")
    assert await anyio.to_thread.run_sync(show.wait) == 0
    shown = world.log("show")
    assert re.search(rf"1:reserved for {world.namespace}/p for \d+ s\b", shown), shown
