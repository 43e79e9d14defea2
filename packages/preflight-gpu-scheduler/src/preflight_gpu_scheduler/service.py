"""The parts of each process: extender, controller, webhook, agent.

Each loads what it is made of when it is asked for: the agent, which runs on every node, carries
neither the server of the webhook nor what chooses GPUs.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_kube.logs import get_logger
from preflight_kube.runtime.lease import Leadership
from preflight_kube.runtime.manager import Election, Parts, run
from preflight_proto import nvml
from prometheus_client import CollectorRegistry

from .config import Config

__all__ = ["LEASE", "agent", "controller", "extender", "webhook"]

LEASE: Final = "gpu-scheduler-controller"
_COMPONENT: Final = "gpu-scheduler"
_log = get_logger(__name__)


def extender(
    target: Connection, config: Config, *, listen: tuple[str, int], host: str, port: int
) -> int:
    """``listen``: where kube-scheduler finds it, on loopback. The exit status, as of the others
    here.
    """
    from .extender import Extender
    from .loopback import Application, listener, serve
    from .meters import ExtenderMeters, MirrorAges
    from .state import State

    registry = CollectorRegistry()

    async def build(client: Client) -> Parts:
        state, meters = State(client, config), ExtenderMeters(registry)
        MirrorAges(registry, client.mirrors.behind)
        application = Application(Extender(client, config, state, meters), meters)
        serving = partial(serve, application, *listen)
        return Parts(reflectors=state.reflectors, tasks={"extender": serving})

    listener(*listen).close()  # what cannot be listened on is said at once
    return run(
        build,
        target,
        component=f"{_COMPONENT}-extender",
        registry=registry,
        host=host,
        port=port,
        concurrency=64,
        log_level=config.log_level,
        uvloop=True,
    )


def controller(target: Connection, config: Config, *, namespace: str, host: str, port: int) -> int:
    """``namespace``: where the lease is by which one of the replicas leads."""
    from .controller import Controller
    from .meters import ControllerMeters, MirrorAges
    from .state import State

    registry = CollectorRegistry()

    async def build(client: Client) -> Parts:
        state, meters = State(client, config, gangs=True), ControllerMeters(registry)
        MirrorAges(registry, client.mirrors.behind)

        async def act(leadership: Leadership) -> None:
            meters.leader.set(1)
            try:
                await Controller(client.fenced(leadership.valid), config, state, meters).lead()
            finally:
                meters.leader.set(0)

        return Parts(reflectors=state.reflectors, lead=act)

    return run(
        build,
        target,
        component=f"{_COMPONENT}-controller",
        registry=registry,
        host=host,
        port=port,
        election=Election(namespace, LEASE),
        log_level=config.log_level,
        uvloop=True,
    )


def webhook(
    target: Connection,
    config: Config,
    *,
    certificates: Path,
    client_ca: Path | None = None,
    admission_port: int,
    host: str,
    port: int,
) -> int:
    """``certificates``: the folder with tls.crt, tls.key and ca.crt,
    read again when they change.
    """
    from preflight_kube.admission.metrics import AdmissionMetrics
    from preflight_kube.admission.reviews import Reviews
    from preflight_kube.admission.server import HttpServer
    from preflight_kube.admission.tls import Certificate

    from .webhook import MUTATE, Webhook

    registry = CollectorRegistry()

    async def build(client: Client) -> Parts:
        metrics = AdmissionMetrics("gpu_scheduler_webhook", registry)
        deciding = Webhook(client, config)
        certificate = Certificate(certificates, "`preflight-gpu-scheduler certs`", client_ca)
        server = HttpServer(
            "admission",
            Reviews({MUTATE: deciding}, metrics),
            metrics,
            certificate,
            port=admission_port,
        )
        return Parts(reflectors=[deciding.claims], servers=[server])

    return run(
        build,
        target,
        component=f"{_COMPONENT}-webhook",
        registry=registry,
        host=host,
        port=port,
        linger=5.0,
        log_level=config.log_level,
    )


def agent(target: Connection, config: Config, *, node: str, boot: str, host: str, port: int) -> int:
    """``node``: the name of the node that it runs on. ``boot``: the kernel's id of this boot."""
    from .agent import Agent, AgentMeters
    from .nvml import NvmlProcess

    nvml.start(_log.warning, lasting=True)  # before there are threads
    registry = CollectorRegistry()

    async def build(client: Client) -> Parts:
        acting = Agent(client, config, node, NvmlProcess(), AgentMeters(registry), boot=boot)
        return Parts(reflectors=acting.reflectors, tasks={"agent": acting.run})

    return run(
        build,
        target,
        component=f"{_COMPONENT}-agent",
        registry=registry,
        host=host,
        port=port,
        log_level=config.log_level,
    )
