"""The connections to the API server: kept alive, authenticated; lines for requests, and httpx for watches."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import anyio
import httpx

from .clock import Clock
from .connection import Connection
from .line import KEEPALIVE, Answer, Line

__all__ = ["Asker", "Lines"]

TOKEN_AGE: Final = 60.0
"""The kubelet replaces a token when a fifth of its life is left (12 minutes of an hour): a minute is early enough."""


class Lines:
    """As many lines as are used at the same time; the one used last is used next."""

    def __init__(self, target: Connection, agent: str, timeout: float, clock: Clock) -> None:
        self._target, self._timeout, self._clock = target, timeout, clock
        self._token = _Token(target) if target.token else None
        self._headers = {
            "User-Agent": agent,
            "Accept": "application/json",
            "Accept-Encoding": "identity",  # large lists would be compressed: CPU at both ends, within one network
        }
        self._free: list[Line] = []
        self.streams = httpx.AsyncClient(
            base_url=target.server,
            headers=self._headers,
            auth=_Bearer(self._token) if self._token else None,
            timeout=timeout,
            transport=httpx.AsyncHTTPTransport(
                verify=target.verify,
                limits=httpx.Limits(max_connections=None, keepalive_expiry=60.0),
                socket_options=list(KEEPALIVE),
                trust_env=False,  # proxies of the environment are for the world outside
            ),
            trust_env=False,
        )
        """For watches, which hold their connection."""

    @contextmanager
    def one(self) -> Iterator[Asker]:
        line = self._free.pop() if self._free else None
        if line is None:
            line = Line(self._target, list(self._headers.items()), self._timeout, self._clock)
        try:
            yield Asker(line, self._token)
        except BaseException:  # cut off in the middle, perhaps: its state is nobody's to guess
            line.close()
            raise
        self._free.append(line)

    async def aclose(self) -> None:
        for line in self._free:
            line.close()
        await self.streams.aclose()


class Asker:
    """One line, with the token that there is when a request is sent."""

    def __init__(self, line: Line, token: _Token | None) -> None:
        self._line, self._token = line, token

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        content: bytes = b"",
        kind: str = "",
    ) -> Answer:
        """``kind``: the content's type. Raises :class:`.line.Broken`."""
        kinds = [("Content-Type", kind)] if kind else []
        if self._token is None:
            return await self._line.request(method, path, params=params, content=content, headers=kinds)
        await self._token.kept_fresh()
        answer = await self._line.request(
            method, path, params=params, content=content, headers=[*kinds, self._token.header]
        )
        if answer.status_code == httpx.codes.UNAUTHORIZED and await self._token.refresh():
            headers = [*kinds, self._token.header]
            return await self._line.request(method, path, params=params, content=content, headers=headers)
        return answer


class _Token:
    """From its file when it has one: read again when a minute old, and at once when it is refused."""

    def __init__(self, target: Connection) -> None:
        self._text, self._file, self._read = target.token, target.token_file, time.monotonic()

    @property
    def header(self) -> tuple[str, str]:
        return "Authorization", f"Bearer {self._text}"

    async def kept_fresh(self) -> None:
        if time.monotonic() - self._read > TOKEN_AGE:
            await self.refresh()

    async def refresh(self) -> bool:
        """True when there is another token than before."""
        if self._file is None:
            return False
        self._read, before = time.monotonic(), self._text
        try:
            self._text = (await anyio.Path(self._file).read_text()).strip()
        except OSError:
            return False  # keep what we have; the server says when it is no longer good
        return self._text != before


class _Bearer(httpx.Auth):
    def __init__(self, token: _Token) -> None:
        self._token = token

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        await self._token.kept_fresh()
        name, value = self._token.header
        request.headers[name] = value
        answer = yield request
        if answer.status_code == httpx.codes.UNAUTHORIZED and await self._token.refresh():
            request.headers[name] = self._token.header[1]
            yield request
