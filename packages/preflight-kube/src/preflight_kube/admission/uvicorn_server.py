"""uvicorn's server on a port of ours, over connections of our own accepting."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any, Final

import uvicorn

from preflight_kube.admission.connections import Bounded, Connections, Counted

__all__ = ["BoundedServer"]

FAREWELL: Final = 1.0
"""Seconds after the order to stop after which who has sent no whole request is cut off."""


class BoundedServer(uvicorn.Server):
    """uvicorn's server over connections of our own accepting. ``context``: what a new one is served
    with; None: plain.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        name: str,
        most: int,
        metrics: Counted,
        context: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._name, self._most, self._metrics, self._context = name, most, metrics, context
        self._accepting: Connections | None = None

    @property
    def connections(self) -> Connections:
        """Those of the port, once it is ``started``."""
        if self._accepting is None:
            raise RuntimeError(f"port {self._name} is not open")
        return self._accepting

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Of uvicorn: accept connections of the one socket in ``sockets``."""
        await self.lifespan.startup()
        [listener] = sockets or []

        def protocol() -> Bounded:
            made: Any = self.config.http_protocol_class
            one: Bounded = made(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            one.connections_of = accepting
            return one

        accepting = Connections(
            listener,
            self._most,
            protocol,
            context=self._context,
            metrics=self._metrics,
            name=self._name,
        )
        accepting.open()
        self._accepting, self.servers = accepting, [accepting]  # type: ignore[list-item]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Of uvicorn: let requests under way end, and cut off who has sent no whole one."""
        # A request under way comes whole within that time; who is idle is not waited for.
        asyncio.get_running_loop().call_later(FAREWELL, self.connections.cut_unfinished)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Of uvicorn: signals are the service's to handle."""
        yield  # one handler stops both servers
