"""One replica from start to end: stand for leadership, act while leading, leave cleanly."""

from __future__ import annotations

import logging
import os
import signal
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from preflight_kube.client import Client
from preflight_kube.connection import Connection
from preflight_kube.health import HealthServer
from preflight_kube.lease import Leadership, lead

from .metrics import Metrics

__all__ = ["AGENT", "run"]

AGENT: Final = "preflight-appwrapper"
STUCK: Final = 30.0
"""Seconds without a turn of the event loop after which the process is not healthy."""
BEHIND: Final = 30.0
"""Seconds that a mirror may be behind the cluster before the replica is not ready: an API server's restart takes less."""
RETRY: Final = 2.0
"""Seconds, at most, between renewals: a lease that was given back is taken within them."""

log = logging.getLogger(__name__)


async def run(
    target: Connection,
    metrics: Metrics,
    *,
    lease: str,
    lease_seconds: float,
    namespace: str,
    host: str,
    port: int,
    act: Callable[[Client], Callable[[Leadership], Awaitable[None]]],
) -> None:
    """Run ``act`` whenever this replica leads, until SIGTERM or SIGINT; then give the lease back, so that the other leads at once.

    Nothing of it ends by itself: what raises ends the process, which is then started anew. Raises OSError when the port cannot be had,
    and an ExceptionGroup for a fault of our own.
    """
    identity = f"{os.environ.get('POD_NAME') or os.uname().nodename}_{uuid.uuid4().hex[:8]}"
    beat = time.monotonic()

    async with Client(target, agent=AGENT) as client:
        metrics.sent(client.requests)
        metrics.mirrored(client.mirrors)
        body = act(client)

        def healthy() -> str:
            silent = time.monotonic() - beat
            return f"the event loop has not turned for {silent:.0f} s" if silent > STUCK else ""

        def ready() -> str:
            return client.mirrors.trouble(BEHIND)

        health = HealthServer(host, port, metrics.registry, healthy, ready)
        about = {"identity": identity, "port": health.port, "lease": f"{namespace}/{lease}"}
        log.info("started", extra={"about": about})

        async def leads(leadership: Leadership) -> None:
            metrics.leader.set(1)
            try:
                await body(leadership)
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
                await lead(
                    client,
                    namespace=namespace,
                    name=lease,
                    identity=identity,
                    duration=lease_seconds,
                    retry=min(RETRY, lease_seconds / 5),
                    body=leads,
                )
        finally:
            health.close()
            log.info("stopped", extra={"about": {"identity": identity}})
