"""The plugin as a whole: a real API server, a kubelet of Google's messages, and NVML of a few
lines.
"""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from driven import User, until
from kubelet import Kubelet
from preflight_computedomain.api.names import (
    DRIVER,
    SLICES,
    cdi_file,
    cdi_id,
    slice_name,
)
from preflight_computedomain.config import read_gates
from preflight_computedomain.core.claims import KubeletClaim
from preflight_computedomain.core.facts import FabricInfo
from preflight_computedomain.core.slices import channel
from preflight_computedomain.node import plugin, publisher
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_testing.apiserver import free_port

pytestmark = pytest.mark.anyio
CLUSTER = bytes(range(1, 17))
CLIQUE = f"{uuid.UUID(bytes=CLUSTER)}.7"


@dataclass
class Nvml:
    version: str = "570.158.01"
    infos: list[FabricInfo] = field(default_factory=lambda: [FabricInfo("GPU-1", 3, 0, CLUSTER, 7)])

    def __call__(self) -> tuple[str, list[FabricInfo]]:
        return self.version, self.infos


class World:
    """A node with its plugin, in a cluster with an API server of its own."""

    def __init__(
        self, root: Path, target: Connection, google: dict[str, ModuleType], user: User
    ) -> None:
        self.root, self.target, self.user = root, target, user
        self.name = f"node-{uuid.uuid4().hex[:8]}"
        self.port = free_port()
        self.nvml = Nvml()
        self.registry, self.plugins, self.cdi = root / "r", root / "p", root / "cdi"
        self.registry.mkdir()
        (root / "devices").write_text(
            "Character devices:\n  1 mem\n235 nvidia-caps-imex-channels\n\nBlock devices:\n"
        )
        (root / "boot").write_text("boot-1\n")
        self.environ = {
            "NODE_NAME": self.name,
            "ALT_PROC_DEVICES_PATH": str(root / "devices"),
            "ALT_BOOT_ID_PATH": str(root / "boot"),
            "KUBELET_REGISTRAR_DIRECTORY_PATH": str(self.registry),
            "KUBELET_PLUGINS_DIRECTORY_PATH": str(self.plugins),
            "CDI_ROOT": str(self.cdi),
        }
        self.kubelet = Kubelet(self.registry, google)
        self.running: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        gates = read_gates("HostManagedIMEX=true")
        running = plugin.run(
            self.target, gates, self.environ, ("127.0.0.1", self.port), nvml=self.nvml
        )
        self.running = asyncio.create_task(running)
        await until(self._served)
        await self.kubelet.register()
        await until(lambda: self.ask("/readyz"), lambda answer: answer[0] == 200)

    def _served(self) -> bool:
        assert self.running is not None
        if self.running.done():
            self.running.result()
        return (self.registry / f"{DRIVER}-reg.sock").exists()

    async def ask(self, path: str) -> tuple[int, str]:
        def get() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{self.port}{path}", timeout=30
                ) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        return await asyncio.to_thread(get)

    async def end(self) -> None:
        assert self.running is not None
        self.running.cancel()
        await asyncio.wait([self.running])

    async def slice(self) -> dict[str, Any] | None:
        return await self.user.client.get_or_none(f"{SLICES}/{slice_name(self.name)}", dict)

    async def published(self, unlike: str = "") -> dict[str, Any]:
        """The slice, once it is there with another version than ``unlike`` and as it should be."""

        def fits(found: dict[str, Any] | None) -> bool:
            if found is None or found["metadata"]["resourceVersion"] == unlike:
                return False
            return [one["name"] for one in found["spec"].get("devices", [])] == ["channel-0"]

        found: dict[str, Any] = await until(self.slice, fits)
        return found


@pytest.fixture
async def world(
    short: Path, target: Connection, google: dict[str, ModuleType], user: User
) -> AsyncIterator[World]:
    made = World(short, target, google, user)
    await user.client.create("/api/v1/nodes", {"metadata": {"name": made.name}})
    await made.begin()
    yield made
    await made.end()


def ref(claim: dict[str, Any]) -> KubeletClaim:
    metadata = claim["metadata"]
    return KubeletClaim(metadata["namespace"], metadata["name"], metadata["uid"])


async def test_the_slice_has_exactly_channel_0_and_belongs_to_the_node(world: World) -> None:
    found = await world.published()
    spec = found["spec"]
    assert spec["devices"] == channel(CLIQUE, "570.158.1")
    assert (spec["driver"], spec["nodeName"]) == (DRIVER, world.name)
    assert spec["pool"] == {"name": world.name, "generation": 1, "resourceSliceCount": 1}
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Node", world.name, True)


async def test_a_slice_that_is_deleted_or_altered_is_put_back_and_one_too_many_removed(
    world: World,
) -> None:
    before = await world.published()
    await world.user.client.delete(f"{SLICES}/{slice_name(world.name)}")
    again = await world.published(before["metadata"]["resourceVersion"])
    assert again["metadata"]["uid"] != before["metadata"]["uid"]
    altered = {"spec": {"devices": [{"name": "channel-0"}, {"name": "daemon-0"}]}}
    await world.user.client.merge_patch(f"{SLICES}/{slice_name(world.name)}", altered)
    mended = await world.published(again["metadata"]["resourceVersion"])
    assert mended["spec"]["pool"]["generation"] == 2
    other = f"{world.name}-left-over"
    await world.user.client.create(SLICES, {**mended, "metadata": {"name": other}})
    path = f"{SLICES}/{other}"
    await until(lambda: world.user.client.get_or_none(path, dict), lambda found: found is None)


async def test_the_slice_is_made_once_another_drivers_of_its_name_has_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "LONGEST", 0.2)
    body = await world.published()
    await world.end()
    client, path = world.user.client, f"{SLICES}/{slice_name(world.name)}"
    await client.delete(path)
    theirs = {**body["spec"], "driver": "other.example.com"}
    named = {"metadata": {"name": slice_name(world.name)}}
    await client.create(SLICES, {**body, **named, "spec": theirs})
    async with (
        Client(world.target, agent="plugin") as ours,
        asyncio.TaskGroup() as group,
    ):
        offers = publisher.Publisher(ours, world.name)
        offers.offer(channel(CLIQUE, "570.158.1"))
        running = group.create_task(offers.run())
        await until(lambda: ours.requests.count["create"])
        await client.delete(path)
        assert (await world.published())["spec"]["driver"] == DRIVER
        running.cancel()


async def test_the_slice_stays_when_the_plugin_stops_and_is_not_written_again(world: World) -> None:
    before = await world.published()
    await world.end()
    assert list(world.registry.iterdir()) == []
    await world.begin()
    after = await world.published()
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_a_claim_of_a_computedomain_is_prepared_and_unprepared(world: World) -> None:
    domain = (await world.user.create())["metadata"]["uid"]
    first, second = [ref(await world.user.claim(one, domain, world.name)) for one in ("a", "b")]
    answer = (await world.kubelet.prepare([first]))[first.uid]
    assert answer.error == ""
    assert list(answer.devices[0].cdi_device_ids) == [cdi_id(first.uid)]
    assert b'"major":235,' in (world.cdi / cdi_file(first.uid)).read_bytes()
    waiting = asyncio.create_task(world.kubelet.prepare([second]))
    assert (await world.kubelet.unprepare([first]))[first.uid].error == ""
    assert (await waiting)[second.uid].error == ""
    await world.kubelet.unprepare([second])
    assert list(world.cdi.iterdir()) == []


async def test_what_is_offered_follows_clique_and_driver(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.end()
    for name in ("LOOK", "UNKNOWN"):
        monkeypatch.setattr(plugin, name, 0.05)
    joined, world.nvml.infos = world.nvml.infos, [FabricInfo("GPU-1")]  # one of no fabric
    await world.begin()

    async def offers(*devices: dict[str, Any]) -> bool:
        found = await world.slice()
        return found is not None and found["spec"].get("devices", []) == list(devices)

    await until(offers)
    driver = world.root / "devices"
    there = driver.read_text()
    world.nvml.infos = joined  # the fabric manager has joined it since
    await until(lambda: offers(*channel(CLIQUE, "570.158.1")))
    world.nvml.version = "580.65.06"
    driver.write_text("Character devices:\n511 nvidia-caps-imex-channels\n")  # loaded anew
    await until(lambda: offers(*channel(CLIQUE, "580.65.6")))
    driver.write_text("Character devices:\n511 ttyUSB\n")
    await until(offers)
    driver.write_text(there)
    await until(lambda: offers(*channel(CLIQUE, "580.65.6")))
    world.nvml.infos = [replace(joined[0], state=2)]
    driver.write_text("Character devices:\n240 nvidia-caps-imex-channels\n")
    await until(offers)
    assert (await world.ask("/readyz"))[1].startswith("GPU GPU-1: its registration")
    world.nvml.infos = joined
    await until(lambda: offers(*channel(CLIQUE, "580.65.6")))


async def test_health_is_asked_through_the_sockets(world: World) -> None:
    assert await world.ask("/healthz") == (200, "ok\n")
    _, metrics = await world.ask("/metrics")
    assert (
        'nvidia_dra_requests_total{driver="compute-domain.nvidia.com",operation="prepare"}'
        in metrics
    )
    assert 'compute_domain_slice_writes_total{verb="create"} 1.0' in metrics
