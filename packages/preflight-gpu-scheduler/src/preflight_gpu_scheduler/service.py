"""One process of one part, from start to end: mirrors, what it does, its plain port, and an orderly end."""

from __future__ import annotations

import logging
import os
import signal
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import anyio
from preflight_kube.client import Client
from preflight_kube.connection import Connection
from preflight_kube.health import HealthServer
from preflight_kube.lease import Leadership, lead
from prometheus_client import CollectorRegistry

from .config import Config
from .controller import Controller
from .extender import Extender
from .loopback import Application, listener, serve
from .meters import ControllerMeters, ExtenderMeters, MirrorAges
from .state import State

__all__ = ["LEASE", "run_controller", "run_extender", "running"]

LEASE: Final = "gpu-scheduler-controller"
STUCK: Final = 30.0
"""Seconds without a turn of the event loop after which the process is not healthy."""
BEHIND: Final = 30.0
"""Seconds that a mirror may be behind before the process is not ready."""
LEASE_SECONDS: Final = 15.0

log = logging.getLogger(__name__)


async def running(
    part: str,
    client: Client,
    registry: CollectorRegistry,
    synced: Callable[[], bool],
    tasks: list[Callable[[], Awaitable[None]]],
    *,
    host: str,
    port: int,
) -> None:
    """Run ``tasks`` until SIGTERM or SIGINT, and serve `/healthz`, `/readyz` and `/metrics` meanwhile. One that raises ends all.

    Raises OSError when the port cannot be had.
    """
    beat = time.monotonic()
    MirrorAges(registry, client.mirrors.behind)

    def healthy() -> str:
        silent = time.monotonic() - beat
        return f"the event loop has not turned for {silent:.0f} s" if silent > STUCK else ""

    def ready() -> str:
        if not synced():
            return client.mirrors.trouble(0.0) or "the cluster has not been read yet"
        return client.mirrors.trouble(BEHIND)

    async def stop_on_signal(scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                log.info("stopping", extra={"about": {"signal": signal.Signals(number).name}})
                scope.cancel()

    async def keep_beating() -> None:
        nonlocal beat
        while True:
            beat = time.monotonic()
            await anyio.sleep(1)

    health = HealthServer(host, port, registry, healthy, ready)
    log.info("started", extra={"about": {"part": part, "port": health.port}})
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(stop_on_signal, group.cancel_scope)
            group.start_soon(keep_beating)
            for task in tasks:
                group.start_soon(task)
    finally:
        health.close()
        log.info("stopped", extra={"about": {"part": part}})


async def run_extender(target: Connection, config: Config, *, listen: tuple[str, int], host: str, port: int) -> None:
    """``listen``: where kube-scheduler finds it, on loopback."""
    registry = CollectorRegistry()
    async with Client(target, agent="gpu-scheduler-extender", concurrency=64) as client:
        state, meters = State(client, config), ExtenderMeters(registry)
        application = Application(Extender(client, config, state, meters), meters)
        serving = partial(serve, application, listener(*listen))
        await running(
            "extender", client, registry, lambda: state.synced, [*state.runs, serving], host=host, port=port
        )


async def run_controller(target: Connection, config: Config, *, namespace: str, host: str, port: int) -> None:
    """``namespace``: where the lease is by which one of the replicas leads."""
    registry = CollectorRegistry()
    identity = f"{os.environ.get('POD_NAME') or os.uname().nodename}_{uuid.uuid4().hex[:8]}"
    async with Client(target, agent="gpu-scheduler-controller", concurrency=32) as client:
        state, meters = State(client, config, gangs=True), ControllerMeters(registry)

        async def act(leadership: Leadership) -> None:
            meters.leader.set(1)
            try:
                await Controller(client.fenced(leadership.valid), config, state, meters).lead()
            finally:
                meters.leader.set(0)

        async def stand() -> None:
            await lead(
                client, namespace=namespace, name=LEASE, identity=identity, duration=LEASE_SECONDS, body=act
            )

        await running("controller", client, registry, lambda: state.synced, [*state.runs, stand], host=host, port=port)
