"""A controller that dies at a request of its choice, which did not arrive or whose answer did not
come back; another leads then.

It sees one namespace alone, so that many of them can be tried beside each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
from lab import Lab
from leading import OneNamespace
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.controller.controller import Controller
from preflight_appwrapper.metrics import Metrics
from preflight_kube.auth.connection import Connection

Fault = Literal["", "lost", "answer lost", "unread"]
"""Of a write; the last one is of a read, for which both are the same."""


class DiedError(BaseException):
    """The process ends here."""


class Requests:
    """What was sent by all leaders of one scenario, and when one of them dies: at a write, or at a
    read.
    """

    def __init__(self, at: int, fault: Fault) -> None:
        self.at, self.fault = at, fault
        self.writes: list[str] = []
        self.reads: list[str] = []
        self.of_creation = 0

    @property
    def sent(self) -> list[str]:
        """Those of which one is disturbed."""
        return self.reads if self.fault == "unread" else self.writes

    def created(self) -> None:
        """Note that what was sent so far is of the creation."""
        self.of_creation = len(self.sent)


class DyingClient(OneNamespace):
    def __init__(self, target: Connection, namespace: str, requests: Requests) -> None:
        super().__init__(target, namespace)
        self._disturbed = requests

    async def _write(self, verb: str, method: str, path: str, *args: Any, **more: Any) -> bytes:
        of = self._disturbed
        of.writes.append(f"{verb} {path}")
        if of.fault == "unread" or len(of.writes) != of.at:
            return await super()._write(verb, method, path, *args, **more)
        if of.fault == "answer lost":
            await super()._write(verb, method, path, *args, **more)
        raise DiedError

    async def _read(self, verb: str, path: str, *args: Any, **more: Any) -> Any:
        of = self._disturbed
        of.reads.append(f"{verb} {path}")
        if of.fault == "unread" and len(of.reads) == of.at:
            raise DiedError
        return await super()._read(verb, path, *args, **more)


@asynccontextmanager
async def dies(lab: Lab, requests: Requests) -> AsyncIterator[None]:
    """Leaders, one after another."""
    lab.created = requests.created

    async def lead() -> None:
        while True:
            try:
                async with DyingClient(lab.target, lab.namespace, requests) as client:
                    await Controller(client, WrapperRules(), Metrics()).run()
            except* DiedError:
                pass

    async with anyio.create_task_group() as group:
        group.start_soon(lead)
        yield
        group.cancel_scope.cancel()
