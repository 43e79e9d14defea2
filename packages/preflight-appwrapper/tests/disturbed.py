"""Clients to which a cluster is unkind, and one of somebody who asks again where nobody answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from leading import OneNamespace
from preflight_kube.client import Client, Conflict, Gone, KubeError
from preflight_kube.connection import Connection

__all__ = ["ConflictingClient", "ForgetfulClient", "PatientClient"]

_PATIENCE: Final = 300
"""Times that it asks again."""


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


class PatientClient(Client):
    """Asks until it is answered. What it creates and is there already, or deletes and is gone, it has
    created or deleted before.
    """

    async def _read(self, *args: Any, **more: Any) -> Any:
        asked = super()._read
        return await _answered(lambda: asked(*args, **more))

    async def _write(self, *args: Any, **more: Any) -> bytes:
        asked = super()._write
        return bytes(await _answered(lambda: asked(*args, **more), done=(409, 404)))


async def _answered(ask: Callable[[], Awaitable[Any]], done: tuple[int, ...] = ()) -> Any:
    """``done``: answers to a second question that say that the first one was heard."""
    for tries in range(_PATIENCE):
        try:
            return await ask()
        except KubeError as error:
            if tries and error.status in done:
                return b""
            if 0 < error.status < 500 or tries == _PATIENCE - 1:
                raise
        await anyio.sleep(0.2)
    raise AssertionError("unreachable")
