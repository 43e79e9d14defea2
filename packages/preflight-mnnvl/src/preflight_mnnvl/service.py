"""A replica of the controller from start to end: mirror the cluster, stand for leadership, write while leading, leave cleanly."""

from __future__ import annotations

import logging
import os
import signal
import time
import uuid

import anyio
from preflight_kube.client import Client
from preflight_kube.connection import Connection
from preflight_kube.health import HealthServer
from preflight_kube.lease import Leadership, lead

from .config import Config
from .controller import Controller
from .metrics import Metrics
from .writer import AGENT

__all__ = ["LEASE", "run"]

LEASE = "preflight-mnnvl"
STUCK = 30.0
"""Seconds without a turn of the event loop after which the process is not healthy."""
BEHIND = 30.0
"""Seconds that a mirror may be behind the cluster before the replica is not ready: an API server's restart takes less."""
RETRY = 2.0
"""Seconds, at most, between renewals: a lease that was given back is taken within them."""

log = logging.getLogger(__name__)


async def run(target: Connection, config: Config, *, namespace: str, host: str, port: int) -> None:
    """Run until SIGTERM or SIGINT; then give the lease back, so that the other replica leads at once.

    Raises OSError when the port cannot be had, and an ExceptionGroup for a fault of our own.
    """
    metrics = Metrics()
    identity = f"{os.environ.get('POD_NAME') or os.uname().nodename}_{uuid.uuid4().hex[:8]}"
    account = os.environ.get("POD_SERVICE_ACCOUNT", "")
    beat = time.monotonic()

    async with Client(target, agent=AGENT, concurrency=config.writes) as client:
        controller = Controller(
            client, config, metrics, f"system:serviceaccount:{namespace}:{account}" if account else ""
        )

        def healthy() -> str:
            silent = time.monotonic() - beat
            return f"the event loop has not turned for {silent:.0f} s" if silent > STUCK else ""

        def ready() -> str:
            if not controller.synced:
                return client.mirrors.trouble(0.0) or "the cluster has not been read yet"
            return client.mirrors.trouble(BEHIND)

        health = HealthServer(host, port, metrics.registry, healthy, ready)
        about = {"identity": identity, "port": health.port, "lease": f"{namespace}/{LEASE}", "mode": config.mode}
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
                    duration=config.lease_seconds,
                    retry=min(RETRY, config.lease_seconds / 5),
                    body=act,
                )
        finally:
            health.close()
            log.info("stopped", extra={"about": {"identity": identity}})
