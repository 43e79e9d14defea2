"""The parts of each process: extender, controller, webhook, agent, and what people ask. Each loads
what it is made of itself: the agent, on every node, carries nothing of the others'.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

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

LEASE: Final = "gpu-scheduler-controller"
T = TypeVar("T")
_PATIENCE: Final = 30.0
"""Seconds until a cluster that cannot be read is said not to be."""
_LOOK: Final = 0.05
"""Seconds between two looks at whether it has been read."""
_log = get_logger(__name__)


class Process(NamedTuple):
    """``host``, ``port``: of its plain port. Each method runs a service until it is stopped, and
    returns the exit status."""

    target: Connection
    config: Config
    host: str
    port: int

    def _run(
        self,
        part: str,
        build: Callable[[Client], Awaitable[Parts]],
        registry: CollectorRegistry,
        **options: Any,
    ) -> int:
        return run(
            build,
            self.target,
            component=f"gpu-scheduler-{part}",
            registry=registry,
            host=self.host,
            port=self.port,
            log_level=self.config.log_level,
            **options,
        )

    def extender(self, port: int) -> int:
        """Answer kube-scheduler at ``port``, on loopback."""
        from preflight_gpu_scheduler.controller.apply import Executor
        from preflight_gpu_scheduler.controller.cache import GpuCache
        from preflight_gpu_scheduler.metrics import ExtenderMetrics
        from preflight_gpu_scheduler.webhook.extender import Application, Extender, serving

        config, registry = self.config, CollectorRegistry()

        async def build(client: Client) -> Parts:
            cache, metrics = GpuCache(client, config), ExtenderMetrics(registry)
            metrics.follow(client)
            executor = Executor(client, config, cache, metrics)
            extender = Extender(client, config, cache, metrics, executor)
            server = serving(Application(extender, metrics), port)
            return Parts(reflectors=cache.reflectors, servers=[server])

        return self._run("extender", build, registry, concurrency=64, uvloop=True)

    def controller(self, namespace: str) -> int:
        """Be a replica of those of which one leads, by a lease in ``namespace``."""
        from preflight_gpu_scheduler.controller.cache import GpuCache
        from preflight_gpu_scheduler.controller.controller import Controller
        from preflight_gpu_scheduler.metrics import GpuControllerMetrics

        config, registry = self.config, CollectorRegistry()

        async def build(client: Client) -> Parts:
            cache, metrics = GpuCache(client, config, gangs=True), GpuControllerMetrics(registry)
            metrics.follow(client)
            metrics.runtime.sends(client)

            async def act(leadership: Leadership) -> None:
                with metrics.runtime.leading(LEASE):
                    await Controller(client.fenced(leadership.valid), config, cache, metrics).lead()

            return Parts(reflectors=cache.reflectors, lead=act)

        election = Election(namespace, LEASE)
        return self._run("controller", build, registry, election=election, uvloop=True)

    def webhook(self, certificates: Path, client_ca: Path | None, port: int) -> int:
        """Admit pods at ``port``; ``certificates``: a folder, read again when they change."""
        from preflight_kube.admission.metrics import AdmissionMetrics
        from preflight_kube.admission.reviews import Reviews
        from preflight_kube.admission.server import HttpServer
        from preflight_kube.admission.tls import Certificate

        from preflight_gpu_scheduler.webhook.handler import MUTATE, Webhook

        registry = CollectorRegistry()

        async def build(client: Client) -> Parts:
            metrics = AdmissionMetrics("gpu_scheduler_webhook", registry)
            deciding = Webhook(client, self.config)
            certificate = Certificate(certificates, "`preflight-gpu-scheduler certs`", client_ca)
            reviews = Reviews({MUTATE: deciding}, metrics)
            server = HttpServer("admission", reviews, metrics, certificate, port=port)
            return Parts(reflectors=[deciding.claims], servers=[server])

        return self._run("webhook", build, registry, linger=5.0)

    def agent(self, node: str, boot: str) -> int:
        """Report the GPUs of ``node``, on which it runs. ``boot``: the kernel's id of this boot."""
        from preflight_gpu_scheduler.metrics import AgentMetrics
        from preflight_gpu_scheduler.node.agent import Agent
        from preflight_gpu_scheduler.node.nvml import NvmlProcess

        nvml.start(_log.warning, lasting=True)  # before there are threads
        registry = CollectorRegistry()
        metrics = AgentMetrics(registry)

        async def build(client: Client) -> Parts:
            acting = Agent(client, self.config, node, NvmlProcess(), metrics, boot=boot)
            await acting.remember()
            return Parts(reflectors=acting.reflectors, tasks={"agent": acting.run})

        return self._run("agent", build, registry)


def read(target: Connection, config: Config, report: Callable[[GpuSnapshot], T]) -> T:
    """Call ``report`` with the cluster as it is now. Raises KubeError."""
    from preflight_gpu_scheduler.controller.cache import GpuCache

    async def once() -> T:
        async with Client(target, agent="preflight-gpu-scheduler") as client:
            cache = GpuCache(client, config)
            async with anyio.create_task_group() as group:
                for reflector in cache.reflectors:
                    group.start_soon(reflector.run)
                with anyio.move_on_after(_PATIENCE):
                    while not all(r.synced.is_set() or r.problem for r in cache.reflectors):  # noqa: ASYNC110
                        await anyio.sleep(_LOOK)
                answer = report(cache) if cache.synced else None
                group.cancel_scope.cancel()
            if answer is None:
                problems = [r.problem for r in cache.reflectors if r.problem is not None]
                silent = [problem for problem in problems if problem.status == 0]
                why = "\n".join(map(str, silent[:1] or problems))
                raise KubeError(why or "the cluster could not be read in time")
            return answer

    return anyio.run(once)
