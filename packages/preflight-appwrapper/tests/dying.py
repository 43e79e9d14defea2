"""A controller that dies at a write of its choice, which did not arrive or whose answer did not
come back; another leads then.

It sees one namespace alone, so that many of them can be tried beside each other.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
from leading import OneNamespace
from preflight_appwrapper.controller import Controller
from preflight_appwrapper.metrics import Metrics
from preflight_appwrapper.rules import Rules
from preflight_kube.connection import Connection
from preflight_kube.lease import Leadership

__all__ = ["DyingClient", "Fault", "dies"]

Fault = Literal["", "lost", "answer lost"]


class DiedError(Exception):
    """The process ends here."""


class Writes:
    """What was written by all leaders of one scenario, and when one of them dies."""

    def __init__(self, at: int, fault: Fault) -> None:
        self.at, self.fault, self.sent = at, fault, 0
        self.log: list[str] = []


class DyingClient(OneNamespace):
    def __init__(self, target: Connection, namespace: str, writes: Writes) -> None:
        super().__init__(target, namespace)
        self._writes = writes

    async def _write(self, verb: str, method: str, path: str, *args: Any, **more: Any) -> bytes:
        writes = self._writes
        writes.sent += 1
        writes.log.append(f"{verb} {path}")
        if writes.sent != writes.at:
            return await super()._write(verb, method, path, *args, **more)
        if writes.fault == "answer lost":
            await super()._write(verb, method, path, *args, **more)
        raise DiedError


@asynccontextmanager
async def dies(target: Connection, namespace: str, writes: Writes) -> AsyncIterator[None]:
    """Leaders, one after another."""

    async def lead() -> None:
        while True:
            try:
                async with DyingClient(target, namespace, writes) as client:
                    await Controller(client, Rules(), Metrics()).lead(Leadership(1, math.inf))
            except* DiedError:
                pass

    async with anyio.create_task_group() as group:
        group.start_soon(lead)
        yield
        group.cancel_scope.cancel()
