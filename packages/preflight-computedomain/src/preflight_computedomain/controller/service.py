"""One replica from start to end: mirror the cluster, stand for leadership, act while leading."""

from __future__ import annotations

from typing import Final

from preflight_kube.client.client import Client
from preflight_kube.runtime.manager import Election, Parts
from preflight_kube.runtime.manager import run as run_replica

from ..startup import Start, say
from .metrics import ControllerMetrics
from .page import COMPONENT, Controller

__all__ = ["LEASE", "run"]

LEASE: Final = COMPONENT


def run(start: Start, *, namespace: str, lease_seconds: float, log_level: str) -> int:
    """Run until SIGTERM or SIGINT; then the lease is given back, so that the other replica leads at
    once. The exit status.
    """
    metrics = ControllerMetrics()

    async def build(client: Client) -> Parts:
        say(start.gates)
        controller = Controller(client, metrics)
        return Parts(reflectors=controller.reflectors, lead=controller.lead)

    return run_replica(
        build,
        start.target,
        component=COMPONENT,
        registry=metrics.registry,
        host=start.host,
        port=start.port,
        election=Election(namespace, LEASE, lease_seconds),
        log_level=log_level,
    )
