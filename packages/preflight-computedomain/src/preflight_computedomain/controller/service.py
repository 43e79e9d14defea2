"""One replica from start to end: mirror the cluster, stand for leadership, act while leading, leave cleanly."""

from __future__ import annotations

import logging
import os
import signal
import time
import uuid
from typing import Final

import anyio
from preflight_kube.client import Client
from preflight_kube.health import HealthServer
from preflight_kube.lease import Leadership, lead

from ..startup import Failed, Start
from .metrics import Metrics
from .page import COMPONENT, Controller

__all__ = ["LEASE", "run"]

LEASE: Final = COMPONENT
STUCK: Final = 30.0
"""Seconds without a turn of the event loop after which the process is not healthy."""
BEHIND: Final = 30.0
"""Seconds that a mirror may be behind the cluster before the replica is not ready: an API server's restart takes less."""
CONCURRENCY: Final = 32

log = logging.getLogger(__name__)


async def run(start: Start, *, namespace: str, lease_seconds: float = 15.0) -> None:
    """Run until SIGTERM or SIGINT; then give the lease back, so that the other replica leads at once. Raises Failed."""
    metrics = Metrics()
    identity = f"{os.environ.get('POD_NAME') or os.uname().nodename}_{uuid.uuid4().hex[:8]}"
    beat = time.monotonic()

    async with Client(start.target, agent=COMPONENT, concurrency=CONCURRENCY) as client:
        controller = Controller(client, metrics)

        def healthy() -> str:
            silent = time.monotonic() - beat
            return f"the event loop has not turned for {silent:.0f} s" if silent > STUCK else ""

        def ready() -> str:
            if not controller.synced:
                return client.mirrors.trouble(0.0) or "the cluster has not been read yet"
            return client.mirrors.trouble(BEHIND)

        try:
            health = HealthServer(start.host, start.port, metrics.registry, healthy, ready)
        except OSError as error:
            raise Failed(
                f"{start.host}:{start.port} cannot be listened on ({error.strerror or error}); choose another --port."
            ) from None
        about = {"identity": identity, "port": health.port, "lease": f"{namespace}/{LEASE}"}
        log.info("started", extra={"about": about})

        async def act(leadership: Leadership) -> None:
            metrics.leader.set(1)
            try:
                await controller.lead(leadership)
            finally:
                metrics.leader.set(0)

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

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(stop_on_signal, group.cancel_scope)
                group.start_soon(keep_beating)
                group.start_soon(controller.mirror)
                await lead(
                    client,
                    namespace=namespace,
                    name=LEASE,
                    identity=identity,
                    duration=lease_seconds,
                    retry=min(2.0, lease_seconds / 5),
                    body=act,
                )
        finally:
            health.close()
            log.info("stopped", extra={"about": {"identity": identity}})
