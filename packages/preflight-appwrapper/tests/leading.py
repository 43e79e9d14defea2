"""The real controller as a task of the test, leading from the start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.controller.controller import Controller
from preflight_appwrapper.metrics import Metrics
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client


class OneNamespace(Client):
    """Sees one namespace alone, so that tests on one API server do not look after each other's
    wrappers. Empty: all of them.
    """

    def __init__(self, target: Connection, namespace: str) -> None:
        super().__init__(target, agent="preflight-appwrapper")
        self._namespace = namespace

    def _within(self, path: str) -> str:
        head, _, plural = path.rpartition("/")
        if not self._namespace or "/namespaces/" in path or plural == "nodes":
            return path
        return f"{head}/namespaces/{self._namespace}/{plural}"

    def pages(self, path: str, *args: Any, **more: Any) -> Any:
        return super().pages(self._within(path), *args, **more)

    def watch(self, path: str, *args: Any, **more: Any) -> Any:
        return super().watch(self._within(path), *args, **more)


@dataclass
class Leading:
    client: Client
    metrics: Metrics

    def samples(self, name: str) -> list[Any]:
        return [
            one
            for family in self.metrics.registry.collect()
            for one in family.samples
            if one.name == name
        ]

    def counted(self, name: str, **labels: str) -> float:
        """The value of a metric; 0 while it has none."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def leads(
    target: Connection | None = None,
    namespace: str = "",
    *,
    client: Client | None = None,
    rules: WrapperRules | None = None,
) -> AsyncIterator[Leading]:
    """Looks after the wrappers of one namespace, or of all; by ``client``, or at ``target``."""
    if client is None:
        assert target is not None
        client = OneNamespace(target, namespace)
    async with client as used:
        metrics = Metrics()
        controller = Controller(used, rules or WrapperRules(), metrics)
        async with anyio.create_task_group() as group:
            group.start_soon(controller.run)
            yield Leading(used, metrics)
            group.cancel_scope.cancel()
