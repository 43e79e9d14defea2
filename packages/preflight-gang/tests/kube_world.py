"""What the tests of the Kubernetes layer share: two Structs, waiting, and a way to break connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import anyio
import msgspec
from preflight_gang.kube.connection import Connection
from preflight_gang.kube.reflector import Change


class Meta(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    resource_version: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Item(msgspec.Struct):
    """Any object, as far as these tests look at it."""

    metadata: Meta
    data: dict[str, str] = {}


class Kept(msgspec.Struct):
    """An object of which only the data is read; the key is kept too."""

    metadata: KeptMeta
    data: dict[str, str] = {}


class KeptMeta(msgspec.Struct):
    uid: str
    name: str


def config_map(name: str, labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


def names(items: Iterable[Any]) -> list[str]:
    return sorted(item.metadata.name for item in items)


async def until(true: Callable[[], object], what: str, seconds: float = 20) -> None:
    """Wait for the thing; ``seconds`` only bounds a failure."""
    with anyio.move_on_after(seconds):
        while not true():
            await anyio.sleep(0.005)
        return
    raise AssertionError(f"never happened: {what}")


class Changes:
    """What a Reflector told, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, change: Change[Kept]) -> None:
        self.seen.append((change.kind, change.object.metadata.name))


class Proxy:
    """A TCP proxy in front of an API server, which can lose its connections and refuse new ones."""

    def __init__(self, target: Connection) -> None:
        self._host, self._port = urlsplit(target.server).hostname, urlsplit(target.server).port
        self.target = target
        self.refuses = False
        self._open: set[asyncio.Task[None]] = set()

    def cut(self, *, refuse: bool = False) -> None:
        """Drop every connection; with ``refuse``, no new one comes through until ``mend``."""
        self.refuses = refuse
        for task in self._open:
            task.cancel()

    def mend(self) -> None:
        self.refuses = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        up: asyncio.StreamWriter | None = None
        try:
            if not self.refuses:
                with suppress(OSError, asyncio.CancelledError):
                    down, up = await asyncio.open_connection(self._host, self._port)
                    async with asyncio.TaskGroup() as both:
                        both.create_task(_pump(reader, up))
                        both.create_task(_pump(down, writer))
        except* OSError:
            pass
        finally:
            self._open.discard(task)
            for end in (writer, up):
                if end is not None:
                    end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def proxied(target: Connection) -> AsyncIterator[tuple[Proxy, Connection]]:
    """A proxy, and the connection that leads through it."""
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    url = urlsplit(target.server)
    port = server.sockets[0].getsockname()[1]
    try:
        yield proxy, replace(target, server=url._replace(netloc=f"127.0.0.1:{port}").geturl())
    finally:
        server.close()
        for _ in range(5):
            await asyncio.sleep(0)  # whoever was let in last is served by a task that has begun, and so can end
        proxy.cut(refuse=True)
        await asyncio.gather(*proxy._open, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the loop's next turn
