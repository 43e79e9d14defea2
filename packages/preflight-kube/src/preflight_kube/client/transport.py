"""The connections to the API server: kept alive, authenticated, trusted anew where files changed.

They stand on httpcore: a client of httpx polls every idle connection at every request, and spends
on cookies, redirects and URLs what a request costs otherwise (docs/design/0035).
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from ssl import SSLContext, SSLError
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import anyio
import httpcore

from preflight_kube.auth.connection import Connection
from preflight_kube.errors import KubeError
from preflight_kube.logs import get_logger

TRUST_AGE: Final = 10.0
"""Seconds after which it is seen whether the cluster's authority, or our token or certificate, has
been replaced.
"""
ASK_AGAIN: Final = 5.0
"""Seconds from one look for credentials that the server believes to the next where no file has
changed; a plug-in may take its time.
"""
UNREACHABLE: Final = (
    httpcore.NetworkError,
    httpcore.TimeoutException,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
    SSLError,  # an alert after the handshake: of TLS 1.3 that our certificate is not taken
)
"""What a request raises that has no answer, or only the beginning of one."""
KEEPALIVE: Final = [  # a peer that vanished without a word is noticed within half a minute
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
]
IDLE_SECONDS: Final = 60.0
"""For how long a connection is kept for the next request."""
_UNQUOTED: Final = "/:@!$&'()*+,;=~%?"
_BODY: Final = re.compile(rb"\A(?:POST|PUT|PATCH|DELETE) (?s:.*)\r\ncontent-length: *[1-9]", re.I)
"""The head of a request with a body."""

log = get_logger(__name__)


class ConnectionPool:
    """A connection for each request or watch under way; the one used last is used next."""

    def __init__(self, target: Connection, agent: str, timeout: float) -> None:
        self._target, self._timeout = target, timeout
        self.token = target.token or ""
        """The one to send now; empty where there is none."""
        self._headers = {
            "User-Agent": agent,
            "Accept": "application/json",
            # Large lists would be compressed: CPU at both ends, within one network.
            "Accept-Encoding": "identity",
        }
        self._free: list[Http1Connection] = []
        self._renewing = anyio.Lock()
        self._looked, self._asked = time.monotonic(), -ASK_AGAIN
        self._read = _contents(target)

    @asynccontextmanager
    async def acquire(self) -> AsyncGenerator[Http1Connection]:
        """A connection for one request at a time, while the context is open, also where others are
        made anew meanwhile.
        """
        await self._renew()
        target = self._target
        if self._free:
            conn = self._free.pop()
        else:
            conn = Http1Connection(target, self._headers, self, self._timeout)
        try:
            yield conn
        except BaseException as error:
            # Cut off in the middle, perhaps: its state is nobody's to guess.
            await _close(conn)
            refused = isinstance(error, httpcore.ConnectError | SSLError)
            if refused and "certificate" in str(error).lower():
                self._looked = -TRUST_AGE  # files may say other ones by now
            raise
        if target is self._target:
            self._free.append(conn)
        else:
            await _close(conn)

    async def renewed(self, sent: str) -> bool:
        """Look for other credentials, as the server does not believe the token ``sent``, or our
        certificate; True where there is another token, whoever has found it.
        """
        async with self._renewing:
            if sent == self.token and (
                time.monotonic() - self._asked >= ASK_AGAIN or await self._changed()
            ):
                await self._read_again()
            return sent != self.token

    async def _renew(self) -> None:
        """Go on with new connections where the files that say whom to trust, and who we are, have
        changed, or a credential has expired.
        """
        if self._expired():
            async with self._renewing:  # one asks the plug-in, the others wait for what it says
                if self._expired():
                    await self._read_again()
            return
        if not self._target.files or time.monotonic() - self._looked < TRUST_AGE:
            return
        self._looked = time.monotonic()
        if await self._changed():
            async with self._renewing:
                await self._read_again()

    async def _changed(self) -> bool:
        """Tell whether files say what was not read of them."""
        contents = await anyio.to_thread.run_sync(_contents, self._target)
        return contents is not None and contents != self._read

    def _expired(self) -> bool:
        """Tell whether a plug-in's answer has ended, and it may be asked again."""
        expires, since = self._target.expires, time.monotonic() - self._asked
        return expires is not None and time.time() >= expires and since >= ASK_AGAIN

    async def _read_again(self) -> None:
        self._asked = time.monotonic()
        if self._target.again is None:
            return
        contents = await anyio.to_thread.run_sync(_contents, self._target)
        try:
            again = await anyio.to_thread.run_sync(self._target.again)
        except KubeError as error:  # half written, perhaps: what we have is all there is
            log.warning("the cluster's new credentials cannot be used yet", error=str(error))
            return
        same = (again.token, again.expires) == (self.token, self._target.expires)
        if again.token and same and contents == self._read:
            return
        # Where we are sent to stays: it may have been set beside the files.
        self._target, self._read = replace(again, server=self._target.server), contents
        self.token = again.token or ""
        log.info("the cluster's credentials were replaced", server=self._target.server)
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections that nobody uses just now."""
        free, self._free = self._free, []
        await _close(*free)


async def _close(*connections: Http1Connection) -> None:
    """Whoever is cut off leaves no connection behind."""
    with anyio.CancelScope(shield=True):
        for conn in connections:
            await conn.aclose()


def _contents(target: Connection) -> tuple[bytes, ...] | None:
    try:
        return target.contents()
    except OSError:
        return None


class Http1Connection:
    """``timeout`` (seconds) bounds each step of a request: connect, send, and the wait for the next
    bytes. Not for two requests at once. Requests raise :data:`UNREACHABLE`.
    """

    def __init__(
        self,
        target: Connection,
        headers: Mapping[str, str],
        pool: ConnectionPool,
        timeout: float,
    ) -> None:
        base = urlsplit(target.server)
        self._verify, self._pool, self._timeout = target.verify, pool, timeout
        port = base.port or (443 if base.scheme == "https" else 80)
        host = (base.hostname or "").encode("idna")
        self._origin = httpcore.Origin(base.scheme.encode(), host, port)
        self._below = base.path.rstrip("/")
        self._named = {"sni_hostname": target.server_name} if target.server_name else {}
        host = b"[%s]" % host if b":" in host else host
        self._headers = [(b"Host", b"%s:%d" % (host, base.port) if base.port else host)]
        self._headers += [(key.encode(), value.encode()) for key, value in headers.items()]
        self._connection: httpcore.AsyncHTTPConnection | None = None

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str | int] | None = None,
        patience: float = 0.0,
    ) -> AsyncGenerator[httpcore.Response]:
        """The answer, which has to be read within, as it comes and never unpacked. ``patience``:
        seconds that the server may be silent beyond the timeout.
        """
        where = quote(self._below + path, safe=_UNQUOTED)
        if params:
            where += f"{'&' if '?' in where else '?'}{urlencode(params)}"
        head = [*self._headers]
        head += [(key.encode(), value.encode()) for key, value in (headers or {}).items()]
        if content is not None:
            head.append((b"Content-Length", b"%d" % len(content)))
        origin, steps = self._origin, dict.fromkeys(("connect", "read", "write"), self._timeout)
        url = httpcore.URL(
            scheme=origin.scheme, host=origin.host, port=origin.port, target=where.encode()
        )
        steps["read"] += patience
        request = httpcore.Request(
            method, url, headers=head, content=content, extensions={"timeout": steps, **self._named}
        )
        token = self._authorized(request)
        answer = await self._answered(request)
        if answer.status == 401 and await self._pool.renewed(token):
            await answer.aclose()
            self._authorized(request)
            answer = await self._answered(request)
        try:
            yield answer
        finally:
            await answer.aclose()

    def _authorized(self, request: httpcore.Request) -> str:
        """Give it the newest token; which."""
        if not (token := self._pool.token):
            return ""
        name = b"Authorization"
        others = [header for header in request.headers if header[0] != name]
        request.headers = [*others, (name, f"Bearer {token}".encode())]
        return token

    async def _answered(self, request: httpcore.Request) -> httpcore.Response:
        """Over the connection of the last request, or a new one where that was closed meanwhile."""
        kept = self._connection
        if kept is not None and (kept.is_closed() or kept.has_expired()):
            await kept.aclose()
            kept = None
        if kept is None:
            kept = self._connection = connection(self._origin, self._verify)
        return await kept.handle_async_request(request)

    async def aclose(self) -> None:
        """Close it; the next request opens another one."""
        if self._connection is not None:
            await self._connection.aclose()


def connection(origin: httpcore.Origin, verify: SSLContext) -> httpcore.AsyncHTTPConnection:
    """One connection to ``origin``, which is made when it is first used."""
    return httpcore.AsyncHTTPConnection(
        origin=origin,
        ssl_context=verify,
        keepalive_expiry=IDLE_SECONDS,
        socket_options=KEEPALIVE,
        network_backend=_Backend(),
    )


class _Backend(httpcore.AnyIOBackend):
    async def connect_tcp(self, *args: Any, **more: Any) -> httpcore.AsyncNetworkStream:
        return _Stream(await super().connect_tcp(*args, **more))


class _Stream(httpcore.AsyncNetworkStream):
    """Closed when the handshake on it is cancelled: httpcore 1.0 closes a stream after errors
    alone.

    The head of a request that has a body waits for that: alone it would be a system call, a TLS
    record and a packet of its own.
    """

    def __init__(self, plain: httpcore.AsyncNetworkStream) -> None:
        self._plain = plain
        self._head = b""
        self.read, self.aclose = plain.read, plain.aclose  # type: ignore[method-assign]
        self.get_extra_info = plain.get_extra_info  # type: ignore[method-assign]

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not self._head and buffer.endswith(b"\r\n\r\n") and _BODY.search(buffer):
            self._head = bytes(buffer)
            return
        whole, self._head = self._head + buffer if self._head else buffer, b""
        await self._plain.write(whole, timeout)

    async def start_tls(self, *args: Any, **more: Any) -> httpcore.AsyncNetworkStream:
        try:
            return _Stream(await self._plain.start_tls(*args, **more))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._plain.aclose()
            raise
