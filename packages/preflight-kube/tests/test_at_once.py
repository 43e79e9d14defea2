"""Requests are answered where their last byte is read, and whatever is out of the ordinary still
goes uvicorn's own way.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from preflight_kube.admission.fast_path import AtOnce, HttpAnswer

pytestmark = pytest.mark.anyio
HEAD = b"POST /%s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"


class Echo:
    """Answers with the body, and remembers which way each request came, and who served it."""

    def __init__(self) -> None:
        self.ways: list[str] = []
        self.protocols: weakref.WeakSet[AtOnce] = weakref.WeakSet()
        self.gate = asyncio.Event()

    def at_once(self, scope: Any, body: bytes) -> HttpAnswer | None:
        if scope["path"] == "/wait":
            return None
        self.ways.append("at once")
        return HttpAnswer(200, body, b"text/plain", last=scope["path"] == "/last")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.ways.append("asgi")
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if scope["path"] == "/wait":
            await self.gate.wait()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def served(app: Echo) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to ``app``."""
    config = uvicorn.Config(
        app, http=AtOnce, lifespan="off", log_config=None, access_log=False, proxy_headers=False
    )
    server = uvicorn.Server(config)
    config.load()
    loop, state = asyncio.get_running_loop(), server.server_state

    def made() -> AtOnce:
        app.protocols.add(protocol := AtOnce(config, state, {}))
        return protocol

    listener = await loop.create_server(made, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        listener.close()


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """(head, body)"""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = next(
        int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")
    )
    return head, await reader.readexactly(length)


async def test_a_whole_request_is_answered_at_once_and_its_connection_stays() -> None:
    app = Echo()
    async with served(app) as (reader, writer):
        for body in (b"one", b"two"):
            writer.write(HEAD % (b"x", len(body)) + body)
            head, got = await answer(reader)
            assert (head.split(b"\r\n")[0], got) == (b"http/1.1 200 ok", body)
        writer.write(HEAD % (b"x", 5) + b"th")
        await writer.drain()
        writer.write(b"ree")
        assert (await answer(reader))[1] == b"three"
    assert app.ways == ["at once"] * 3


async def test_a_connection_that_ended_is_freed_without_the_garbage_collector() -> None:
    app = Echo()
    gc.disable()
    try:
        async with served(app) as (reader, writer):
            writer.write(HEAD % (b"x", 3) + b"one")
            await answer(reader)
            assert len(app.protocols) == 1
            writer.close()
            while app.protocols:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def test_the_last_answer_of_a_connection_closes_it() -> None:
    app = Echo()
    async with served(app) as (reader, writer):
        writer.write(HEAD % (b"last", 3) + b"end")
        head, body = await answer(reader)
        assert (b"connection: close" in head, body) == (True, b"end")
        assert await reader.read() == b""


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (
            b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            b"abc",
        ),
        (HEAD % (b"x", 200_000) + b"y" * 200_000, b"y" * 200_000),
    ],
    ids=["of unknown length", "large"],
)
async def test_a_body_that_could_be_too_large_to_wait_for_goes_the_way_of_asgi(
    sent: bytes, body: bytes
) -> None:
    app = Echo()
    async with served(app) as (reader, writer):
        writer.write(sent)
        assert (await answer(reader))[1] == body
    assert app.ways == ["asgi"]


async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked() -> None:
    app = Echo()
    async with served(app) as (reader, writer):
        writer.write(
            b"POST /x HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
        )
        assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"ok")
        assert (await answer(reader))[1] == b"ok"


async def test_requests_sent_together_are_answered_in_their_order() -> None:
    app = Echo()
    async with served(app) as (reader, writer):
        writer.write(HEAD % (b"wait", 1) + b"1" + HEAD % (b"x", 1) + b"2" + HEAD % (b"x", 1) + b"3")
        while "asgi" not in app.ways:
            await asyncio.sleep(0)
        app.gate.set()
        assert [(await answer(reader))[1] for _ in range(3)] == [b"1", b"2", b"3"]


async def test_an_idle_connection_has_its_time_from_its_last_answer_and_leaves_no_timer() -> None:
    app = Echo()

    async def asked(*parts: bytes) -> Any:
        for part in parts:
            writer.write(part)
            while not (protocol.open or part is parts[-1]):
                await asyncio.sleep(0)
            if protocol.open:
                assert protocol.timeout_keep_alive_task is None, "it is not idle"
        await answer(reader)
        return protocol.timeout_keep_alive_task

    whole = HEAD % (b"x", 2) + b"hi"
    async with served(app) as (reader, writer):
        while not app.protocols:
            await asyncio.sleep(0)
        [protocol] = app.protocols
        first, second = await asked(whole), await asked(whole)
        assert first.cancelled()
        assert second.when() > first.when()
        last = await asked(whole[:20], whole[20:])
        assert second.cancelled()
        writer.transport.abort()
        while not last.cancelled():
            await asyncio.sleep(0.01)
