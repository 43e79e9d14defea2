"""The wire between one of our services and its API server: it can keep answers back, and stall
watches without breaking them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import anyio
from preflight_kube.auth.connection import Connection
from preflight_testing.apidouble import write_kubeconfig
from preflight_testing.tcp import TcpServer

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


@dataclass(eq=False)
class Sent:
    """One request; ``status`` is 0 while there is no answer."""

    method: str
    path: str
    status: int = 0


class Wire:
    """Plain HTTP on one side, the API server on the other.

    ``keeps``: answers of requests of which it is true wait for :meth:`release`. ``stalls``: of a
    watch of which it is true nothing more is passed on, and its connection stays open, until
    :meth:`release`.
    """

    def __init__(self, target: Connection) -> None:
        self.target = target
        self.sent: list[Sent] = []
        self.kept: list[Sent] = []
        self.keeps: Callable[[Sent], bool] = lambda _: False
        self.stalls: Callable[[Sent], bool] = lambda _: False
        self._changed = asyncio.Event()

    def release(self) -> None:
        self.keeps = self.stalls = lambda _: False
        self._changed.set()

    def saw(self, method: str, ending: str) -> list[Sent]:
        return [
            one
            for one in self.sent
            if one.method == method and one.path.partition("?")[0].endswith(ending)
        ]

    def kubeconfig(self, file: Path) -> Path:
        """For a process that is to use this wire."""
        return write_kubeconfig(file, self.target.server, user={"token": self.target.token})

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, real: Connection
    ) -> None:
        ends = [writer]
        back: asyncio.Task[None] | None = None
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                url = urlsplit(real.server)
                down, up = await asyncio.open_connection(url.hostname, url.port, ssl=real.verify)
                ends.append(up)
                at: list[Sent] = []
                back = asyncio.create_task(self._answers(down, writer, at))
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = _LENGTH.search(head)
                    body = await reader.readexactly(int(length[1])) if length else b""
                    method, path, _ = head.split(b" ", 2)
                    at[:] = [Sent(method.decode(), path.decode())]
                    self.sent += at
                    up.write(head + body)
                    await up.drain()
        finally:
            if back is not None:
                back.cancel()
            for end in ends:
                end.transport.abort()

    async def _answers(
        self, down: asyncio.StreamReader, writer: asyncio.StreamWriter, at: list[Sent]
    ) -> None:
        with suppress(OSError):
            while piece := await down.read(65536):
                one = at[0]
                if not one.status:
                    one.status = int(piece[9:12])
                while self.keeps(one) or ("watch=" in one.path and self.stalls(one)):
                    if one not in self.kept:
                        self.kept.append(one)
                    await self._changed.wait()
                writer.write(piece)
                await writer.drain()


@asynccontextmanager
async def wired(real: Connection) -> AsyncIterator[Wire]:
    """A wire to the API server of ``real``."""
    wires: list[Wire] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await wires[0].serve(reader, writer, real)

    server = TcpServer(serve)
    port = await server.start()
    wires.append(Wire(replace(real, server=f"http://127.0.0.1:{port}")))
    try:
        yield wires[0]
    finally:
        with anyio.CancelScope(shield=True):
            await server.stop()
