"""One replica from start to end, run by :mod:`preflight_kube.runtime.manager`."""

from __future__ import annotations

from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_kube.runtime import manager
from preflight_kube.runtime.lease import Leadership

from preflight_gang.config import Config
from preflight_gang.controller.controller import Controller
from preflight_gang.metrics import Metrics

LEASE = "preflight-gang"


def run(target: Connection, config: Config, *, namespace: str, host: str, port: int) -> int:
    """Run until SIGTERM or SIGINT; the exit status of the process (:func:`manager.run`)."""
    metrics = Metrics()

    async def build(client: Client) -> manager.Parts:
        metrics.follow(client)
        controller = Controller(client, config, metrics)

        async def lead(leadership: Leadership) -> None:
            with metrics.runtime.leading(LEASE, metrics.leader):
                await controller.lead(leadership)

        def unready() -> str:
            if controller.synced or client.mirrors.trouble(manager.BEHIND):
                return ""  # or the manager says it
            return client.mirrors.trouble(0.0) or "the cluster has not been read yet"

        return manager.Parts(tasks={"mirrors": controller.mirror}, lead=lead, ready=[unready])

    return manager.run(
        build,
        target,
        component="preflight-gang",
        registry=metrics.registry,
        host=host,
        port=port,
        election=manager.Election(namespace, LEASE, config.lease_seconds),
        concurrency=config.writes,
        log_level=config.log_level,
    )
