"""The connections to the API server: kept alive, authenticated, one HTTP client each."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import httpx

from .connection import Connection

TOKEN_AGE: Final = 60.0
"""The kubelet replaces a token when a fifth of its life is left (12 minutes of an hour): a minute is early enough."""

_KEEPALIVE: Final = [  # a peer that vanished without a word is noticed within half a minute
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
]


class Lines:
    """One httpx client a connection; the line used last is used next.

    One httpx client for all would poll every idle connection at every request: with 32 of them a request costs four
    times the CPU (2.2 ms against 0.6 ms).
    """

    def __init__(self, target: Connection, agent: str, timeout: float) -> None:
        self._target, self._timeout = target, timeout
        self._auth = _Bearer(target) if target.token else None
        self._headers = {
            "User-Agent": agent,
            "Accept": "application/json",
            "Accept-Encoding": "identity",  # large lists would be compressed: CPU at both ends, within one network
        }
        self._free: list[httpx.AsyncClient] = []
        self.streams = self._made(None)
        """For watches, which hold their connection."""

    def _made(self, connections: int | None) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._target.server,
            headers=self._headers,
            auth=self._auth,
            timeout=self._timeout,
            transport=httpx.AsyncHTTPTransport(
                verify=self._target.verify,
                limits=httpx.Limits(max_connections=connections, keepalive_expiry=60.0),
                socket_options=_KEEPALIVE,
                trust_env=False,  # proxies of the environment are for the world outside
            ),
            trust_env=False,
        )

    @asynccontextmanager
    async def one(self) -> AsyncGenerator[httpx.AsyncClient]:
        line = self._free.pop() if self._free else self._made(1)
        try:
            yield line
        except BaseException:  # cut off in the middle, perhaps: its state is nobody's to guess
            with anyio.CancelScope(shield=True):
                await line.aclose()
            raise
        self._free.append(line)

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):  # whoever is cut off leaves no connection behind
            for line in [self.streams, *self._free]:
                await line.aclose()


class _Bearer(httpx.Auth):
    """The token, from its file when it has one: read again when a minute old, and at once when it is refused."""

    def __init__(self, target: Connection) -> None:
        self._token, self._file, self._read = target.token, target.token_file, time.monotonic()

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        if time.monotonic() - self._read > TOKEN_AGE:
            await self._refresh()
        request.headers["Authorization"] = f"Bearer {self._token}"
        answer = yield request
        if answer.status_code == httpx.codes.UNAUTHORIZED and await self._refresh():
            request.headers["Authorization"] = f"Bearer {self._token}"
            yield request

    async def _refresh(self) -> bool:
        """True when there is another token than before."""
        if self._file is None:
            return False
        self._read, before = time.monotonic(), self._token
        try:
            self._token = (await anyio.Path(self._file).read_text()).strip()
        except OSError:
            return False  # keep what we have; the server says when it is no longer good
        return self._token != before
