"""A double of the API server: objects, versions, watches and patches over real HTTP, in one event
loop.

It pretends no access control, validation, defaulting or speed. What it does not implement it
answers with 501, naming method and path.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml

from ..tcp import TcpServer
from .http import Api, ApiAnswer, ApiRequest, converse
from .store import RESOURCES, ApiRefused, Resource, Store

__all__ = ["RESOURCES", "ApiAnswer", "ApiDouble", "ApiRequest", "Resource", "write_kubeconfig"]

R = TypeVar("R")


class ApiDouble:
    """Use as ``async with`` in the test's own event loop, or as ``with``: then it runs in a thread
    of its own.

    ``token``: requests without this bearer token are answered 401; None lets everybody in.
    """

    def __init__(
        self,
        resources: Iterable[Resource] = RESOURCES,
        *,
        absent: Iterable[str] = (),
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.store = Store()
        self.api = Api(self.store, set(resources), set(absent))
        self.token = token
        self.requests: list[ApiRequest] = []
        """Everything that was asked, in order."""
        self.fault: Callable[[ApiRequest], ApiAnswer | None] = lambda _: None
        """May answer a request in the server's place."""
        self.admit: Callable[[ApiRequest], Awaitable[ApiAnswer | ApiRequest]] = _as_it_is
        """Admission: may refuse a request, or change it."""
        self.port = 0
        self._tls = tls
        for name in ("default", "kube-system"):
            self.create("namespaces", {"metadata": {"name": name}})

    @property
    def url(self) -> str:
        """Where it listens; ends in port 0 until it is entered."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> ApiDouble:
        self._loop = asyncio.get_running_loop()
        self._server = TcpServer(self._serve, tls=self._tls)
        self.port = await self._server.start(self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    def __enter__(self) -> ApiDouble:
        ready, self._stop = threading.Event(), asyncio.Event()

        async def run() -> None:
            async with self:
                ready.set()
                await self._stop.wait()

        self._thread = threading.Thread(target=lambda: asyncio.run(run()))
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def within(self, call: Callable[[], R]) -> R:
        """The result of ``call``, made in the double's own event loop: for tests whose double runs
        in a thread.
        """

        async def calls() -> R:
            return call()

        return asyncio.run_coroutine_threadsafe(calls(), self._loop).result()

    def restart(self) -> None:
        """Break every connection, as a restarted API server does; from any thread but that of the
        double's own loop.
        """

        async def breaks() -> None:
            await self.__aexit__()
            await self.__aenter__()

        asyncio.run_coroutine_threadsafe(breaks(), self._loop).result()

    def cut(self) -> None:
        """Break every connection, and listen on; from within the double's own loop."""
        self._server.cut()

    def compact(self) -> None:
        """Forget all history; from within the double's own loop."""
        self.store.compact()

    def create(self, plural: str, body: dict[str, Any]) -> dict[str, Any]:
        """Create an object without asking over HTTP; from within the double's own loop."""
        resource = next(r for r in self.api.served if r.plural == plural)
        return self.store.create(resource, body["metadata"].get("namespace", ""), body)

    async def _intercept(self, request: ApiRequest) -> ApiAnswer | ApiRequest:
        self.requests.append(request)
        bearer = request.headers.get("authorization")
        if self.token is not None and bearer != f"Bearer {self.token}":
            return ApiAnswer(401, ApiRefused(401, "Unauthorized", "Unauthorized").status)
        return self.fault(request) or await self.admit(request)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await converse(self.api, self._intercept, reader, writer)


async def _as_it_is(request: ApiRequest) -> ApiRequest:
    return request


def write_kubeconfig(
    path: Path, server: str, *, ca: Path | None = None, user: dict[str, Any] | None = None
) -> Path:
    """A kubeconfig with one cluster, one user and one context."""
    cluster = {"server": server} | ({"certificate-authority": str(ca)} if ca else {})
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "one", "cluster": cluster}],
        "users": [{"name": "one", "user": user or {}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
        "current-context": "one",
    }
    path.write_text(yaml.safe_dump(config))
    return path
