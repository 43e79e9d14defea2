"""Both servers in one process: admission over TLS, health and metrics in plain. Stops cleanly on
SIGTERM.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

import uvloop
from preflight_kube.admission.connections import limits
from preflight_kube.admission.server import HttpServer
from preflight_kube.admission.tls import Certificate
from preflight_kube.cli.commands import BadInput, CommandFailed
from preflight_kube.files.configfile import ConfigFile
from preflight_kube.logs import get_logger

from preflight_webhook.config.config import Config, parse
from preflight_webhook.metrics import Metrics
from preflight_webhook.webhook.access import ClusterAccess
from preflight_webhook.webhook.claim_lookups import Lookups
from preflight_webhook.webhook.handler import Admission, Plain, ServingState
from preflight_webhook.webhook.namespace_overrides import NamespaceOverrides

POLL_EVERY: Final = 5.0
"""Seconds between two looks at the configuration; a kubelet itself takes about a minute to bring a
new one.
"""
RENEWAL: Final = "`preflight-webhook certs`"
"""What keeps the serving certificate fresh."""

log = get_logger(__name__)


def serve(args: Namespace) -> None:
    """Serve until SIGTERM or SIGINT. ``args``: those of the command line.

    Raises :class:`~preflight_kube.cli.commands.BadInput` (a port, the certificate) and
    :class:`~preflight_kube.files.configfile.ConfigError` at the start, and
    :class:`~preflight_kube.cli.commands.CommandFailed` at the end where that was not asked for.
    """
    metrics = Metrics()
    file = _followed(args.config, metrics)
    certificate = Certificate(args.cert_dir, RENEWAL, args.client_ca)
    uvloop.run(_serve(ServingState(file.config, metrics), file, certificate, args))


def _followed(path: Path, metrics: Metrics) -> ConfigFile[Config]:
    """The configuration file, counted and logged as it changes."""
    generation = 0

    def accepted(config: Config) -> None:
        nonlocal generation
        generation += 1
        metrics.config_valid.set(1)
        metrics.config_generation.inc()
        if generation > 1:
            checks = [check.name for check in config.checks]
            log.info("configuration reloaded", checks=checks)

    def refused(problems: list[str]) -> None:
        log.error("new configuration refused, the old one stays", problems=problems)
        metrics.config_valid.set(0)
        metrics.config_refused.inc()

    return ConfigFile(parse, path, accepted=accepted, refused=refused)


async def _serve(
    state: ServingState, file: ConfigFile[Config], certificate: Certificate, args: Namespace
) -> None:
    access = ClusterAccess()
    state.lookups = Lookups(access, state.metrics)
    state.policies = policies = NamespaceOverrides(access, state.metrics)

    def announce(_: HttpServer) -> None:
        if admission.serves and plain.serves:
            state.started = True
            checks = [check.name for check in state.config.checks]
            log.info("serving", ports=[admission.port, plain.port], checks=checks)

    common: dict[str, Any] = {
        "host": args.host,
        "patience": args.patience,
        "polling": state.polling,
        "serving": announce,
    }
    admission = HttpServer(
        "admission", Admission(state), state.metrics, certificate, port=args.port, **common
    )
    common |= {"port": args.plain_port, "most": limits().plain}
    plain = HttpServer("plain", Plain(state), state.metrics, None, **common)
    state.server_problem = admission.unready

    async def configuration() -> None:
        """In a thread: a file can take a second to read, and admissions go on meanwhile."""
        if await asyncio.to_thread(file.refresh):
            state.config = file.config  # what is being decided ends as it began

    async def preflightconfigs() -> None:
        await policies.run(lambda: state.config.preflight_configs.enabled)

    def stop(cause: str, after: float) -> None:
        """Not ready from now on, and each answer closes its connection, so that API servers go
        elsewhere; then stop listening.
        """
        if state.stopping:
            after = 0.0  # a second signal
        log.info("stopping", cause=cause, linger=after)
        state.stopping = True
        admission.stop()
        loop.call_later(after, admitting.cancel)

    # What the start has made stays; a collection now and then must not walk over it while the API
    # server waits.
    gc.collect()
    gc.freeze()
    loop = asyncio.get_running_loop()
    tasks = {
        "admission": admission.run(),
        "plain": plain.run(),  # answers the probes while admission drains
        "configuration": state.polling.keep("configuration", configuration, POLL_EVERY),
        "preflightconfigs": state.polling.keep("preflightconfigs", preflightconfigs, POLL_EVERY),
    }
    admitting, *others = (loop.create_task(task, name=name) for name, task in tasks.items())
    for number, after in ((signal.SIGTERM, args.linger), (signal.SIGINT, 0.0)):
        loop.add_signal_handler(number, stop, number.name, after)
    try:
        done, _ = await asyncio.wait([admitting, *others], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {admitting}:
            if isinstance(error := task.exception(), BadInput):
                raise error
            # Nothing would be taken over any more, unseen: better a new process, which the kubelet
            # starts at once.
            name = task.get_name()
            log.error(
                "a task has ended; stopping, so that a new replica starts", task=name, error=error
            )
            stop("a task that has ended", args.linger)
            await asyncio.wait([admitting])
            raise CommandFailed(f"{name} has ended, which is a defect; see the log") from error
        if not admitting.cancelled():
            admitting.result()
    finally:
        for task in (admitting, *others):
            task.cancel()
        await asyncio.wait([admitting, *others])
        await access.close()
        log.info("stopped")  # written at once, and with it every line before it
