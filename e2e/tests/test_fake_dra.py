"""The fake DRA drivers, asked by a client that plays the kubelet, over an API server that is a
dictionary.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import json
import subprocess
import sys
import tempfile
import urllib.error
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from preflight_e2e.images import ROOT
from preflight_testing.matrix.facts import node_json, uuids

FOLDER = ROOT / "e2e/fakes/node"
PROTOS = ("dra.proto", "pluginregistration.proto")
MINE = uuids("node-a")
SLICE = "/apis/resource.k8s.io/v1/resourceslices/node-a-gpu.nvidia.com"
GPU, NIC, CHANNEL = "gpu.nvidia.com", "rdma.nvidia.com", "compute-domain.nvidia.com"


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    out = [f"-I{FOLDER}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *out, *PROTOS], check=True)
    return folder


class Api:
    """Objects by path, with versions."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 0

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        if method == "POST":
            assert body is not None
            path = f"{path}/{body['metadata']['name']}"
        elif path not in self.objects:
            raise urllib.error.HTTPError(path, 404, "not found", Message(), None)
        if method == "DELETE":
            return self.objects.pop(path)
        if method != "GET":
            assert body is not None
            if method == "PUT":
                assert (
                    body["metadata"]["resourceVersion"]
                    == self.objects[path]["metadata"]["resourceVersion"]
                )
            self.version += 1
            self.objects[path] = copy.deepcopy(body)
            self.objects[path]["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.objects[path])

    def found(self, path: str) -> dict[str, Any] | None:
        return self.call("GET", path) if path in self.objects else None

    def allocate(
        self,
        name: str,
        *devices: str,
        driver: str = GPU,
        admin: bool = False,
        uid: str = "",
        domain: str = "",
    ) -> Any:
        """A claim as the scheduler leaves it: what a kubelet names of it. ``domain``: what it has
        the driver know.
        """
        results = [
            {
                "request": "r",
                "driver": driver,
                "pool": "node-a",
                "device": device,
                "adminAccess": admin,
            }
            for device in devices
        ]
        uid = uid or f"uid-{name}"
        told = {
            "source": "FromClaim",
            "opaque": {"driver": driver, "parameters": {"domainID": domain}},
        }
        self.objects[f"/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims/{name}"] = {
            "metadata": {"uid": uid},
            "status": {
                "allocation": {"devices": {"results": results, "config": [told] if domain else []}}
            },
        }
        return SimpleNamespace(namespace="ml", uid=uid, name=name)


class Bench:
    """One node, its drivers, and where they keep things."""

    def __init__(self, folder: Path, stubs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(stubs)
        monkeypatch.syspath_prepend(FOLDER)
        self.module = importlib.import_module("dra_driver")
        self.pb, self.registration, self.registration_grpc = (
            importlib.import_module(name)
            for name in ("dra_pb2", "pluginregistration_pb2", "pluginregistration_pb2_grpc")
        )
        self.cdi, self.registry = folder / "cdi", folder / "registry"
        self.registry.mkdir()
        for name, place in (
            ("PLUGINS", folder / "plugins"),
            ("REGISTRY", self.registry),
            ("CDI", self.cdi),
        ):
            monkeypatch.setattr(self.module, name, place)
        self.api = Api()
        self.said: list[dict[str, Any]] = []
        self.node = SimpleNamespace(name="node-a", local=Path("/etc/node-local"), facts={})
        self.facts(gpus=[6, 7], nics=1)

    def facts(self, **dra: Any) -> None:
        self.node.facts = node_json("node-a", {"dra": dra})

    def drivers(self) -> dict[str, Any]:
        made = self.module.drivers(
            self.node, lambda **said: self.said.append(said), self.api.call, self.api.found
        )
        return {driver.name: driver for driver in made}

    @asynccontextmanager
    async def kubelet(self, version: str = "v1", driver: str = GPU) -> AsyncIterator[Kubelet]:
        """What finds a driver's socket, asks who it is, and talks to it where it says."""
        task = asyncio.create_task(self.drivers()[driver].run())
        try:
            socket = self.registry / f"{driver}-reg.sock"
            while not socket.exists():
                assert not task.done(), task.exception()
                await asyncio.sleep(0.01)
            async with grpc.aio.insecure_channel(f"unix://{socket}") as channel:
                registrar = self.registration_grpc.RegistrationStub(channel)
                info = await registrar.GetInfo(
                    self.registration.InfoRequest(), wait_for_ready=True, timeout=10
                )
                await registrar.NotifyRegistrationStatus(
                    self.registration.RegistrationStatus(plugin_registered=True)
                )
            async with grpc.aio.insecure_channel(f"unix://{info.endpoint}") as channel:
                yield Kubelet(self.pb, channel, version, info)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def prepared_for(self, claim: Any, driver: str = GPU) -> list[dict[str, Any]]:
        """The CDI devices that containerd would find."""
        spec = json.loads((self.cdi / f"{driver}-claim-{claim.uid}.json").read_text())
        assert spec["kind"] == f"{driver}/claim"
        devices: list[dict[str, Any]] = spec["devices"]
        return devices


class Kubelet:
    def __init__(self, pb: Any, channel: Any, version: str, info: Any) -> None:
        self.pb, self.info = pb, info
        self._call = {
            verb: channel.unary_unary(
                f"/k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin/{verb}",
                getattr(pb, f"{verb}Request").SerializeToString,
                getattr(pb, f"{verb}Response").FromString,
            )
            for verb in ("NodePrepareResources", "NodeUnprepareResources")
        }

    async def _ask(self, verb: str, claim: Any) -> Any:
        wanted = self.pb.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)
        request = getattr(self.pb, f"{verb}Request")(claims=[wanted])
        return (await self._call[verb](request, timeout=10)).claims[claim.uid]

    async def prepare(self, claim: Any) -> Any:
        return await self._ask("NodePrepareResources", claim)

    async def unprepare(self, claim: Any) -> Any:
        return await self._ask("NodeUnprepareResources", claim)


@pytest.fixture
def bench(stubs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as short:  # the path of a socket has 107 characters at most
        yield Bench(Path(short), stubs, monkeypatch)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def published(bench: Bench) -> list[str]:
    return [device["name"] for device in bench.api.objects[SLICE]["spec"]["devices"]]


def test_a_kubelet_is_told_where_the_driver_answers_and_in_which_versions(bench: Bench) -> None:
    async def story() -> None:
        async with bench.kubelet() as kubelet:
            assert (kubelet.info.type, kubelet.info.name) == ("DRAPlugin", GPU)
            assert list(kubelet.info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        assert {"registered": GPU, "why": ""} in bench.said

    run(story())


def test_the_slice_of_the_node_follows_its_facts(bench: Bench) -> None:
    async def story() -> None:
        driver = bench.drivers()[GPU]
        await driver.publish()
        assert published(bench) == ["gpu-6", "gpu-7"]
        spec = bench.api.objects[SLICE]["spec"]
        assert (spec["driver"], spec["nodeName"], spec["pool"]["generation"]) == (GPU, "node-a", 1)
        before = bench.api.version
        await driver.publish()
        assert bench.api.version == before, "written again although nothing changed"
        bench.facts(gpus=[7])
        await driver.publish()
        assert (published(bench), bench.api.objects[SLICE]["spec"]["pool"]["generation"]) == (
            ["gpu-7"],
            2,
        )
        bench.facts()
        await driver.publish()
        assert SLICE not in bench.api.objects

    run(story())


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_what_the_scheduler_allocated_is_what_a_container_gets(bench: Bench, version: str) -> None:
    claim = bench.api.allocate("two", "gpu-6", "gpu-7")

    async def story() -> None:
        async with bench.kubelet(version) as kubelet:
            answer = await kubelet.prepare(claim)
            assert answer.error == ""
            assert [(d.pool_name, d.device_name) for d in answer.devices] == [
                ("node-a", "gpu-6"),
                ("node-a", "gpu-7"),
            ]
            given = bench.prepared_for(claim)
            assert [f"{GPU}/claim={one['name']}" for one in given] == [
                d.cdi_device_ids[0] for d in answer.devices
            ]
            env = [variable for one in given for variable in one["containerEdits"]["env"]]
            assert env == [f"FAKE_GPU_6={MINE[6]}", f"FAKE_GPU_7={MINE[7]}"]
            assert await kubelet.prepare(claim) == answer, "a second pod, or a second try"

    run(story())


def test_a_claim_that_is_given_back_can_be_another_s(bench: Bench) -> None:
    first, second = bench.api.allocate("first", "gpu-6"), bench.api.allocate("second", "gpu-6")

    async def story() -> None:
        async with bench.kubelet() as kubelet:
            await kubelet.prepare(first)
            assert "gpu-6 is another claim's" in (await kubelet.prepare(second)).error
            assert (await kubelet.unprepare(first)).error == ""
            assert list(bench.cdi.glob("*first*")) == []
            assert (await kubelet.prepare(second)).error == ""
            assert (await kubelet.unprepare(first)).error == "", "twice is once"

    run(story())


def test_administrative_access_takes_a_device_from_nobody(bench: Bench) -> None:
    looks, owns = (
        bench.api.allocate("looks", "gpu-6", admin=True),
        bench.api.allocate("owns", "gpu-6"),
    )

    async def story() -> None:
        async with bench.kubelet() as kubelet:
            for claim in (looks, owns):
                assert (await kubelet.prepare(claim)).error == ""

    run(story())


def test_a_driver_that_is_started_again_remembers_what_it_gave(bench: Bench) -> None:
    first, second = bench.api.allocate("first", "gpu-6"), bench.api.allocate("second", "gpu-6")

    async def story() -> None:
        async with bench.kubelet() as kubelet:
            given = await kubelet.prepare(first)
        bench.api.objects.clear()
        bench.api.allocate("second", "gpu-6")
        async with bench.kubelet() as kubelet:
            assert await kubelet.prepare(first) == given
            assert "another claim's" in (await kubelet.prepare(second)).error

    run(story())


def test_a_claim_of_the_same_name_made_anew_is_not_prepared(bench: Bench) -> None:
    stale = bench.api.allocate("one", "gpu-6")
    bench.api.allocate("one", "gpu-6", uid="newer")

    async def story() -> None:
        async with bench.kubelet() as kubelet:
            assert "is another claim by now" in (await kubelet.prepare(stale)).error
            assert list(bench.cdi.glob("*")) == []

    run(story())


def test_each_driver_prepares_only_its_own_devices(bench: Bench) -> None:
    claim = bench.api.allocate("both", "nic-0", driver=NIC)
    results = bench.api.objects["/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims/both"][
        "status"
    ]["allocation"]
    results["devices"]["results"].append(
        {"request": "g", "driver": GPU, "pool": "node-a", "device": "gpu-7"}
    )

    async def story() -> None:
        async with bench.kubelet(driver=NIC) as kubelet:
            [given] = (await kubelet.prepare(claim)).devices
            assert given.device_name == "nic-0"
        [only] = bench.prepared_for(claim, NIC)
        assert only["containerEdits"]["env"] == ["FAKE_NIC_0=node-a-nic-0"]

    run(story())


def test_a_nodes_channel_is_one_claims_and_says_its_domain(bench: Bench) -> None:
    bench.facts(channels=1)
    first = bench.api.allocate("first", "channel-0", driver=CHANNEL, domain="d-1")
    second = bench.api.allocate("second", "channel-0", driver=CHANNEL, domain="d-2")
    nameless = bench.api.allocate("nameless", "channel-0", driver=CHANNEL)

    async def story() -> None:
        async with bench.kubelet(driver=CHANNEL) as kubelet:
            assert "names no ComputeDomain" in (await kubelet.prepare(nameless)).error
            assert (await kubelet.prepare(first)).error == ""
            [given] = bench.prepared_for(first, CHANNEL)
            assert given["containerEdits"]["env"] == ["FAKE_IMEX_CHANNEL=0", "FAKE_IMEX_DOMAIN=d-1"]
            assert "channel-0 is another claim's" in (await kubelet.prepare(second)).error
            await kubelet.unprepare(first)
            assert (await kubelet.prepare(second)).error == ""

    run(story())


def test_the_driver_of_channels_is_there_only_while_its_node_has_one(bench: Bench) -> None:
    async def story() -> None:
        task = asyncio.create_task(bench.drivers()[CHANNEL].run())
        socket, slice_ = bench.registry / f"{CHANNEL}-reg.sock", SLICE.replace(GPU, CHANNEL)
        try:
            bench.facts(channels=1)
            while not socket.exists() or slice_ not in bench.api.objects:
                assert not task.done(), task.exception()
                await asyncio.sleep(0.01)
            [device] = bench.api.objects[slice_]["spec"]["devices"]
            wanted = {"type": {"string": "channel"}, "id": {"int": 0}}
            assert device == {"name": "channel-0", "attributes": wanted}
            bench.facts()
            await bench.drivers()[CHANNEL].publish()
            while socket.exists():
                assert not task.done(), task.exception()
                await asyncio.sleep(0.01)
            assert slice_ not in bench.api.objects
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(story())
