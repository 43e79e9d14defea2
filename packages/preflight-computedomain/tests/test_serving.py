"""The two sockets, with Google's gRPC and messages as the kubelet's side."""

from __future__ import annotations

import asyncio
import logging
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest
from claimed import Node, ref, uid
from driven import until
from kubelet import Kubelet, connection
from preflight_computedomain.api.checkpoint import COMPLETED
from preflight_computedomain.api.names import DRIVER, cdi_id
from preflight_computedomain.metrics import PluginMetrics
from preflight_computedomain.node.grpc_server import GrpcServer
from preflight_computedomain.node.prepare import Times

pytestmark = pytest.mark.anyio
VERSIONS = ("v1", "v1beta1")


class World:
    """A node with its plugin, and a kubelet."""

    def __init__(self, root: Path, google: dict[str, ModuleType]) -> None:
        self.node = Node(root)
        for number in range(1, 4):
            self.node.cluster.add(ref(number))
        self.registry = root / "registry"
        self.registry.mkdir()
        self.kubelet = Kubelet(self.registry, google)
        self.metrics = PluginMetrics("node-1")

    async def begin(self, *, look: float = 0.05, again: float = 0.1) -> None:
        self.page = self.node.page(self.metrics)
        await self.page.start()
        self.serving = GrpcServer(
            self.page, self.metrics, self.registry, self.node.folder, check=look, again=again
        )
        await self.serving.start()
        self.watching = asyncio.create_task(self.serving.watch())

    async def end(self) -> None:
        self.watching.cancel()
        await asyncio.wait([self.watching])
        await self.page.stop(5)
        await self.serving.stop(1)


@pytest.fixture
async def world(short: Path, google: dict[str, ModuleType]) -> AsyncIterator[World]:
    made = World(short, google)
    await made.begin()
    yield made
    await made.end()


async def test_the_kubelet_learns_type_name_endpoint_and_both_versions(world: World) -> None:
    info = await world.kubelet.register()
    assert (info.type, info.name) == ("DRAPlugin", DRIVER)
    assert info.endpoint == str(world.node.folder / "dra.sock")
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    assert world.serving.registered
    assert (world.registry / f"{DRIVER}-reg.sock").is_socket()
    assert stat.S_IMODE(world.node.folder.stat().st_mode) == 0o750


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_claim_is_prepared_twice_alike_and_unprepared(world: World, version: str) -> None:
    await world.kubelet.register()
    for _ in range(2):
        answer = await world.kubelet.prepare([ref(1)], version)
        assert list(answer) == [uid(1)]
        assert answer[uid(1)].error == ""
        (device,) = answer[uid(1)].devices
        assert (list(device.request_names), device.pool_name, device.device_name) == (
            ["channel"],
            "node-1",
            "channel-0",
        )
        assert list(device.cdi_device_ids) == [cdi_id(uid(1))]
        assert not device.HasField("share_id")
    gone = await world.kubelet.unprepare([ref(1)], version)
    assert (list(gone), gone[uid(1)].error) == ([uid(1)], "")
    assert (world.node.states(), world.node.files()) == ({}, {})


async def test_folders_in_the_place_of_sockets_are_moved_aside(world: World) -> None:
    await world.end()
    for path in (world.node.folder / "dra.sock", world.registry / f"{DRIVER}-reg.sock"):
        path.mkdir()
        (path / "theirs").touch()
    await world.begin()
    await world.kubelet.register()
    assert (await world.kubelet.prepare([ref(1)]))[uid(1)].error == ""
    assert list(world.registry.glob(f"folder-*-{DRIVER}-reg.sock.aside/theirs"))


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_claim_has_an_entry_also_an_empty_one(world: World, version: str) -> None:
    await world.kubelet.register()
    refs = [ref(number) for number in range(1, 201)]
    answer = await world.kubelet.prepare(refs, version)
    assert set(answer) == {one.uid for one in refs}
    assert sorted(len(one.devices) for one in answer.values()) == [*[0] * 199, 1]
    assert all(bool(one.error) != bool(one.devices) for one in answer.values())
    # None of them waits for the channel, only for its turn.
    world.page._times, world.page._lock._patience = Times(), 40.0
    gone = await world.kubelet.unprepare(refs, version)
    assert {key: one.error for key, one in gone.items()} == dict.fromkeys(answer, "")
    assert not await world.kubelet.prepare([], version)
    assert not await world.kubelet.unprepare([], version)
    again = await world.kubelet.prepare([ref(1), ref(1)], version)
    assert {key: one.error for key, one in again.items()} == {uid(1): ""}


@pytest.mark.parametrize(
    "method",
    [
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeForgetResources",
        "k8s.io.kubelet.pkg.apis.dra.v1alpha4.Node/NodePrepareResources",
        pytest.param("v1alpha1.DRAResourceHealth/NodeWatchResources", id="newer health stream"),
    ],
)
async def test_what_is_not_offered_is_unimplemented_and_no_error_of_ours(
    world: World, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    await world.kubelet.register()
    async with connection(world.kubelet.endpoint) as channel:
        kinds: list[Any] = [channel.unary_unary, channel.unary_stream]
        for kind in kinds:
            call = kind(f"/{method}")(b"", timeout=10)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await (call.read() if kind == channel.unary_stream else call)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_a_call_that_the_kubelet_gives_up_leaves_nothing_after_unprepare(
    world: World,
) -> None:
    await world.kubelet.register()
    world.page._times = Times()
    world.node.cluster.down = True
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.kubelet.prepare([ref(1)], timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await world.kubelet.unprepare([ref(1)]))[uid(1)].error == ""
    world.node.cluster.down = False
    asked = len(world.node.cluster.asked)
    assert (await world.kubelet.prepare([ref(2)]))[uid(2)].error == ""
    assert world.node.states() == {uid(2): COMPLETED}
    assert world.node.cluster.asked[asked:] == ["get team-a/claim-2", "list team-a"]


async def test_bytes_that_are_no_message_are_refused_and_the_next_call_is_served(
    world: World,
) -> None:
    await world.kubelet.register()
    method = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
    async with connection(world.kubelet.endpoint) as channel:
        for data in (b"\x00", b"\x0a\x10\x0a", b"\x0a\x03\x0a\x01\xff"):
            call: Any = channel.unary_unary(method)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(data, timeout=10)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await world.kubelet.prepare([ref(1)]))[uid(1)].error == ""


async def test_sockets_of_a_process_that_was_killed_are_in_nobodys_way(
    short: Path, google: dict[str, ModuleType]
) -> None:
    world = World(short, google)
    for path in (world.node.folder / "dra.sock", world.registry / f"{DRIVER}-reg.sock"):
        with socket.socket(socket.AF_UNIX) as old:
            old.bind(str(path))
    await world.begin()
    try:
        assert (await world.kubelet.register()).name == DRIVER
        assert await world.serving.alive()
    finally:
        await world.end()


@pytest.mark.parametrize("which", ["dra.sock", "reg.sock"])
async def test_a_socket_whose_file_is_removed_is_made_again(world: World, which: str) -> None:
    await world.kubelet.register()
    path = (
        world.node.folder / which if which == "dra.sock" else world.registry / f"{DRIVER}-{which}"
    )
    path.unlink()
    await until(path.is_socket)
    await world.kubelet.register()
    assert (await world.kubelet.prepare([ref(1)]))[uid(1)].error == ""
    assert await world.serving.alive()


async def test_it_is_not_alive_while_a_socket_is_missing(
    short: Path, google: dict[str, ModuleType]
) -> None:
    world = World(short, google)
    await world.begin(look=3600)
    try:
        assert await world.serving.alive()
        (world.node.folder / "dra.sock").unlink()
        assert not await world.serving.alive()
    finally:
        await world.end()


async def test_a_plugin_that_stops_leaves_the_sockets_of_the_one_that_follows(world: World) -> None:
    old = world.serving
    world.watching.cancel()
    await world.begin()
    await old.stop(0)
    await world.kubelet.register()
    assert (await world.kubelet.prepare([ref(1)]))[uid(1)].error == ""


async def test_while_two_plugins_overlap_the_kubelet_finds_the_newer_one_until_it_goes(
    world: World,
) -> None:
    old, watching = world.serving, world.watching
    await world.begin()
    newer = world.serving
    paths = (world.registry / f"{DRIVER}-reg.sock", world.node.folder / "dra.sock")
    before = [path.stat().st_ino for path in paths]
    looks = 0

    async def look() -> None:
        nonlocal looks
        await _restore()
        looks += 1

    _restore, old._restore = old._restore, look  # type: ignore[method-assign]
    await until(lambda: looks >= 3)
    assert [path.stat().st_ino for path in paths] == before
    await world.kubelet.register()
    assert (newer.registered, old.registered) == (True, False)
    world.watching.cancel()
    await newer.stop(0)
    await until(lambda: all(path.is_socket() for path in paths))
    await world.kubelet.register()
    assert old.registered
    assert (await world.kubelet.prepare([ref(1)]))[uid(1)].error == ""
    watching.cancel()
    await asyncio.wait([watching])
    await old.stop(0)


async def test_a_socket_that_nobody_serves_any_more_is_replaced(world: World) -> None:
    path = world.registry / f"{DRIVER}-reg.sock"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    left = path.stat().st_ino
    await until(lambda: path.is_socket() and path.stat().st_ino != left)
    await world.kubelet.register()
    assert world.serving.registered


async def test_a_refused_registration_is_logged_and_tried_anew(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    path = world.registry / f"{DRIVER}-reg.sock"
    first = path.stat().st_ino, path.stat().st_mtime_ns
    await world.kubelet.register(error="no such\nversion")
    assert not world.serving.registered
    (line,) = [one for one in caplog.records if "refuses the plugin" in one.getMessage()]
    assert vars(line)["about"]["error"].startswith("no such")
    await until(lambda: path.is_socket() and (path.stat().st_ino, path.stat().st_mtime_ns) != first)
    await world.kubelet.register()
    assert world.serving.registered


async def test_a_stopping_plugin_is_not_found_any_more_while_it_finishes_a_call(
    world: World,
) -> None:
    await world.kubelet.register()
    reached, gate, get = asyncio.Event(), asyncio.Event(), world.node.cluster.claim

    async def later(namespace: str, name: str) -> Any:
        reached.set()
        await gate.wait()
        return await get(namespace, name)

    world.node.cluster.claim = later  # type: ignore[method-assign]
    call = asyncio.create_task(world.kubelet.prepare([ref(1)]))
    await reached.wait()
    world.watching.cancel()  # as the program does, before it stops; else it makes the socket again
    await asyncio.wait([world.watching])
    stopping = asyncio.create_task(world.serving.stop(20))
    await until(lambda: not list(world.registry.iterdir()))
    assert not call.done()
    gate.set()
    assert (await call)[uid(1)].error == ""
    await stopping


async def test_calls_are_counted_from_the_start(world: World) -> None:
    def total(operation: str) -> float | None:
        return world.metrics.registry.get_sample_value(
            "nvidia_dra_requests_total", {"driver": DRIVER, "operation": operation}
        )

    assert total("unprepare") == 0
    await world.kubelet.register()
    await world.kubelet.prepare([ref(1)])
    assert total("prepare") == 1
    assert await world.serving.alive()
    assert total("prepare") == 1  # a probe is not a call of the kubelet's
