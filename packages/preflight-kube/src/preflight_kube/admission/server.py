"""An HTTPS port for a service: bounded connections, a certificate that is read again when it
changes, an orderly end.

:class:`HttpServer` serves any ASGI application, and is a
:class:`~preflight_kube.runtime.manager.Server`.
For admission::

    metrics = AdmissionMetrics("my_webhook", registry)
    reviews = Reviews({"/mutate": mutate, "/validate": validate}, metrics)
    server = HttpServer("admission", reviews, metrics, Certificate(folder, "`my-webhook certs`"),
    port=8443)
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, Protocol

import anyio
import uvicorn

from preflight_kube.admission.connections import (
    Bounded,
    Connections,
    Counted,
    most_connections,
)
from preflight_kube.admission.fast_path import AtOnce
from preflight_kube.admission.tls import Certificate
from preflight_kube.files.polling import Polling
from preflight_kube.logs import get_logger
from preflight_kube.runtime.ports import listen

KEEP_ALIVE: Final = 120
"""Seconds an idle connection stays open: longer than the API server's own 90, so that it is never
us who close one in use.
"""
DRAIN: Final = 20
"""Seconds that requests under way may take at the end."""
POLL_EVERY: Final = 5.0
"""Seconds between two looks at the certificate's files; a kubelet itself takes about a minute to
bring new ones.
"""
PATIENCE: Final = 10.0
"""Seconds after which a client that does not go on with its request is cut off, at the latest twice
that.
"""

FAREWELL: Final = 1.0
"""Seconds after the order to stop after which who has sent no whole request is cut off."""

_LARGER_THAN_A_READ: Final = 1 << 20
"""Bytes; what is read of TLS goes into 256 KiB."""

log = get_logger(__name__)


class Closing(Protocol):
    """An ASGI application whose answers close their connections once ``stopping`` is set."""

    stopping: bool

    def __call__(self, scope: Any, receive: Any, send: Any, /) -> Awaitable[None]:
        """Answer one request."""


class _BoundedServer(uvicorn.Server):
    """uvicorn's server over ``connections`` of our own accepting."""

    connections: Connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Of uvicorn: begin to accept."""
        await self.lifespan.startup()
        self.connections.open()
        self.servers = [self.connections]  # type: ignore[list-item]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Of uvicorn: let requests under way end, and cut off who has sent no whole one."""
        # A request under way comes whole within that time; who is idle is not waited for.
        asyncio.get_running_loop().call_later(FAREWELL, self.connections.cut_unfinished)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Of uvicorn: signals are the service's to handle."""
        yield  # the service stops its servers


class HttpServer:
    """Serves ``application`` while it runs. ``port`` is the one it listens on, once it is ready.
    One that says it is ``immediate`` is served by :class:`~.fast_path.AtOnce`.

    ``certificate``: None for a plain port. ``metrics`` counts connections that are cut off and
    handshakes that fail, and may have the gauges ``certificate_expiry`` and ``certificate_valid``.
    ``patience``, ``drain``: as :data:`PATIENCE`, :data:`DRAIN`; ``polling``: that of the service,
    where it has others.
    """

    def __init__(
        self,
        name: str,
        application: Closing,
        metrics: Counted,
        certificate: Certificate | None,
        *,
        host: str = "0.0.0.0",  # noqa: S104 - a pod serves its whole network
        port: int = 8443,
        patience: float = PATIENCE,
        drain: int = DRAIN,
        polling: Polling | None = None,
    ) -> None:
        self.name, self._application, self._metrics = name, application, metrics
        self._certificate, self._patience, self._drain = certificate, patience, drain
        self._polling = polling or Polling()
        self._said = ""
        self._server: _BoundedServer | None = None
        self._host, self.port = host, port

    def unready(self) -> str:
        """Why requests should go elsewhere: it has not begun, it is about to end, or clients do not
        take its certificate.
        """
        if self._application.stopping:
            return f"{self.name}: stopping"
        if self._server is None:
            return f"{self.name}: starting"
        problem = "" if self._certificate is None else self._certificate.problem(time.time())
        return problem or self._polling.unready()

    def stop(self) -> None:
        """Close each connection with its next answer."""
        self._application.stopping = True

    async def run(self) -> None:
        """Serve until cancelled; then stop listening, and let requests under way end, for ``drain``
        seconds at most.

        Raises :class:`~preflight_kube.runtime.ports.PortTaken`.
        """
        # Until glibc has freed a larger block, it maps and unmaps the memory of each read: more
        # than a tenth of a review's time.
        block = bytes(_LARGER_THAN_A_READ)
        del block
        listener = listen(self._host, self.port)
        self.port = int(listener.getsockname()[1])
        kind = AtOnce if getattr(self._application, "immediate", False) else Bounded
        config = uvicorn.Config(
            self._application,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http=kind,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=self._drain,
        )
        server = _BoundedServer(config)

        def protocol() -> Bounded:
            connection = kind(config, server.server_state, {})
            connection.connections_of = server.connections
            return connection

        server.connections = Connections(
            listener,
            most_connections(),
            protocol,
            context=lambda: None if self._certificate is None else self._certificate.context,
            metrics=self._metrics,
            name=self.name,
        )
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        looking: list[asyncio.Task[None]] = []
        try:
            while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has a flag
                await asyncio.sleep(0.01)
            if not serving.done():
                self._server = server
                log.info("serving", server=self.name, port=self.port)
                looking = self._poll(server)
            await asyncio.wait([serving])
            serving.result()
        finally:
            self.stop()
            for task in looking:
                task.cancel()
            server.should_exit = True
            with anyio.CancelScope(shield=True):
                await asyncio.wait([serving])
            listener.close()

    def _poll(self, server: _BoundedServer) -> list[asyncio.Task[None]]:
        """Poll files and connections now and then."""
        polled: list[tuple[str, Callable[[], None], float]] = [
            (f"{self.name}-connections", server.connections.cut_stalled, self._patience)
        ]
        if self._certificate is not None:
            polled.append(("certificate", lambda: self._refresh(server), POLL_EVERY))
        return [asyncio.create_task(self._polling.keep(*each)) for each in polled]

    def _refresh(self, server: _BoundedServer) -> None:
        """Serve new connections with the newest certificate, and say so where clients will not take
        it.
        """
        if (certificate := self._certificate) is None:
            return
        if certificate.refresh():
            server.connections.refusal_logged = False
            if certificate.client_ca is not None:
                # Who is connected showed a certificate to the authority of before.
                server.connections.retire()
        problem = certificate.problem(time.time())
        for name, value in (("expiry", certificate.expires), ("valid", 0 if problem else 1)):
            if (gauge := getattr(self._metrics, f"certificate_{name}", None)) is not None:
                gauge.set(value)
        if problem and problem != self._said:
            log.error("clients do not take the serving certificate", server=self.name, why=problem)
        self._said = problem
