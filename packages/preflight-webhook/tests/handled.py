"""An API server that is a function, in the place of every connection to one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

import httpcore
import httpx
import pytest

Handler = (
    Callable[[httpx.Request], httpx.Response]
    | Callable[[httpx.Request], Coroutine[None, None, httpx.Response]]
)


class _Connection:
    """As :class:`httpcore.AsyncHTTPConnection`, as far as it is used."""

    def __init__(self, handler: Handler, origin: httpcore.Origin) -> None:
        self._transport = httpx.MockTransport(handler)
        self._base = f"{origin.scheme.decode()}://{origin.host.decode()}"

    def is_closed(self) -> bool:
        return False

    def has_expired(self) -> bool:
        return False

    async def aclose(self) -> None:
        pass

    async def handle_async_request(self, asked: httpcore.Request) -> httpcore.Response:
        assert not isinstance(asked.stream, bytes)
        content = b"".join([piece async for piece in asked.stream])  # type: ignore[union-attr]
        url = self._base + asked.url.target.decode()
        request = httpx.Request(asked.method.decode(), url, headers=asked.headers, content=content)
        try:
            answer = await self._transport.handle_async_request(request)
        except httpx.TransportError as error:
            raise getattr(httpcore, type(error).__name__)(str(error)) from error
        return httpcore.Response(
            answer.status_code,
            headers=answer.headers.raw,
            content=answer.stream,
        )


def handled(monkeypatch: pytest.MonkeyPatch, handler: Handler) -> None:
    """``handler`` answers all requests and watches of :mod:`preflight_kube`; it may raise httpx's
    errors.
    """
    monkeypatch.setattr(
        "preflight_kube.client.transport.connection",
        lambda origin, _: _Connection(handler, origin),
    )
