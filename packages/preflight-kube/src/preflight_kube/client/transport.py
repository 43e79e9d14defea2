"""The connections to the API server: kept alive, authenticated,
trusted anew where files changed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import anyio
import httpx

from preflight_kube.auth.connection import Connection
from preflight_kube.client.http1 import Http1Connection
from preflight_kube.client.sockets import Transport
from preflight_kube.errors import KubeError
from preflight_kube.logs import get_logger

TOKEN_AGE: Final = 60.0
"""The kubelet replaces a token when a fifth of its life is left (12 minutes of an hour): a minute
is early enough.
"""

TRUST_AGE: Final = 10.0
"""Seconds after which it is seen whether the cluster's authority, or our certificate, has been
replaced.
"""

ASK_AGAIN: Final = 5.0
"""Seconds between two questions to a plug-in that has no new credential."""

log = get_logger(__name__)


class ConnectionPool:
    """A connection for each request under way, the one used last is used next; one httpx client for
    all watches.
    """

    def __init__(self, target: Connection, agent: str, timeout: float) -> None:
        self._target, self._timeout = target, timeout
        self._auth = _Bearer(target) if target.token else None
        self._headers = {
            "User-Agent": agent,
            "Accept": "application/json",
            # Large lists would be compressed: CPU at both ends, within one network.
            "Accept-Encoding": "identity",
        }
        self._free: list[Http1Connection] = []
        self._streams = self._watching()
        self._watches: Counter[httpx.AsyncClient] = Counter()
        self._renewing = anyio.Lock()
        self._looked, self._read = time.monotonic(), _contents(target)
        self._asked = -ASK_AGAIN

    def _connection(self) -> Http1Connection:
        return Http1Connection(self._target, self._headers, self._auth, self._timeout)

    def _watching(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._target.server,
            headers=self._headers,
            auth=self._auth,
            timeout=self._timeout,
            transport=Transport(self._target.verify),
            trust_env=False,
        )

    @asynccontextmanager
    async def stream(self) -> AsyncGenerator[httpx.AsyncClient]:
        """For one watch, which holds its connection to its end, even where others are made anew
        meanwhile.
        """
        await self._renew()
        one = self._streams
        self._watches[one] += 1
        try:
            yield one
        finally:
            self._watches[one] -= 1
            if not self._watches[one]:
                del self._watches[one]
                if one is not self._streams:
                    await _close(one)

    @asynccontextmanager
    async def acquire(self) -> AsyncGenerator[Http1Connection]:
        """A connection for one request at a time, while the context is open."""
        await self._renew()
        target = self._target
        one = self._free.pop() if self._free else self._connection()
        try:
            yield one
        except (
            BaseException
        ) as error:  # cut off in the middle, perhaps: its state is nobody's to guess
            await _close(one)
            self.failed(error)
            raise
        if target is self._target:
            self._free.append(one)
        else:
            await _close(one)

    def failed(self, error: BaseException) -> None:
        """Look at once, before the next connection, whether the server is to be trusted by another
        authority by now.
        """
        if isinstance(error, httpx.ConnectError) and "certificate" in str(error).lower():
            self._looked = -TRUST_AGE

    async def _renew(self) -> None:
        """Go on with new connections where the files that say whom to trust, and who we are, have
        changed, or a credential has expired.
        """
        if self._expired():
            async with self._renewing:  # one asks the plug-in, the others wait for what it says
                if self._expired():
                    await self._anew(_contents(self._target))
            return
        if not self._target.files or time.monotonic() - self._looked < TRUST_AGE:
            return
        self._looked = time.monotonic()
        found = _contents(self._target)
        if found is None or found == self._read or self._target.again is None:
            return
        async with self._renewing:
            await self._anew(found)

    def _expired(self) -> bool:
        expires = self._target.expires
        return (
            expires is not None
            and time.time() >= expires
            and time.monotonic() - self._asked >= ASK_AGAIN
        )

    async def _anew(self, found: tuple[bytes, ...] | None) -> None:
        self._asked = time.monotonic()
        if self._target.again is None:
            return
        try:
            again = await anyio.to_thread.run_sync(self._target.again)
        except KubeError as error:  # half written, perhaps: what we have is all there is
            log.warning("the cluster's new credentials cannot be used yet", error=str(error))
            return
        # Where we are sent to stays: it may have been set beside the files.
        self._target, self._read = replace(again, server=self._target.server), found
        self._auth = _Bearer(self._target) if self._target.token else None
        log.info("the cluster's certificates were replaced", server=self._target.server)
        old = self._free if self._watches[self._streams] else [self._streams, *self._free]
        self._streams, self._free = self._watching(), []
        await _close(*old)

    async def aclose(self) -> None:
        """Close all connections."""
        await _close(*{self._streams, *self._watches}, *self._free)


async def _close(*clients: httpx.AsyncClient | Http1Connection) -> None:
    """Whoever is cut off leaves no connection behind."""
    with anyio.CancelScope(shield=True):
        for one in clients:
            await one.aclose()


def _contents(target: Connection) -> tuple[bytes, ...] | None:
    try:
        return target.contents()
    except OSError:
        return None


class _Bearer(httpx.Auth):
    """The token, from its file when it has one: read again when a minute old, and at once when it
    is refused; from a plug-in: at once when it is refused."""

    def __init__(self, target: Connection) -> None:
        self._again = target.again if target.plugin else None
        self._asked = time.monotonic()
        self._token, self._file, self._read = target.token, target.token_file, time.monotonic()

    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        request.headers["Authorization"] = f"Bearer {await self.token()}"
        answer = yield request
        if answer.status_code == httpx.codes.UNAUTHORIZED and await self.renewed():
            request.headers["Authorization"] = f"Bearer {self._token}"
            yield request

    async def token(self) -> str:
        if self._file is not None and time.monotonic() - self._read > TOKEN_AGE:
            await self.renewed()
        return self._token or ""

    async def renewed(self) -> bool:
        """True when there is another token than before."""
        if self._again is not None:
            return await self._ask(self._again)
        if self._file is None:
            return False
        self._read, before = time.monotonic(), self._token
        try:
            self._token = (await anyio.Path(self._file).read_text()).strip()
        except OSError:
            return False  # keep what we have; the server says when it is no longer good
        return self._token != before

    async def _ask(self, again: Callable[[], Connection]) -> bool:
        if time.monotonic() - self._asked < ASK_AGAIN:
            return False
        self._asked, before = time.monotonic(), self._token
        try:
            self._token = (await anyio.to_thread.run_sync(again)).token
        except KubeError as error:
            log.warning("credential plug-in failed", error=str(error))
            return False
        return self._token != before
