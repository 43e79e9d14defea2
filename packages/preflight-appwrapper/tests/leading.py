"""The real controller as a task of the test, leading from the start."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
from preflight_appwrapper.controller import Controller
from preflight_appwrapper.metrics import Metrics
from preflight_appwrapper.rules import Rules
from preflight_kube.client import Client
from preflight_kube.connection import Connection
from preflight_kube.lease import Leadership

__all__ = ["Leading", "leads"]


@dataclass
class Leading:
    client: Client
    metrics: Metrics

    def samples(self, name: str) -> list[Any]:
        return [one for family in self.metrics.registry.collect() for one in family.samples if one.name == name]

    def counted(self, name: str, **labels: str) -> float:
        """The value of a metric; 0 while it has none."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def leads(target: Connection, rules: Rules | None = None) -> AsyncIterator[Leading]:
    async with Client(target, agent="preflight-appwrapper") as client:
        metrics = Metrics()
        controller = Controller(client, rules or Rules(), metrics)
        async with anyio.create_task_group() as group:
            group.start_soon(controller.lead, Leadership(1, math.inf))
            yield Leading(client, metrics)
            group.cancel_scope.cancel()
