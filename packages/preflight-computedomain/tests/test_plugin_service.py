"""The plugin as a whole: a real API server, a kubelet of Google's messages, and NVML of a few
lines.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest
from driven import CLAIMS, User, until
from kubelet import Kubelet
from preflight_computedomain.api.crd import crd
from preflight_computedomain.api.names import DOMAINS, DRIVER, cdi_file, cdi_id, slice_name
from preflight_computedomain.config import read_gates
from preflight_computedomain.core.claims import KubeletClaim
from preflight_computedomain.core.facts import FabricInfo
from preflight_computedomain.core.slices import channel
from preflight_computedomain.node import plugin, publisher
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.cli.commands import CommandFailed
from preflight_kube.client.client import Client
from preflight_testing.apiserver import ApiServer, free_port
from preflight_testing.tcp import TcpServer

pytestmark = pytest.mark.anyio
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
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
        await until(self._ready)

    async def _served(self) -> bool:
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

    async def _ready(self) -> bool:
        return (await self.ask("/readyz"))[0] == 200

    async def end(self) -> None:
        assert self.running is not None
        self.running.cancel()
        await asyncio.wait([self.running])

    async def slice(self) -> dict[str, Any] | None:
        return await self.user.client.get_or_none(f"{SLICES}/{slice_name(self.name)}", dict)

    async def published(self, unlike: str = "") -> dict[str, Any]:
        """The slice, once it is there with another version than ``unlike`` and as it should be."""

        async def asked() -> dict[str, Any] | None:
            found = await self.slice()
            if found is None or found["metadata"]["resourceVersion"] == unlike:
                return None
            return (
                found
                if [one["name"] for one in found["spec"].get("devices", [])] == ["channel-0"]
                else None
            )

        found: dict[str, Any] = await until(asked)
        return found


@pytest.fixture
def target(real_api_server: ApiServer, tmp_path: Path) -> Connection:
    real_api_server.define(crd())
    return connection({"KUBECONFIG": str(real_api_server.kubeconfig(tmp_path / "kubeconfig"))})


@pytest.fixture
async def user(target: Connection) -> AsyncIterator[User]:
    async with Client(target, agent="user") as client:
        made = User(client)
        await made.begin()
        yield made


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
    other = {**mended, "metadata": {"name": f"{world.name}-left-over"}}
    await world.user.client.create(SLICES, other)

    async def removed() -> bool:
        return await world.user.client.get_or_none(f"{SLICES}/{world.name}-left-over", dict) is None

    await until(removed)


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

        async def refused() -> bool:
            return ours.requests.count["create"] > 0

        await until(refused)
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


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_claim_of_a_computedomain_is_prepared_and_unprepared(
    world: World, version: str
) -> None:
    domain = await world.user.create()
    claim = ref(await world.user.claim("pod-channel", domain["metadata"]["uid"], world.name))
    answer = await world.kubelet.prepare([claim], version)
    assert answer[claim.uid].error == ""
    assert list(answer[claim.uid].devices[0].cdi_device_ids) == [cdi_id(claim.uid)]
    document = json.loads((world.cdi / cdi_file(claim.uid)).read_text())
    (node,) = document["devices"][0]["containerEdits"]["deviceNodes"]
    assert (node["path"], node["major"], node["minor"]) == (
        "/dev/nvidia-caps-imex-channels/channel0",
        235,
        0,
    )
    second = ref(await world.user.claim("other", domain["metadata"]["uid"], world.name))
    waiting = asyncio.create_task(world.kubelet.prepare([second], version))
    gone = await world.kubelet.unprepare([claim], version)
    assert gone[claim.uid].error == ""
    assert (await waiting)[second.uid].error == ""
    await world.kubelet.unprepare([second], version)
    assert list(world.cdi.iterdir()) == []


async def test_the_major_is_that_of_the_driver_of_now(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    devices = world.root / "devices"
    domain = (await world.user.create())["metadata"]["uid"]
    claim = ref(await world.user.claim("pod-channel", domain, world.name))
    devices.write_text("Character devices:\n235 ttyUSB\n")
    preparing = asyncio.create_task(world.kubelet.prepare([claim]))

    async def refused() -> bool:
        return "no channel's major any more" in caplog.text or preparing.done()

    await until(refused)
    assert not preparing.done()
    assert list(world.cdi.iterdir()) == []
    devices.write_text("Character devices:\n511 nvidia-caps-imex-channels\n235 ttyUSB\n")
    assert (await preparing)[claim.uid].error == ""
    assert b'"major":511,' in (world.cdi / cdi_file(claim.uid)).read_bytes()


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


async def test_a_plugin_that_starts_anew_answers_a_prepared_claim_with_the_same_devices(
    world: World,
) -> None:
    domain = await world.user.create()
    claim = ref(await world.user.claim("pod-channel", domain["metadata"]["uid"], world.name))
    before = await world.kubelet.prepare([claim])
    await world.end()
    (world.cdi / cdi_file(claim.uid)).unlink()
    await world.begin()
    assert (world.cdi / cdi_file(claim.uid)).exists()
    assert (await world.kubelet.prepare([claim]))[claim.uid] == before[claim.uid]


async def test_what_waiting_does_not_mend_is_refused_at_once_in_words(world: World) -> None:
    domain = await world.user.create()
    uid = domain["metadata"]["uid"]
    every = ref(await world.user.claim("every", uid, world.name, mode="All"))
    async with Client(world.target, agent="neighbor") as client:
        neighbor = User(client)
        await neighbor.begin()
        theirs = (await neighbor.create())["metadata"]["uid"]
    foreign = ref(await world.user.claim("foreign", theirs, world.name))
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await world.kubelet.prepare([every, foreign])
    assert 'got "All"' in answer[every.uid].error
    assert "has been deleted or belongs to another namespace" in answer[foreign.uid].error
    await world.user.delete(CLAIMS, "every")
    assert "the claim has been deleted" in (await world.kubelet.prepare([every]))[every.uid].error
    await world.user.claim("every", uid, world.name)
    assert "is another claim by now" in (await world.kubelet.prepare([every]))[every.uid].error
    nowhere = ref(await world.user.claim("nowhere", uid, world.name))
    taken_back = {"status": {"allocation": None}}
    await world.user.client.merge_patch(world.user.at(CLAIMS, "nowhere") + "/status", taken_back)
    answer = await world.kubelet.prepare([nowhere])
    assert "field status.allocation is missing" in answer[nowhere.uid].error
    assert list(world.cdi.iterdir()) == []
    assert loop.time() - began < 30  # far from the 40 s for what may recover by itself


async def test_a_computedomain_that_was_deleted_gives_no_channel_any_more(world: World) -> None:
    domain = await world.user.create()
    claim = ref(await world.user.claim("pod-channel", domain["metadata"]["uid"], world.name))
    await world.user.delete(DOMAINS, "train-a")
    await world.user.gone(DOMAINS, "train-a")
    assert "has been deleted" in (await world.kubelet.prepare([claim]))[claim.uid].error


class Way:
    """From the plugin to its API server. ``late``: seconds that each answer takes longer;
    ``silent``: none comes any more.
    """

    def __init__(self, target: Connection) -> None:
        self._there, self.late, self.silent = urlsplit(target.server), 0.0, False
        self._port = 0

    async def open(self) -> str:
        """The address of this end."""
        self._door = TcpServer(self._between)
        self._port = await self._door.start(self._port)
        return f"https://127.0.0.1:{self._port}"

    async def close(self) -> None:
        """As where no API server runs."""
        await self._door.stop()

    async def _between(self, asks: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        said, asked = await asyncio.open_connection(self._there.hostname, self._there.port)
        try:
            with suppress(OSError):
                await asyncio.gather(self._pass(asks, asked), self._answer(said, answers))
        finally:
            for one in (asked, answers):
                one.close()
                with suppress(OSError):
                    await one.wait_closed()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
        sink.write_eof()

    async def _answer(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await asyncio.sleep(self.late)
            if not self.silent:
                sink.write(data)
        sink.write_eof()


@pytest.fixture
async def way(target: Connection) -> AsyncIterator[Way]:
    made = Way(target)
    yield made
    await made.close()


@pytest.fixture
async def far(
    short: Path, target: Connection, google: dict[str, ModuleType], user: User, way: Way
) -> AsyncIterator[World]:
    """With the API server at the end of ``way``."""
    made = World(short, replace(target, server=await way.open()), google, user)
    await user.client.create("/api/v1/nodes", {"metadata": {"name": made.name}})
    await made.begin()
    await made.published()
    yield made
    await made.end()


async def claimed(world: World, number: int = 1) -> list[KubeletClaim]:
    uid = (await world.user.create())["metadata"]["uid"]
    return [ref(await world.user.claim(f"claim-{i}", uid, world.name)) for i in range(number)]


@pytest.mark.timeout(200)
async def test_a_claim_is_prepared_though_each_answer_of_the_api_server_is_ten_seconds_late(
    far: World, way: Way
) -> None:
    [claim] = await claimed(far)
    way.late = 10
    assert (await far.kubelet.prepare([claim]))[claim.uid].error == ""
    assert [path.name for path in far.cdi.iterdir()] == [cdi_file(claim.uid)]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("stopped", "the claim or its ComputeDomain cannot be read"),
        ("silent", "the API server has not answered in time"),
    ],
    ids=["stopped", "silent"],
)
async def test_without_the_api_server_every_claim_has_its_entry_with_the_cause(
    far: World, way: Way, how: str, cause: str
) -> None:
    claims = await claimed(far, 3)
    way.silent = how == "silent"
    if how == "stopped":
        await way.close()
    loop = asyncio.get_running_loop()
    began = loop.time()
    answers = await far.kubelet.prepare(
        claims, timeout=150
    )  # on a busy machine; seconds: test_times
    print(f"{how}: answered after {loop.time() - began:.1f} s")
    assert answers.keys() == {one.uid for one in claims}
    for claim in claims:
        said = answers[claim.uid].error
        assert said.startswith(f"{DRIVER}: {claim.namespace}/{claim.name}: ")
        assert cause in said
    assert list(far.cdi.iterdir()) == []
    way.silent = False
    if how == "stopped":
        await way.open()
    assert (await far.kubelet.prepare(claims[:1]))[claims[0].uid].error == ""


async def test_health_is_asked_through_the_sockets(world: World) -> None:
    assert await world.ask("/healthz") == (200, "ok\n")
    _, metrics = await world.ask("/metrics")
    assert (
        'nvidia_dra_requests_total{driver="compute-domain.nvidia.com",operation="prepare"}'
        in metrics
    )
    assert 'compute_domain_slice_writes_total{verb="create"} 1.0' in metrics


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"devices": "Character devices:\n  1 mem\n"},
            "no character device nvidia-caps-imex-channels",
        ),
        ({"version": "570.124.06"}, "the NVIDIA driver is 570.124.06; install 570.158.01"),
        ({"infos": [FabricInfo("GPU-1", 2, 0, CLUSTER, 7)]}, "refusing to start"),
        ({"registry": None}, "no such folder; mount the kubelet's plugins_registry"),
    ],
)
async def test_a_node_that_is_not_fit_ends_the_plugin_with_a_sentence(
    short: Path,
    target: Connection,
    google: dict[str, ModuleType],
    user: User,
    change: dict[str, Any],
    said: str,
) -> None:
    made = World(short, target, google, user)
    for key, value in change.items():
        if key == "devices":
            (short / "devices").write_text(value)
        elif key == "registry":
            made.registry.rmdir()
        else:
            setattr(made.nvml, key, value)
    gates = read_gates("HostManagedIMEX=true")
    with pytest.raises(CommandFailed, match=said):
        await plugin.run(target, gates, made.environ, ("127.0.0.1", made.port), nvml=made.nvml)
