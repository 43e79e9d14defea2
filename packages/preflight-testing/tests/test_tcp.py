"""Servers of tests close every connection that they let in, whenever they end."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from preflight_testing.apidouble import ApiDouble
from preflight_testing.tcp import TcpServer


def left_open(play: Callable[[], Coroutine[Any, Any, None]]) -> list[str]:
    """What nobody has closed after ``play`` and its event loop are over."""
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(play())
        gc.collect()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("turns", range(6))
def test_a_server_that_ends_while_somebody_connects_closes_the_connection(
    turns: int, *, tls: bool
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls else None

    async def play() -> None:
        double = ApiDouble(tls=context)
        with socket.socket() as client:
            async with double:
                client.connect(("127.0.0.1", double.port))
                for _ in range(turns):
                    await asyncio.sleep(0)
            client.settimeout(20)
            with suppress(ConnectionError):
                assert client.recv(1) == b""

    assert left_open(play) == []


def test_a_server_that_ends_closes_the_connection_of_a_client_that_does_not_read() -> None:
    async def play() -> None:
        double = ApiDouble()
        double.create("namespaces", {"metadata": {"name": "big"}, "data": "x" * (16 << 20)})
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            async with double:
                client.connect(("127.0.0.1", double.port))
                client.sendall(b"GET /api/v1/namespaces/big HTTP/1.1\r\n\r\n")
                while not double.requests:
                    await asyncio.sleep(0)
            client.settimeout(20)
            with suppress(ConnectionError):  # of the answer comes what was on its way
                while client.recv(1 << 16):
                    pass

    assert left_open(play) == []


def test_what_a_server_wrote_reaches_its_client_when_it_closes_the_connection() -> None:
    async def much(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * (16 << 20))

    async def play() -> None:
        server = TcpServer(much)
        reader, writer = await asyncio.open_connection("127.0.0.1", await server.start())
        assert len(await reader.read()) == 16 << 20
        writer.close()
        await writer.wait_closed()
        await server.stop()

    assert left_open(play) == []
