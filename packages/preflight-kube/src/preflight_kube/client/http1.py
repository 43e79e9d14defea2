"""One request at a time to the API server, over one connection that is kept for the next one.

A client of httpx for all would poll every idle connection at every request, and one for each still
costs a request more for its pool, its cookies, redirects and URLs than for all else: a write costs
0.6 ms of CPU here, and 1.5 ms there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Protocol
from urllib.parse import quote, urlencode

import httpcore
import httpx

from preflight_kube.auth.connection import Connection
from preflight_kube.client.sockets import connection

__all__ = ["Credential", "Http1Connection", "StreamedResponse"]

_UNQUOTED: Final = "/:@!$&'()*+,;=~%?"


class StreamedResponse(Protocol):
    """What is read of an answer of whichever client."""

    @property
    def status_code(self) -> int:
        """As HTTP has it."""

    @property
    def headers(self) -> httpx.Headers:
        """Of the answer."""

    def aiter_raw(self) -> AsyncIterator[bytes]:
        """The body as it comes, never unpacked."""


class Credential(Protocol):
    """The bearer token: what it is now, and another one where it was refused."""

    async def token(self) -> str:
        """The one to send now."""

    async def renewed(self) -> bool:
        """Whether there is another one than before."""


class Reply:
    """An answer whose body comes as it is read."""

    def __init__(self, found: httpcore.Response) -> None:
        self._found = found
        self.status_code = found.status

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    @property
    def headers(self) -> httpx.Headers:
        return httpx.Headers(self._found.headers)

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        """Raises :class:`httpx.TransportError`."""
        with _named():
            async for piece in self._found.aiter_stream():
                yield piece


class Http1Connection:
    """``timeout`` (seconds) bounds each step of a request: connect, send, and the wait for the next
    bytes. Not for two requests at once.
    """

    def __init__(
        self,
        target: Connection,
        headers: Mapping[str, str],
        credential: Credential | None,
        timeout: float,
    ) -> None:
        base = httpx.URL(target.server)
        self._verify, self._credential = target.verify, credential
        port = base.port or (443 if base.scheme == "https" else 80)
        self._origin = httpcore.Origin(base.raw_scheme, base.raw_host, port)
        self._below = base.path.rstrip("/")
        self._headers = [(b"Host", base.netloc)]
        self._headers += [(key.encode(), value.encode()) for key, value in headers.items()]
        steps = ("connect", "read", "write", "pool")
        self._extensions = {"timeout": dict.fromkeys(steps, timeout)}
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
    ) -> AsyncGenerator[Reply]:
        """The answer, which has to be read within. Raises :class:`httpx.TransportError`."""
        where = quote(self._below + path, safe=_UNQUOTED)
        if params:
            where += f"{'&' if '?' in where else '?'}{urlencode(params)}"
        head = [*self._headers]
        head += [(key.encode(), value.encode()) for key, value in (headers or {}).items()]
        if content is not None:
            head.append((b"Content-Length", b"%d" % len(content)))
        with _named():
            found = await self._asked(method, where, head, content)
            refused = found.status == httpx.codes.UNAUTHORIZED
            if refused and self._credential is not None and await self._credential.renewed():
                await found.aclose()
                found = await self._asked(method, where, head, content)
        try:
            yield Reply(found)
        finally:
            await found.aclose()

    async def _asked(
        self, method: str, where: str, head: list[tuple[bytes, bytes]], content: bytes | None
    ) -> httpcore.Response:
        if self._credential is not None:
            bearer = f"Bearer {await self._credential.token()}".encode()
            head = [*head, (b"Authorization", bearer)]
        origin = self._origin
        url = httpcore.URL(
            scheme=origin.scheme, host=origin.host, port=origin.port, target=where.encode()
        )
        asked = httpcore.Request(
            method, url, headers=head, content=content, extensions=self._extensions
        )
        return await (await self._kept()).handle_async_request(asked)

    async def _kept(self) -> httpcore.AsyncHTTPConnection:
        """The connection of the last request, or a new one where that was closed meanwhile."""
        kept = self._connection
        if kept is not None and (kept.is_closed() or kept.has_expired()):
            await kept.aclose()
            kept = None
        if kept is None:
            kept = self._connection = connection(self._origin, self._verify)
        return kept

    async def aclose(self) -> None:
        """Close it; the next request opens another one."""
        if self._connection is not None:
            await self._connection.aclose()


@contextmanager
def _named() -> Iterator[None]:
    """httpcore's errors as httpx calls them, whichever client it was."""
    try:
        yield
    except _ERRORS as error:
        kind = getattr(httpx, type(error).__name__, httpx.TransportError)
        raise kind(str(error)) from error


_ERRORS: Final = (
    httpcore.NetworkError,
    httpcore.TimeoutException,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
)
