"""The real controller as a task of the test, leading from the start."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from played import Cluster
from preflight_gang.config import Config
from preflight_gang.controller.controller import Controller
from preflight_gang.metrics import Metrics
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_kube.runtime.lease import Leadership
from wire import Wire, wired


@dataclass
class Leading:
    """``wire`` is between the controller and the API server."""

    controller: Controller
    metrics: Metrics
    wire: Wire

    def counted(self, name: str, **labels: str) -> float:
        """The value of a metric; 0 while it has none."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def leads(
    target: Connection, *, epoch: int = 1, config: Config | None = None
) -> AsyncIterator[Leading]:
    """A controller that mirrors ``target`` and leads, until the end of the block."""
    async with wired(target) as (wire, through), Client(through, agent="tests") as client:
        metrics = Metrics()
        controller = Controller(client, config or Config(), metrics)
        async with anyio.create_task_group() as group:
            group.start_soon(controller.mirror)
            group.start_soon(controller.lead, Leadership(epoch, math.inf))
            await controller.wait_synced()
            yield Leading(controller, metrics, wire)
            group.cancel_scope.cancel()


async def settled(cluster: Cluster, leading: Leading) -> None:
    """Have the controller do one thing more, after all that it has to do: answer a gang of one. It
    is not in ``sent``.
    """
    await cluster.admit("sentinel", gang="sentinel", size=1)
    await cluster.address("sentinel", "10.0.9.9")
    await cluster.answered("skip", "sentinel")
    sent = [one for one in leading.wire.sent if one.path.endswith("/pods/sentinel")]
    await leading.wire.answered(cluster.namespace)
    for one in sent:
        leading.wire.sent.remove(one)
    await cluster.delete("sentinel")
