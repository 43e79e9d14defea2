"""A replica from start to end: admission over TLS, health and metrics in plain."""

from __future__ import annotations

import asyncio
import ssl
from argparse import Namespace
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from preflight_kube.admission.server import HttpServer
from preflight_kube.admission.tls import Certificate
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client.client import Client
from preflight_kube.errors import BadAccess, NoCluster
from preflight_kube.files.configfile import ConfigFile
from preflight_kube.files.polling import Polling
from preflight_kube.logs import get_logger
from preflight_kube.runtime import manager
from preflight_kube.runtime.manager import Parts

from preflight_webhook.config.config import Config, parse
from preflight_webhook.metrics import Metrics
from preflight_webhook.webhook.claim_lookups import Lookups
from preflight_webhook.webhook.handler import Admission, ServingState
from preflight_webhook.webhook.namespace_overrides import NamespaceOverrides

POLL_EVERY: Final = 5.0
"""Seconds between two looks at the configuration; a kubelet itself takes about a minute to bring a
new one.
"""
BEHIND: Final = 300.0
"""Seconds for which PreflightConfigs may go unread before requests should go elsewhere."""
ATTEMPTS: Final = 2
"""Of a read: an API server that has just restarted is asked once more, and no admission waits for a
third time.
"""
RENEWAL: Final = "`preflight-webhook certs`"
"""What keeps the serving certificate fresh."""
_NOWHERE: Final = "https://nowhere.invalid"

log = get_logger(__name__)


def serve(args: Namespace) -> int:
    """Serve until SIGTERM or SIGINT; the exit status. ``args``: those of the command line.

    Raises :class:`~preflight_kube.cli.commands.BadInput` (the certificate),
    :class:`~preflight_kube.files.configfile.ConfigError`, and
    :class:`~preflight_kube.errors.BadAccess`.
    """
    metrics = Metrics()
    file = _followed(args.config, metrics)
    certificate = Certificate(args.cert_dir, RENEWAL, args.client_ca)
    state, polling = ServingState(file.config, metrics), Polling(metrics.watching)
    target = _target(file.config)

    async def configuration() -> None:
        """In a thread: a file can take a second to read, and admissions go on meanwhile."""
        if await asyncio.to_thread(file.refresh):
            state.config = file.config  # what is being decided ends as it began
            checks = [check.name for check in file.config.checks]
            log.info("configuration reloaded", checks=checks)

    async def build(client: Client) -> Parts:
        polled: dict[str, Callable[[], Awaitable[None]]] = {"configuration": configuration}
        ready = []
        if target is not None:
            state.lookups = Lookups(client, metrics)
            state.policies = NamespaceOverrides(
                client, metrics, lambda: state.config.preflight_configs.enabled
            )
            polled["preflightconfigs"] = state.policies.run
            ready.append(state.policies.unready)
        admission = HttpServer(
            "admission",
            Admission(state),
            metrics,
            certificate,
            host=args.host,
            port=args.port,
            patience=args.patience,
            polling=polling,
        )
        tasks = {
            name: partial(polling.keep, name, poll, POLL_EVERY) for name, poll in polled.items()
        }
        return Parts(servers=[admission], tasks=tasks, ready=ready, behind=BEHIND)

    return manager.run(
        build,
        target or Connection(_NOWHERE, ssl.create_default_context()),
        component="preflight-webhook",
        registry=metrics.registry,
        host=args.host,
        port=args.plain_port,
        attempts=ATTEMPTS,
        linger=args.linger,
        log_level=args.log_level,
        uvloop=True,
        freeze=True,
    )


def _target(config: Config) -> Connection | None:
    """How the API server is reached; None where it need not be, or outside of a cluster."""
    try:
        return connection()
    except NoCluster:
        return None
    except BadAccess:
        if config.preflight_configs.enabled:
            raise
        return None  # what a claim asks for cannot be looked up then, which the pod's author reads


def _followed(path: Path, metrics: Metrics) -> ConfigFile[Config]:
    """The configuration file, counted and logged as it changes."""

    def accepted(_: Config) -> None:
        metrics.config_valid.set(1)
        metrics.config_generation.inc()

    def refused(problems: list[str]) -> None:
        log.error("new configuration refused, the old one stays", problems=problems)
        metrics.config_valid.set(0)
        metrics.config_refused.inc()

    return ConfigFile(parse, path, accepted=accepted, refused=refused)
