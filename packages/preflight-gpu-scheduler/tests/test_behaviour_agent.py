"""The agent as a process of its own, on the fake NVML and against a real API server."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from plane import Plane, plane
from preflight_gpu_scheduler.api import names
from preflight_testing.apiserver import ApiServer
from preflight_testing.fakes import NVML, NvmlError, build_nvml

pytestmark = [pytest.mark.timeout(400), pytest.mark.anyio]
UUIDS = [f"GPU-{n:08x}" for n in range(4)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    try:
        build_nvml(NVML, folder / "libnvidia-ml.so.1")
    except NvmlError as error:
        pytest.skip(str(error))
    return folder


class Node:
    """A node whose NVML is the fake one."""

    def __init__(self, world: Plane, library: Path) -> None:
        self.world, self._library, self._file = world, library, world.home / "node.json"
        self._process: subprocess.Popen[bytes] | None = None

    def gpus(self, uuids: list[str], **more: dict[str, str]) -> None:
        """What NVML lists, in this order. ``more``: further facts by UUID, its dashes as
        underscores.
        """
        listed = [
            {
                "uuid": one,
                "name": "H",
                "pci": f"00000000:{n:02X}:00.0",
                "link": "nvlink",
                **more.get(one.replace("-", "_"), {}),
            }
            for n, one in enumerate(uuids)
        ]
        self._file.write_text(json.dumps({"gpus": listed}))

    def start(self, boot: str = "boot-1") -> None:
        (self.world.home / "boot").write_text(f"{boot}\n")
        self._process = self.world.command(
            *("agent", "--node", "a", "--port", "0"),
            name="agent",
            environment={
                "LD_LIBRARY_PATH": str(self._library),
                "FAKE_NODE_JSON": str(self._file),
                "ALT_BOOT_ID_PATH": str(self.world.home / "boot"),
                "NVIDIA_VISIBLE_DEVICES": ",".join(UUIDS),
            },
        )

    async def begin(self) -> dict[str, Any]:
        """Start the agent; its four GPUs, once it has listed them."""
        self.start()
        return await self.until("four GPUs are listed", lambda found: len(found) == 4)

    async def conditions(self, *more: dict[str, str]) -> None:
        ready = {"type": "Ready", "status": "True"}
        change = {"status": {"conditions": [ready, *more]}}
        await self.world.client.merge_patch("/api/v1/nodes/a/status", change)

    async def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return await anyio.to_thread.run_sync(self._process.wait)

    async def devices(self) -> dict[str, Any]:
        raw = await self.world.client.get_or_none(
            f"/apis/{names.API_VERSION}/gpunodestatuses/a", dict
        )
        return {
            one["uuid"]: one
            for one in (raw or {}).get("status", {}).get("devices", ())
            if one.get("uuid")
        }

    async def until(self, what: str, fact: Any) -> dict[str, Any]:
        async def held() -> dict[str, Any] | None:
            found = await self.devices()
            return found if found and fact(found) else None

        found: dict[str, Any] = await self.world.until(what, held)
        return found


@pytest.fixture
async def node(
    request: pytest.FixtureRequest, real_api_server: ApiServer, library: Path
) -> AsyncIterator[Node]:
    """With four GPUs, and no agent yet. A parameter: more of the configuration."""
    async with plane(real_api_server, **getattr(request, "param", {})) as world:
        await world.node("a", 0)
        made = Node(world, library)
        made.gpus(UUIDS)
        yield made


async def test_the_agent_says_what_nvml_and_the_node_say_of_each_gpu(node: Node) -> None:
    found = await node.begin()
    assert [found[one]["id"] for one in UUIDS] == [0, 1, 2, 3]
    assert {one["island"] for one in found.values()} == {"nvlink-0"}
    assert {one.get("health", "Healthy") for one in found.values()} == {"Healthy"}
    message = f"fatal GPU_UUID:{UUIDS[2]} 79"
    await node.conditions({"type": "GpuXid", "status": "True", "reason": "x", "message": message})
    found = await node.until(
        "one is sick", lambda found: found[UUIDS[2]].get("health") == "Unhealthy"
    )
    assert sum(one.get("health") == "Unhealthy" for one in found.values()) == 1
    await node.conditions()
    await node.until(
        "it is well again",
        lambda found: found[UUIDS[2]].get("health", "Healthy") == "Healthy",
    )


async def test_a_driver_s_library_that_crashes_does_not_end_the_agent(node: Node) -> None:
    crashes = {"faults": "nvmlDeviceGetMigMode=crash"}
    node.gpus(UUIDS, **{UUIDS[2].replace("-", "_"): crashes})
    node.start()
    found = await node.until("four GPUs are listed", lambda found: len(found) == 4)
    assert {one["health"] for one in found.values()} == {"Unknown"}
    assert await node.stop() == 0


async def test_an_xid_outlives_the_agent_and_ends_with_the_boot(node: Node) -> None:
    node.gpus(UUIDS, **{UUIDS[1].replace("-", "_"): {"xid": "79"}})
    node.start()

    def sick(found: dict[str, Any]) -> bool:
        return {one for one in found if found[one].get("health") == "Unhealthy"} == {UUIDS[1]}

    await node.until("it has had an XID", sick)
    assert await node.stop() == 0
    node.gpus(UUIDS[::-1])  # in another order, so that the next agent's look is seen
    node.start()
    bus = "0000:02:00.0"
    found = await node.until(
        "the next agent has looked", lambda found: found[UUIDS[1]]["pciBusId"] == bus
    )
    assert sick(found)
    assert found[UUIDS[1]]["reason"] == "XID 79"
    assert await node.stop() == 0
    node.start("boot-2")
    await node.until("the reboot forgives it", lambda found: not sick(found))


@pytest.mark.parametrize("node", [pytest.param({"count_resource": ""}, id="none")], indirect=True)
async def test_a_gpu_that_a_node_condition_names_is_nobodys_until_the_condition_clears(
    node: Node,
) -> None:
    """By the agent's own status, with a real scheduler and nothing else that knows of GPUs."""

    world = node.world
    await node.begin()
    for name, count in (("three", 3), ("four", 4)):
        await world.claim(name, count)
    extender = await world.services()

    def usable() -> list[int]:
        assert extender.state is not None
        found = extender.state.statuses.store["a"].devices
        return [one.id for one in found if one.usable]

    message = f"fatal GPU_UUID:{UUIDS[1]} ;"
    await node.conditions({"type": "GpuXidError", "status": "True", "message": message})
    await world.until("it is out, and no other", lambda: usable() == [0, 2, 3])
    await world.pod("p", "three")
    pod = await world.bound("p")
    assert pod.allocated is not None
    assert pod.allocated.ids == (0, 2, 3)
    await world.pod("q", "four")
    await world.delete_pod("p")
    await world.until("the others are free", lambda: not world.watcher.given)
    assert not (await world.read_pod("q")).bound
    await node.conditions()
    pod = await world.bound("q")
    assert pod.allocated is not None
    assert pod.allocated.ids == (0, 1, 2, 3)


async def test_a_pod_that_says_it_has_a_gpu_is_named_as_its_user_where_the_lease_says_so_too(
    node: Node,
) -> None:
    world = node.world
    await node.begin()

    async def running(name: str, gpu: int) -> str:
        """Its uid."""
        annotations = {names.ALLOCATED_ANNOTATION: f"a:{gpu}"}
        made = await world.try_pod(name, claim="x", annotations=annotations, nodeName="a")
        return str(made["metadata"]["uid"])

    async def leased(gpu: int, uid: str) -> None:
        about = {names.POD_ANNOTATION: f"{world.namespace}/x", names.NODE_ANNOTATION: "a"}
        lease = {
            "metadata": {
                "name": names.lease_name("a", gpu),
                "labels": {names.MANAGED_LABEL: "true"},
                "annotations": about,
            },
            "spec": {"holderIdentity": uid, "leaseTransitions": 1},
        }
        namespace = world.config.lock_namespace
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        await world.client.create(path, lease)

    await leased(1, "another")
    for gpu in (0, 1):
        await running(f"forged-{gpu}", gpu)
    uid = await running("true", 2)
    await leased(2, uid)
    found = await node.until("a user is told of", lambda found: found[UUIDS[2]].get("inUseBy"))
    assert [found[one].get("inUseBy", []) for one in UUIDS] == [[], [], [uid], []]
    await world.delete_pod("true")
    await node.until("it has gone", lambda found: not found[UUIDS[2]].get("inUseBy"))


async def test_after_a_reboot_with_another_order_each_gpu_has_its_id_still(node: Node) -> None:
    before = await node.begin()
    assert await node.stop() == 0
    node.gpus(UUIDS[::-1])
    node.start()
    bus = before[UUIDS[0]]["pciBusId"]
    after = await node.until(
        "their places are told anew", lambda found: found[UUIDS[0]]["pciBusId"] != bus
    )
    assert {one: found["id"] for one, found in after.items()} == {
        one: found["id"] for one, found in before.items()
    }


async def test_a_device_plugin_on_the_node_is_told_of_as_a_conflict(node: Node) -> None:
    world = node.world
    await node.begin()
    await world.client.merge_patch(
        "/api/v1/nodes/a/status",
        {"status": {"allocatable": {"nvidia.com/gpu": "4"}}},
    )

    async def told() -> bool:
        raw = await world.raw(f"/apis/{names.API_VERSION}/gpunodestatuses/a")
        return bool(raw["status"].get("conflicts") == ["device-plugin"])

    await world.until("the conflict is told", told)
