"""Replicas of the controller and of the webhook, from start to end."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Final

from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_kube.runtime import manager
from preflight_kube.runtime.manager import Election, Parts

from preflight_mnnvl.api.names import MANAGED_BY_US as AGENT
from preflight_mnnvl.config import Config
from preflight_mnnvl.controller.controller import Controller
from preflight_mnnvl.controller.informers import AdmissionInformers
from preflight_mnnvl.metrics import Metrics

LEASE: Final = "preflight-mnnvl"
LINGER: Final = 5.0
"""Seconds for which a webhook answers after SIGTERM, while the Service's endpoints are updated."""
LONGEST: Final = 5.0
"""Seconds for an answer to a review."""


def run_controller(target: Connection, config: Config, args: Namespace) -> int:
    """Be one replica of the controller until SIGTERM; the exit status."""
    metrics = Metrics()
    account = os.environ.get("POD_SERVICE_ACCOUNT", "")
    who = f"system:serviceaccount:{args.namespace}:{account}" if account else ""

    async def build(client: Client) -> Parts:
        controller = Controller(client, config, metrics, who)
        return Parts(reflectors=controller.cache.reflectors, lead=controller.lead)

    return manager.run(
        build,
        target,
        component=AGENT,
        registry=metrics.registry,
        host=args.host,
        port=args.port,
        election=Election(args.namespace, LEASE, float(config.lease_seconds)),
        concurrency=config.writes,
        log_level=config.log_level,
    )


def run_webhook(target: Connection, config: Config, args: Namespace) -> int:
    """Be one replica of the webhook until SIGTERM; the exit status."""
    # What serves reviews is memory that the controller need not carry.
    from preflight_kube.admission.metrics import AdmissionMetrics
    from preflight_kube.admission.server import HttpServer
    from preflight_kube.admission.tls import Certificate

    from preflight_mnnvl.webhook.handler import Webhook

    metrics = Metrics()
    counted = AdmissionMetrics("mnnvl", metrics.registry)
    served = Certificate(args.certificate, "`preflight-mnnvl certs`", args.client_ca)

    async def build(client: Client) -> Parts:
        informers = AdmissionInformers(client, config)
        webhook = Webhook(client, config, metrics, informers)
        reviews = webhook.reviews(counted, LONGEST)
        host, port = args.host, args.admission_port
        server = HttpServer("admission", reviews, counted, served, host=host, port=port)
        return Parts(reflectors=informers.reflectors, servers=[server])

    return manager.run(
        build,
        target,
        component=AGENT,
        registry=metrics.registry,
        host=args.host,
        port=args.port,
        linger=LINGER,
        log_level=config.log_level,
        uvloop=True,
        freeze=True,
    )
