"""One request after the other over one connection: what is sent,
and when a new connection is made.
"""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from kube_world import Item
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client, KubeError

pytestmark = pytest.mark.anyio
OBJECT = b'{"metadata": {"name": "a", "uid": "u", "resourceVersion": "1"}}'


class Server:
    """Notes what comes in, a connection a list, and answers each with ``OBJECT``; ``hangs_up``
    after each answer.
    """

    def __init__(self) -> None:
        self.came: list[list[bytes]] = []
        self.hangs_up = False

    async def serve(self, stream: SocketStream) -> None:
        pieces: list[bytes] = []
        self.came.append(pieces)
        async with stream:
            async for piece in stream:
                pieces.append(piece)
                await stream.send(ANSWER)
                if self.hangs_up:
                    return


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(OBJECT) + OBJECT


@asynccontextmanager
async def served(
    serve: Callable[[SocketStream], Awaitable[None]], below: str = "", **how: Any
) -> AsyncIterator[Client]:
    """A client of what ``serve`` makes of each connection."""
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as group,
    ):
        group.start_soon(listener.serve, serve)
        server = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}{below}"
        target = Connection(server, ssl.create_default_context(), **how)
        async with Client(target, agent="tests", attempts=1, timeout=10) as client:
            yield client
        group.cancel_scope.cancel()


@asynccontextmanager
async def asked(below: str = "") -> AsyncIterator[tuple[Server, Client]]:
    server = Server()
    async with served(server.serve, below, token="t") as client:
        yield server, client


async def test_head_and_body_of_a_write_leave_together_and_say_who_asks() -> None:
    async with asked() as (server, client):
        await client.create("/api/v1/things", {"kind": "Thing"})
        await client.merge_patch("/api/v1/things/a", {"kind": "Other"})
        await client.delete("/api/v1/things/a", uid="u")
        await client.delete("/api/v1/things/a")
        await client.get("/api/v1/things/a", Item, params={"pretty": "a b"})
    [pieces] = server.came
    heads, bodies = zip(*(piece.split(b"\r\n\r\n") for piece in pieces), strict=True)
    assert [head.splitlines()[0] for head in heads] == [
        b"POST /api/v1/things HTTP/1.1",
        b"PATCH /api/v1/things/a HTTP/1.1",
        b"DELETE /api/v1/things/a HTTP/1.1",
        b"DELETE /api/v1/things/a HTTP/1.1",
        b"GET /api/v1/things/a?pretty=a+b HTTP/1.1",
    ]
    assert bodies[:2] == (b'{"kind":"Thing"}', b'{"kind":"Other"}')
    assert b'"uid":"u"' in bodies[2]
    assert bodies[3:] == (b"", b"")
    for head in heads:
        lines = head.splitlines()[1:]
        assert {b"Authorization: Bearer t", b"User-Agent: tests"} <= {*lines}


async def test_a_body_larger_than_a_packet_arrives_whole() -> None:
    received = bytearray()

    async def serve(stream: SocketStream) -> None:
        async with stream:
            async for piece in stream:
                received.extend(piece)
                if received.endswith(b'END"}'):
                    await stream.send(ANSWER)

    async with served(serve) as client:
        await client.replace("/a", {"data": "x\r\n\r\n" * 300_000 + "END"})
    assert len(received) > 1_000_000


async def test_a_connection_that_the_server_has_closed_meanwhile_is_followed_by_another() -> None:
    async with asked() as (server, client):
        server.hangs_up = True
        for _ in range(3):
            with anyio.fail_after(600):
                while True:
                    try:
                        await client.get("/api/v1/things/a", Item)
                        break
                    except KubeError:  # the server was faster: its goodbye came with the request
                        continue
    assert len(server.came) >= 3


async def test_all_that_were_under_way_with_an_old_token_are_sent_again_with_the_new_one() -> None:
    under_way: list[bytes] = []
    both, answered = anyio.Event(), anyio.Event()

    async def serve(stream: SocketStream) -> None:
        async with stream:
            async for request in stream:
                if b"Bearer new" in request:
                    answered.set()
                    await stream.send(ANSWER)
                    continue
                under_way.append(request)
                if len(under_way) == 2:
                    both.set()
                    await answered.wait()  # the other has the new token by now
                await both.wait()
                await stream.send(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")

    def again() -> Connection:
        return replace(client.target, token="new")

    async with (
        served(serve, token="old", again=again) as client,
        anyio.create_task_group() as asking,
    ):
        asking.start_soon(client.get, "/a", Item)
        asking.start_soon(client.get, "/b", Item)
    assert len(under_way) == 2


async def test_a_server_behind_a_path_is_asked_below_it() -> None:
    async with asked("/clusters/one/") as (server, client):
        await client.get("/api/v1/things/a", Item)
    [[piece]] = server.came
    assert piece.startswith(b"GET /clusters/one/api/v1/things/a HTTP/1.1\r\n")


def test_a_client_loads_no_second_http_library() -> None:
    loads = "import sys, preflight_kube.client.client; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loads], check=False).returncode == 0
