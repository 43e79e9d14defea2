"""The parts of each process: extender, controller, webhook, agent, and what people ask.

Each loads what it is made of when it is asked for: the agent, which runs on every node, carries
neither the server of the webhook nor what chooses GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client, KubeError
from preflight_kube.logs import get_logger
from preflight_kube.runtime.lease import Leadership
from preflight_kube.runtime.manager import Election, Parts, run
from preflight_proto import nvml
from prometheus_client import CollectorRegistry

from preflight_gpu_scheduler.config import Config

if TYPE_CHECKING:
    from preflight_gpu_scheduler.core.snapshot import GpuSnapshot

__all__ = ["LEASE", "agent", "controller", "extender", "read", "webhook"]

LEASE: Final = "gpu-scheduler-controller"
_COMPONENT: Final = "gpu-scheduler"
T = TypeVar("T")
_PATIENCE: Final = 30.0
"""Seconds until a cluster that cannot be read is said not to be."""
_log = get_logger(__name__)


def extender(
    target: Connection, config: Config, *, listen: tuple[str, int], host: str, port: int
) -> int:
    """``listen``: where kube-scheduler finds it, on loopback. The exit status, as of the others
    here.
    """
    from preflight_gpu_scheduler.controller.apply import Executor
    from preflight_gpu_scheduler.controller.cache import GpuCache
    from preflight_gpu_scheduler.metrics import ExtenderMetrics, MirrorAges
    from preflight_gpu_scheduler.webhook.extender import Extender
    from preflight_gpu_scheduler.webhook.http import Application, listener, serve

    registry = CollectorRegistry()

    async def build(client: Client) -> Parts:
        cache, metrics = GpuCache(client, config), ExtenderMetrics(registry)
        MirrorAges(registry, client.mirrors.behind)
        executor = Executor(client, config, cache, metrics)
        application = Application(Extender(client, config, cache, metrics, executor), metrics)
        serving = partial(serve, application, *listen)
        return Parts(reflectors=cache.reflectors, tasks={"extender": serving})

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
    from preflight_gpu_scheduler.controller.cache import GpuCache
    from preflight_gpu_scheduler.controller.controller import Controller
    from preflight_gpu_scheduler.metrics import GpuControllerMetrics, MirrorAges

    registry = CollectorRegistry()

    async def build(client: Client) -> Parts:
        cache, metrics = GpuCache(client, config, gangs=True), GpuControllerMetrics(registry)
        MirrorAges(registry, client.mirrors.behind)

        async def act(leadership: Leadership) -> None:
            metrics.leader.set(1)
            try:
                await Controller(client.fenced(leadership.valid), config, cache, metrics).lead()
            finally:
                metrics.leader.set(0)

        return Parts(reflectors=cache.reflectors, lead=act)

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

    from preflight_gpu_scheduler.webhook.handler import MUTATE, Webhook

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
    from preflight_gpu_scheduler.metrics import AgentMetrics
    from preflight_gpu_scheduler.node.agent import Agent
    from preflight_gpu_scheduler.node.nvml import NvmlProcess

    nvml.start(_log.warning, lasting=True)  # before there are threads
    registry = CollectorRegistry()

    async def build(client: Client) -> Parts:
        acting = Agent(client, config, node, NvmlProcess(), AgentMetrics(registry), boot=boot)
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


def read(target: Connection, config: Config, say: Callable[[GpuSnapshot], T]) -> T:
    """What ``say`` makes of the cluster as it is now. Raises KubeError."""
    from preflight_gpu_scheduler.controller.cache import GpuCache

    async def once() -> T:
        async with Client(target, agent="preflight-gpu-scheduler") as client:
            cache = GpuCache(client, config)
            async with anyio.create_task_group() as group:
                for reflector in cache.reflectors:
                    group.start_soon(reflector.run)
                with anyio.move_on_after(_PATIENCE):
                    await cache.wait_synced()
                answer = say(cache) if cache.synced else None
                group.cancel_scope.cancel()
            if answer is None:
                trouble = client.mirrors.trouble(0.0)
                raise KubeError(trouble or "the cluster could not be read in time")
            return answer

    return anyio.run(once)
