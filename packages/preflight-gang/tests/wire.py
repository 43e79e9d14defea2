"""The wire between a controller and its API server: it writes down every request, and can keep some
from arriving.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import anyio
import msgspec
from preflight_kube.auth.connection import Connection
from preflight_testing.tcp import TcpServer

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


@dataclass(eq=False)
class Sent:
    """One request; ``status`` is the answer's, 0 while there is none."""

    method: str
    path: str
    body: bytes
    status: int = 0

    @property
    def is_roster(self) -> bool:
        return self.method == "PATCH" and "/pods/" in self.path

    @property
    def is_record(self) -> bool:
        return self.method in {"POST", "PUT"} and "/configmaps" in self.path

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Wire:
    """Plain HTTP on one side, the API server on the other; within the test's event loop.

    ``holds``: requests of which it is true are kept until :meth:`release`, and are lost when their
    sender dies meanwhile. ``answers``: what it says is answered in the server's place, which hears
    nothing of the request. ``swallows``: requests of which it is true arrive, but their answers do
    not come back.
    """

    def __init__(self, target: Connection) -> None:
        self.target = target
        self.sent: list[Sent] = []
        self.held: list[Sent] = []
        self.holds: Callable[[Sent], bool] = lambda _: False
        self.answers: Callable[[Sent], bytes | None] = lambda _: None
        self.swallows: Callable[[Sent], bool] = lambda _: False
        self.swallowed: list[Sent] = []
        self.most_under_way = 0
        """Of writes that were sent and had no answer yet."""
        self._released = asyncio.Event()

    def release(self) -> None:
        """Let go on what is held, and hold nothing more."""
        self.holds = lambda _: False
        self._released.set()

    def writes(self, namespace: str = "") -> list[Sent]:
        """What was written so far, leases apart; of one namespace or of all."""
        return [
            one
            for one in self.sent
            if one.method != "GET"
            and "/leases" not in one.path
            and f"/namespaces/{namespace}" in one.path
        ]

    async def answered(self, namespace: str = "") -> None:
        """Wait until each write so far has its answer: a watch shows what was written before the
        writer hears of it.
        """
        asked = self.writes(namespace)
        held = {id(one) for one in (*self.held, *self.swallowed)}
        deadline = time.monotonic() + 60
        while not all(one.status or id(one) in held for one in asked):
            assert time.monotonic() < deadline, "some write was never answered"
            await anyio.sleep(0.005)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up: asyncio.StreamWriter | None = None
        back: asyncio.Task[None] | None = None
        at: list[Sent] = []  # the request whose answer is awaited
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                url = urlsplit(self.target.server)
                tls = self.target.verify if url.scheme == "https" else None
                down, up = await asyncio.open_connection(url.hostname, url.port, ssl=tls)
                back = asyncio.create_task(self._answers(down, writer, at))
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = _LENGTH.search(head)
                    body = await reader.readexactly(int(length[1])) if length else b""
                    method, path, _ = head.split(b" ", 2)
                    sent = Sent(method.decode(), path.decode(), body)
                    self.sent.append(sent)
                    self._note_under_way()
                    if (said := self.answers(sent)) is not None:
                        sent.status = int(said[9:12])
                        writer.write(said)
                        continue
                    if self.holds(sent) and not await self._let_go(sent, reader):
                        return
                    at[:] = [sent]
                    up.write(head + body)
                    await up.drain()
        finally:
            if back is not None:
                back.cancel()
            for end in (writer, up):
                if end is not None:
                    end.transport.abort()

    async def _let_go(self, sent: Sent, reader: asyncio.StreamReader) -> bool:
        """Wait for the release; False when the sender has gone first."""
        self.held.append(sent)
        gone = asyncio.create_task(reader.read(1))
        released = asyncio.create_task(self._released.wait())
        try:
            await asyncio.wait({gone, released}, return_when=asyncio.FIRST_COMPLETED)
            return released.done()
        finally:
            for task in (gone, released):
                task.cancel()
            await asyncio.wait({gone, released})

    def _note_under_way(self) -> None:
        under_way = sum(
            not one.status for one in self.sent if one.method != "GET" and "/leases" not in one.path
        )
        self.most_under_way = max(self.most_under_way, under_way)

    async def _answers(
        self, down: asyncio.StreamReader, writer: asyncio.StreamWriter, at: list[Sent]
    ) -> None:
        with suppress(OSError):
            while data := await down.read(65536):
                if at and not at[0].status and data.startswith(b"HTTP/1.1 "):
                    at[0].status = int(data[9:12])
                    if self.swallows(at[0]):
                        self.swallowed.append(at[0])
                if at and at[0] in self.swallowed:
                    continue
                writer.write(data)
                await writer.drain()
        writer.close()


def answer(status: int, body: bytes, **headers: str) -> bytes:
    """What a server says, or who stands in between."""
    said = {"Content-Type": "text/html", "Content-Length": str(len(body)), **headers}
    lines = "".join(f"{key.replace('_', '-')}: {value}\r\n" for key, value in said.items())
    return f"HTTP/1.1 {status} Said\r\n{lines}\r\n".encode() + body


def refusal(code: int, reason: str, **headers: str) -> bytes:
    """An answer with a Status, as an API server gives it."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no"}
    body = msgspec.json.encode({**status, "reason": reason, "code": code})
    return answer(code, body, **{"Content-Type": "application/json", **headers})


@asynccontextmanager
async def wired(target: Connection) -> AsyncIterator[tuple[Wire, Connection]]:
    """A wire to ``target``, and the connection that leads through it."""
    wire = Wire(target)
    server = TcpServer(wire._serve, limit=2**24)
    port = await server.start()
    try:
        yield wire, replace(target, server=f"http://127.0.0.1:{port}")
    finally:
        with anyio.CancelScope(shield=True):
            await server.stop()
