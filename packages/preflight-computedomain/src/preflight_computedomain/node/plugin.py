"""The plugin of one node from start to end."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import TimeoutError as Late
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from preflight_kube.auth.connection import Connection
from preflight_kube.cli.commands import CommandFailed
from preflight_kube.client.client import Client, KubeError
from preflight_kube.logs import get_logger
from preflight_kube.runtime.health import HealthServer
from preflight_kube.runtime.ports import PortTaken

from preflight_computedomain.api.names import DRIVER, PLUGIN
from preflight_computedomain.config import EXCLUSIVE, Gates
from preflight_computedomain.core.facts import Unfit
from preflight_computedomain.core.slices import channel
from preflight_computedomain.metrics import PluginMetrics
from preflight_computedomain.node import nvml as library
from preflight_computedomain.node.atomic_file import Disk
from preflight_computedomain.node.grpc_server import GrpcServer
from preflight_computedomain.node.host import ChannelMajor, CliqueOwner, NvmlReader, node_facts
from preflight_computedomain.node.lock import Lock, LockHeld
from preflight_computedomain.node.prepare import ClaimPreparer, ClusterReader
from preflight_computedomain.node.publisher import Publisher
from preflight_computedomain.node.state_dir import ClaimStore

EVERY: Final = 600.0
"""Seconds between two looks at the clique, and at claims that have gone; nodes spread them."""
LOOK: Final = 5.0
"""Seconds between two looks at the CDI files of prepared claims, and at the driver."""
UNKNOWN: Final = 60.0
"""The same where the node offers nothing, as there is no clique, or it is not known."""
GRACE: Final = 10.0
PROBE: Final = 5.0
ANSWER: Final = 15.0
"""Seconds that the API server has for one of the two answers about a claim."""

log = get_logger(__name__)


async def run(
    target: Connection,
    gates: Gates,
    environ: Mapping[str, str],
    address: tuple[str, int],
    *,
    nvml: NvmlReader | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. Raises CommandFailed where this node is not fit."""
    try:
        facts, major = node_facts(environ), ChannelMajor(environ)
        number = major()
        driver = nvml or partial(library.read, environ.get("NVIDIA_DRIVER_ROOT", ""))
        metrics = PluginMetrics(facts.node)
        clique = CliqueOwner(driver, crash=gates.crash_on_fabric_errors, answers=metrics.nvml.set)
        offered = await clique.start()
    except Unfit as error:
        raise CommandFailed(str(error)) from None
    log.info(
        "the node can have channels",
        node=facts.node,
        major=number,
        boot=facts.boot,
        clique=offered or "none",
    )

    def folder(variable: str, default: str) -> Path:  # by the names that NVIDIA's driver has
        return Path(environ.get(variable) or default)

    registry = folder("KUBELET_REGISTRAR_DIRECTORY_PATH", "/var/lib/kubelet/plugins_registry")
    own = folder("KUBELET_PLUGINS_DIRECTORY_PATH", "/var/lib/kubelet/plugins") / DRIVER
    cdi = folder("CDI_ROOT", "/var/run/cdi")
    async with Client(target, agent=PLUGIN, timeout=ANSWER) as client:
        claims = ClaimPreparer(
            facts.node,
            ClusterReader(client),
            ClaimStore(own, cdi, facts, major, Disk()),
            lock=Lock(own / "pu.lock"),
            clique=clique,
            metrics=metrics,
            exclusive=environ.get(EXCLUSIVE) == "true",
        )
        publisher = Publisher(
            client, facts.node, lambda verb: metrics.slice_writes.labels(verb).inc()
        )
        serving = GrpcServer(claims, metrics, registry, own, on_registered=publisher.poke)
        publisher.offer(channel(offered, clique.driver))
        health = _health(address, metrics, serving, publisher, clique)
        try:
            await _begin((own, cdi), claims, serving)
            log.info("started", port=health.port, socket=str(own / "dra.sock"))
            async with anyio.create_task_group() as group:
                group.start_soon(_stop_on_signal, group.cancel_scope)
                group.start_soon(serving.watch)
                group.start_soon(publisher.run)
                group.start_soon(_mend, claims)
                group.start_soon(_now_and_then, clique.refreshed)
                group.start_soon(_follow, major, number, clique, publisher)
                group.start_soon(_now_and_then, lambda: _sweep(claims))
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.gather(serving.stop(GRACE), claims.stop(GRACE))
            health.close()
            log.info("stopped", node=facts.node)


async def _begin(folders: tuple[Path, Path], claims: ClaimPreparer, serving: GrpcServer) -> None:
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        await claims.start()
        await serving.start()
    except (LockHeld, Unfit) as error:
        raise CommandFailed(str(error)) from None
    except OSError as error:
        where = error.filename or folders[0]
        raise CommandFailed(
            f"{where}: {error.strerror or error}; is the node's folder mounted, and may root write there?"
        ) from None


def _health(
    address: tuple[str, int],
    metrics: PluginMetrics,
    serving: GrpcServer,
    publisher: Publisher,
    clique: CliqueOwner,
) -> HealthServer:
    """``/healthz`` asks both sockets as the kubelet would, from the probe's own thread."""
    loop = asyncio.get_running_loop()

    def healthy() -> str:
        asked = asyncio.run_coroutine_threadsafe(serving.alive(PROBE), loop)
        try:
            return "" if asked.result(2 * PROBE) else "the sockets do not answer"
        except Late:
            asked.cancel()
            return "the event loop does not turn"

    def ready() -> str:
        if not serving.registered:
            return "the kubelet has not registered the plugin"
        if not publisher.published:
            return "the ResourceSlice is not published"
        return clique.unknown

    try:
        return HealthServer(*address, metrics.registry, healthy, ready)
    except PortTaken as error:
        raise CommandFailed(str(error)) from None


async def _stop_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("stopping", signal=signal.Signals(number).name)
            scope.cancel()


async def _now_and_then(what: Callable[[], Awaitable[object]]) -> None:
    while True:
        await anyio.sleep(EVERY * random.uniform(0.8, 1.2))  # noqa: S311 - spread, not a secret
        await what()


async def _follow(
    major: ChannelMajor, last: int, clique: CliqueOwner, publisher: Publisher
) -> None:
    """Offer the channel while the node has driver and clique; ``last``: the major known."""
    looked = anyio.current_time()
    while True:
        await anyio.sleep(LOOK)
        try:
            now = await asyncio.to_thread(major)
        except Unfit:
            now = 0  # the reader of the major has logged it
        offers_nothing = clique.unknown or not clique.current
        late = offers_nothing and anyio.current_time() - looked >= UNKNOWN
        if now != last or late:
            looked = anyio.current_time()
            await clique.refreshed()
            last = now
        publisher.offer(channel(clique.current if now else "", clique.driver))


async def _mend(claims: ClaimPreparer) -> None:
    while True:
        await anyio.sleep(LOOK)
        try:
            mended = await claims.mend()
        except Unfit:
            continue  # the reader of the major has logged it
        except (LockHeld, OSError) as error:
            log.warning("CDI files not checked, tried again", error=str(error))
            continue
        for uid in mended:
            what = "CDI file of a prepared claim was missing or altered, written again"
            log.warning(what, uid=uid)


async def _sweep(claims: ClaimPreparer) -> None:
    try:
        stale = await claims.sweep()
    except (KubeError, LockHeld, OSError) as error:
        log.warning("deleted claims not looked for, tried again", error=str(error))
        return
    for ref in stale:
        log.warning(
            "prepared claim no longer exists; its container may still run",
            namespace=ref.namespace,
            name=ref.name,
            uid=ref.uid,
        )
