"""Both servers in one process: admission over TLS, health and metrics in plain. Stops cleanly on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn
import uvloop

from . import kube
from .app import Admission, Plain, State
from .config import Config
from .lookups import Lookups
from .tls import Certificate

__all__ = ["Options", "PortTaken", "serve"]

LOOK_EVERY: Final = 5.0
"""Seconds between two looks at the certificate's files; a kubelet itself takes about a minute to bring a new one."""
KEEP_ALIVE: Final = 120
"""Seconds an idle connection stays open: longer than the API server's own 90, so that it is never us who close one in use."""
DRAIN: Final = 20
"""Seconds that requests in flight may take once told to stop."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """Where to listen; port 0 takes a free one (it is logged)."""

    cert_dir: Path
    port: int = 8443
    plain_port: int = 8080
    host: str = "0.0.0.0"  # noqa: S104 (a pod serves its whole network)


class PortTaken(Exception):
    """A port cannot be listened on. The message is one sentence."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # one handler stops both servers


def serve(config: Config, options: Options) -> None:
    """Serve until SIGTERM or SIGINT. Raises :class:`PortTaken` and :class:`~.tls.CertificateError` at the start."""
    certificate = Certificate(options.cert_dir)
    sockets = [_listen(options.host, port) for port in (options.port, options.plain_port)]
    uvloop.run(_serve(State(config), certificate, sockets))


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise PortTaken(
            f"{host}:{port} cannot be listened on ({error.strerror}); stop what listens there, or choose another port"
        ) from None
    return listener


async def _serve(state: State, certificate: Certificate, sockets: list[socket.socket]) -> None:
    common: dict[str, Any] = {
        "log_config": None,
        "access_log": False,
        "lifespan": "off",
        "ws": "none",
        "http": "httptools",
        "proxy_headers": False,
        "server_header": False,
        "date_header": False,
        "timeout_keep_alive": KEEP_ALIVE,
        "timeout_graceful_shutdown": DRAIN,
    }
    state.lookups = Lookups(kube.connection, state.metrics)
    admission = _Server(
        uvicorn.Config(Admission(state), ssl_context_factory=lambda _config, _default: certificate.context, **common)
    )
    plain = _Server(uvicorn.Config(Plain(state), **common))
    state.metrics.certificate_expiry.set(certificate.expires)

    async def watch_certificate() -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if certificate.refresh():
                state.metrics.certificate_expiry.set(certificate.expires)

    async def plain_after_admission() -> None:
        # Stays to answer the probes while admission drains.
        try:
            await admission_task
        finally:
            plain.should_exit = True

    def stop(name: str) -> None:
        log.info("stopping on %s: requests in flight are answered first", name)
        state.stopping = True
        admission.should_exit = True

    # What the start has made stays; a collection now and then must not walk over it while the API server waits.
    gc.collect()
    gc.freeze()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    admission_task = asyncio.create_task(admission.serve(sockets=sockets[:1]))
    tasks = [
        admission_task,
        asyncio.create_task(plain.serve(sockets=sockets[1:])),
        asyncio.create_task(plain_after_admission()),
    ]
    watcher = asyncio.create_task(watch_certificate())
    while not (admission.started and plain.started) and not admission_task.done():  # noqa: ASYNC110 (uvicorn has a flag)
        await asyncio.sleep(0.01)
    state.ready = True
    ports = [s.getsockname()[1] for s in sockets]
    checks = ", ".join(check.name for check in state.config.checks) or "no check"
    log.info(
        "serving admission on port %d and health and metrics on port %d; injecting %s",
        *ports,
        checks,
        extra={"about": {"ports": ports}},
    )
    try:
        await asyncio.gather(*tasks)
    finally:
        watcher.cancel()
        await state.lookups.close()
        log.info("stopped")
