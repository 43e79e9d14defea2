"""Both servers in one process: admission over TLS, health and metrics in plain. Stops cleanly on
SIGTERM.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn
import uvloop
from preflight_kube.admission.at_once import AtOnce
from preflight_kube.admission.connections import Bounded, limits
from preflight_kube.admission.port import Server
from preflight_kube.admission.tls import Certificate
from preflight_kube.commands import Failed
from preflight_kube.configfile import ConfigFile
from preflight_kube.logs import get_logger
from preflight_kube.ports import listen

from ..cluster.access import Access
from ..cluster.lookups import Lookups
from ..cluster.namespaces import NamespaceOverrides
from ..configuration.config import Config, parse
from ..metrics import Metrics
from .app import Admission, Plain, State
from .watchers import Watchers

__all__ = ["Options", "serve"]

KEEP_ALIVE: Final = 120
"""Seconds an idle connection stays open: longer than the API server's own 90, so that it is never
us who close one in use.
"""
DRAIN: Final = 20
"""Seconds that requests in flight may take once told to stop."""

RENEWAL: Final = "`preflight-webhook certs`"
"""What keeps the serving certificate fresh."""

log = get_logger(__name__)


@dataclass(frozen=True)
class Options:
    """Where to listen; port 0 takes a free one (it is logged). ``linger``: seconds to go on
    answering after SIGTERM; ``patience``: seconds after which a client that does not go on with its
    request is cut off, at the latest twice that."""

    config: Path
    cert_dir: Path
    port: int = 8443
    plain_port: int = 8080
    host: str = "0.0.0.0"  # noqa: S104 (a pod serves its whole network)
    linger: float = 10.0
    patience: float = 10.0
    client_ca: Path | None = None


def serve(options: Options) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises :class:`~preflight_kube.commands.BadInput` (a port, the certificate) and
    :class:`~preflight_kube.configfile.ConfigError` at the start, and
    :class:`~preflight_kube.commands.Failed` at the end where that was not asked for.
    """
    metrics = Metrics()
    file, certificate = (
        _followed(options.config, metrics),
        Certificate(options.cert_dir, RENEWAL, options.client_ca),
    )
    sockets = [listen(options.host, port) for port in (options.port, options.plain_port)]
    uvloop.run(_serve(State(file.config, metrics), file, certificate, sockets, options))


def _followed(path: Path, metrics: Metrics) -> ConfigFile[Config]:
    """The configuration file, counted and told about as it changes."""
    generation = 0

    def accepted(config: Config) -> None:
        nonlocal generation
        generation += 1
        metrics.config_valid.set(1)
        metrics.config_generation.inc()
        if generation > 1:
            checks = [check.name for check in config.checks]
            log.info("configuration reloaded", checks=checks)

    def refused(_: list[str]) -> None:
        metrics.config_valid.set(0)
        metrics.config_refused.inc()

    return ConfigFile(parse, path, accepted=accepted, refused=refused)


async def _serve(
    state: State,
    file: ConfigFile[Config],
    certificate: Certificate,
    sockets: list[socket.socket],
    options: Options,
) -> None:
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
    access = Access()
    state.lookups, state.policies = (
        Lookups(access, state.metrics),
        NamespaceOverrides(access, state.metrics),
    )
    most = limits()
    admission = Server(
        uvicorn.Config(Admission(state), **{**common, "http": AtOnce}),
        "admission",
        most.admission,
        state.metrics,
        lambda: certificate.context,
    )
    plain = Server(
        uvicorn.Config(Plain(state), **{**common, "http": Bounded}),
        "plain",
        most.plain,
        state.metrics,
    )
    state.certificate_problem = lambda: certificate.problem(time.time())

    async def plain_after_admission() -> None:
        # Stays to answer the probes while admission drains.
        try:
            await admission_task
        finally:
            plain.should_exit = True

    def stop(name: str, after: float) -> None:
        """Not ready from now on, and each answer closes its connection, so that API servers go
        elsewhere; then stop listening.
        """
        if state.stopping:
            after = 0.0  # told twice
        log.info("stopping", cause=name, linger=after)
        state.stopping = True
        loop.call_later(after, setattr, admission, "should_exit", True)

    # What the start has made stays; a collection now and then must not walk over it while the API
    # server waits.
    gc.collect()
    gc.freeze()
    loop = asyncio.get_running_loop()
    for number, after in ((signal.SIGTERM, options.linger), (signal.SIGINT, 0.0)):
        loop.add_signal_handler(number, stop, number.name, after)
    admission_task = asyncio.create_task(admission.serve(sockets=sockets[:1]))
    tasks = [
        admission_task,
        asyncio.create_task(plain.serve(sockets=sockets[1:])),
        asyncio.create_task(plain_after_admission()),
    ]
    while not (admission.started and plain.started) and not admission_task.done():  # noqa: ASYNC110 (uvicorn has a flag)
        await asyncio.sleep(0.01)
    if admission_task.done():
        await admission_task
    state.started = True
    _announce(state.config, [s.getsockname()[1] for s in sockets])
    watchers = Watchers(state, file, certificate, (admission.connections, plain.connections)).start(
        options.patience
    )
    served = asyncio.gather(*tasks)
    try:
        waited: list[asyncio.Future[Any]] = [served, *watchers]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not served.done():
            # Nothing would be taken over any more, unseen: better a new process, which the kubelet
            # starts at once.
            names = ", ".join(task.get_name() for task in watchers if task.done())
            log.error("a watcher has ended; stopping, so that a new replica starts", watcher=names)
            state.failing.setdefault(names, "its watcher has ended")
            stop("a dead watcher", options.linger)
            await served
            raise Failed(f"the watcher of {names} has ended, which is a defect; see the log")
        await served
    finally:
        for watcher in watchers:
            watcher.cancel()
        await access.close()
        log.info("stopped")  # written at once, and with it every line before it


def _announce(config: Config, ports: list[int]) -> None:
    log.info("serving", ports=ports, checks=[check.name for check in config.checks])
