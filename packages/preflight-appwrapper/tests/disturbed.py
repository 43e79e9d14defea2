"""Clients to which a cluster is unkind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from leading import OneNamespace
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Conflict, Gone


class ConflictingClient(OneNamespace):
    """Each write of a status is first refused as if somebody had written before."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.refused: set[str] = set()

    async def replace_status(self, path: str, body: Any) -> bytes:
        key = f"{path} {body['metadata']['resourceVersion']}"
        if key not in self.refused:
            self.refused.add(key)
            raise Conflict("somebody has written before", 409, "Conflict")
        return await super().replace_status(path, body)


class ForgetfulClient(OneNamespace):
    """Each watch ends at its second event, because its version has become too old."""

    def __init__(self, target: Connection, namespace: str) -> None:
        super().__init__(target, namespace)
        self.ended: set[str] = set()  # one of this client and of those that are made from it

    @asynccontextmanager
    async def watch(self, path: str, *args: Any, **more: Any) -> AsyncIterator[Any]:
        async with super().watch(path, *args, **more) as events:
            yield self._short(events, path.rpartition("/")[2])

    async def _short(self, events: Any, plural: str) -> AsyncIterator[Any]:
        seen = 0
        async for event in events:
            seen += event.object is not None
            if seen > 1:
                self.ended.add(plural)
                raise Gone("too old resource version", 410, "Expired")
            yield event
