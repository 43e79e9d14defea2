"""A TCP proxy in front of an API server, for tests that break connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from .tcp import TcpServer

T = TypeVar("T")


class Proxy:
    """A TCP proxy in front of an API server, which can lose its connections and refuse new ones."""

    def __init__(self, server: str) -> None:
        self._host, self._port = urlsplit(server).hostname, urlsplit(server).port
        self.refuses = False
        self._open: set[asyncio.Task[None]] = set()

    def cut(self, *, refuse: bool = False) -> None:
        """Drop every connection; with ``refuse``, no new one comes through until ``restore``."""
        self.refuses = refuse
        for task in self._open:
            task.cancel()

    def restore(self) -> None:
        """Let new connections through again; those that were cut stay lost."""
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
            if up is not None:
                up.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def proxied(target: T) -> AsyncIterator[tuple[Proxy, T]]:
    """A proxy before ``target``, a dataclass that says where an API server is (``server``), and the
    same that leads through it.
    """
    through: Any = target
    proxy = Proxy(through.server)
    server = TcpServer(proxy._serve)
    port = await server.start()
    url = urlsplit(through.server)._replace(netloc=f"127.0.0.1:{port}").geturl()
    try:
        yield proxy, replace(through, server=url)
    finally:
        await server.stop()
