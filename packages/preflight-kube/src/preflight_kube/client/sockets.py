"""The sockets under the HTTP clients: noticed when the peer is gone, closed whenever their
connection does not come about, and a request's head and body leave together.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterable
from typing import Any, Final

import anyio
import httpcore
import httpx

__all__ = ["Transport", "connection"]

KEEPALIVE: Final = [  # a peer that vanished without a word is noticed within half a minute
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
]
_BODY: Final = re.compile(rb"\A(?:POST|PUT|PATCH|DELETE) (?s:.*)\r\ncontent-length: *[1-9]", re.I)
"""The head of a request with a body."""
IDLE_SECONDS: Final = 60.0
"""For how long a connection is kept for the next request."""


def connection(origin: httpcore.Origin, verify: ssl.SSLContext) -> httpcore.AsyncHTTPConnection:
    """One connection to ``origin``, which is made when it is first used."""
    return httpcore.AsyncHTTPConnection(
        origin=origin,
        ssl_context=verify,
        keepalive_expiry=IDLE_SECONDS,
        socket_options=KEEPALIVE,
        network_backend=_Backend(),
    )


class Transport(httpx.AsyncHTTPTransport):
    """HTTP/1.1 over any number of sockets; the environment's proxies are for the world outside."""

    def __init__(self, verify: ssl.SSLContext) -> None:
        super().__init__(verify=verify, trust_env=False)
        # httpx offers no way to name the backend. The pool that it has just made has no connection
        # yet.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=verify,
            max_connections=None,
            keepalive_expiry=IDLE_SECONDS,
            socket_options=KEEPALIVE,
            network_backend=_Backend(),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As its base, without a Location in the answer."""
        answer = await super().handle_async_request(request)
        # Nobody follows it, but httpx looks at it all the same, and some that are not addresses
        # raise what is not an HTTPError.
        answer.headers.pop("Location", None)
        return answer


class _Backend(httpcore.AsyncNetworkBackend):
    def __init__(self) -> None:
        self._plain = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(
            await self._plain.connect_tcp(host, port, timeout, local_address, socket_options)
        )

    async def sleep(self, seconds: float) -> None:
        await self._plain.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    """Closed when the handshake on it is cancelled: httpcore 1.0 closes a stream after errors
    alone.

    The head of a request that has a body waits for that: alone it would be a system call, a TLS
    record and a packet of its own.
    """

    def __init__(self, plain: httpcore.AsyncNetworkStream) -> None:
        self._plain = plain
        self._head = b""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._plain.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not self._head and buffer.endswith(b"\r\n\r\n") and _BODY.search(buffer):
            self._head = bytes(buffer)
            return
        whole, self._head = self._head + buffer if self._head else buffer, b""
        await self._plain.write(whole, timeout)

    async def aclose(self) -> None:
        await self._plain.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            return _Stream(await self._plain.start_tls(ssl_context, server_hostname, timeout))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._plain.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._plain.get_extra_info(info)
