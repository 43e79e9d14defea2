"""One replica of a service from start to end: mirror the cluster, serve, stand for leadership, act
while leading, leave cleanly.

::

    async def build(client: Client) -> Parts:
        pods = Reflector(client, "/api/v1/pods", Pod, on_change=changed)
        return Parts(reflectors=[pods], lead=Controller(client, pods).lead)

    status = run(build, connection(), component="my-controller", registry=registry,
    election=Election("my-namespace", "my-controller"))

A lost lease cancels ``lead``, and the replica stands for leadership again: its mirrors stay warm,
so it need not read the cluster anew. What ``lead`` keeps in memory must therefore begin empty with
each call.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import anyio
from anyio.abc import TaskGroup
from prometheus_client import CollectorRegistry

from preflight_kube import logs
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.cli.commands import BAD_INPUT, DONE, FAILED, BadInput
from preflight_kube.client.client import READ_ATTEMPTS, Client
from preflight_kube.errors import KubeError
from preflight_kube.logs import get_logger
from preflight_kube.runtime.health import HealthServer
from preflight_kube.runtime.lease import Leadership, lead
from preflight_kube.runtime.reflector import Reflector
from preflight_kube.runtime.workqueue import Backoff

STUCK: Final = 30.0
"""Seconds without a turn of the event loop after which the process is not healthy."""
BEHIND: Final = 30.0
"""Seconds that a mirror may be behind the cluster before the replica is not ready: an API server's
restart takes less.
"""
_BUILDING: Final = Backoff(first=0.5, longest=15.0)

log = get_logger(__name__)

Task = Callable[[], Awaitable[object]]


class Ended(Exception):
    """A part that should go on for ever has ended, which is a fault of the program. The message is
    one sentence.
    """


class Server(Protocol):
    """Something that answers requests in every replica, such as
    :class:`~.admission.server.HttpServer`.
    """

    name: str

    async def run(self) -> None:
        """Serve until cancelled; then let requests under way end."""

    def unready(self) -> str:
        """Why requests should go elsewhere; empty where they need not."""

    def stop(self) -> None:
        """It will be cancelled soon: clients should go elsewhere."""


@dataclass(frozen=True)
class Election:
    """Leader election by the Lease ``namespace``/``name``. ``duration``: seconds after which
    another replica may take it from a silent one.
    """

    namespace: str
    name: str
    duration: float = 15.0


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a replica is made of. None of it ends by itself: a part that returns or raises ends the
    process, to be started anew.

    ``reflectors`` are run in every replica; it is not ready before each has read the cluster once,
    nor while one is behind. ``servers`` and ``tasks`` (by name) are run in every replica, from the
    start. ``lead`` is called while this replica leads, after the reflectors have synced; without an
    election, once they have. ``ready``: more reasons why requests should go elsewhere, empty
    strings where all is well. ``behind``: as :data:`BEHIND`.
    """

    reflectors: Sequence[Reflector[Any]] = ()
    servers: Sequence[Server] = ()
    tasks: Mapping[str, Task] = field(default_factory=dict)
    lead: Callable[[Leadership], Awaitable[None]] | None = None
    ready: Sequence[Callable[[], str]] = ()
    behind: float = BEHIND


Build = Callable[[Client], Awaitable[Parts]]
"""Makes the parts. May ask the API server: it is called again until that answers."""


def run(
    build: Build,
    target: Connection | None = None,
    *,
    component: str,
    registry: CollectorRegistry,
    host: str = "0.0.0.0",  # noqa: S104 - a pod serves its whole network
    port: int = 8080,
    election: Election | None = None,
    concurrency: int = 32,
    attempts: int = READ_ATTEMPTS,
    linger: float = 0.0,
    log_level: str = "info",
    uvloop: bool = False,
    freeze: bool = False,
) -> int:
    """Be one replica until SIGTERM or SIGINT; the exit status: 0 after a signal, 1 after a fault, 2
    where a port cannot be had.

    ``target``: default: where :func:`~preflight_kube.auth.connection.connection` finds it. Sets the
    logs up under ``component``, which the API server records writes under, too. ``registry`` is
    served at /metrics of ``host``:``port`` (0: any; it is logged), beside /healthz and /readyz.
    ``concurrency`` and ``attempts`` are the client's. ``linger``: seconds after SIGTERM for which
    servers go on answering, not ready, while the endpoints of the Service are updated; the lease is
    given back at once. A second signal, or SIGINT, ends that time. ``freeze``: leave what the
    imports made to itself; a garbage collection then takes less time from requests.
    """
    reached = connection() if target is None else target
    logs.set_up(component, log_level)
    if freeze:
        import gc

        gc.collect()
        gc.freeze()

    async def main() -> None:
        async with Client(
            reached, agent=component, concurrency=concurrency, attempts=attempts
        ) as client:
            await _Replica(client, registry, election, linger).run(build, host, port)

    try:
        anyio.run(main, backend_options={"use_uvloop": uvloop})
    except Exception as raised:
        error = _innermost(raised)
        if isinstance(error, BadInput):
            print(f"{component}: {error}", file=sys.stderr)
            return BAD_INPUT
        logs.fault("ended by a fault of its own; it is restarted, please report this line", error)
        return FAILED
    finally:
        logs.flush()
    return DONE


class _Replica:
    """A replica without its process. Raises an ExceptionGroup where a part has failed."""

    def __init__(
        self, client: Client, registry: CollectorRegistry, election: Election | None, linger: float
    ) -> None:
        self._client, self._registry = client, registry
        self._election, self._linger = election, linger
        self._parts: Parts | None = None
        self._not_built = ""
        self._dead = ""
        self._stopping = False
        self._beat = time.monotonic()
        self._leading = anyio.CancelScope()  # or standing for it
        self._all = anyio.CancelScope()

    async def run(self, build: Build, host: str, port: int) -> None:
        identity = f"{os.environ.get('POD_NAME') or os.uname().nodename}_{uuid.uuid4().hex[:8]}"
        health = HealthServer(host, port, self._registry, self.unhealthy, self.unready)
        about: dict[str, object] = {"identity": identity, "port": health.port}
        if self._election is not None:
            about["lease"] = f"{self._election.namespace}/{self._election.name}"
        log.info("started", **about)
        try:
            with self._all:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._stop_on_signals)
                    group.start_soon(self._keep_beating)
                    self._parts = await self._build(build)
                    self._start(group, self._parts, identity)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(health.close)
            log.info("stopped", identity=identity)

    def unhealthy(self) -> str:
        """Why the process should be started anew."""
        silent = time.monotonic() - self._beat
        return f"the event loop has not turned for {silent:.0f} s" if silent > STUCK else ""

    def unready(self) -> str:
        """Why requests should go elsewhere."""
        if self._stopping:
            return "stopping"
        if self._dead:
            return self._dead
        if stuck := self.unhealthy():
            return stuck
        if (parts := self._parts) is None:
            return f"starting: {self._not_built}" if self._not_built else "starting"
        if not all(reflector.synced.is_set() for reflector in parts.reflectors):
            return self._client.mirrors.trouble(0.0) or "the cluster has not been read yet"
        troubles = [
            self._client.mirrors.trouble(parts.behind),
            *[server.unready() for server in parts.servers],
        ]
        return "; ".join(filter(None, [*troubles, *[rule() for rule in parts.ready]]))

    async def _build(self, build: Build) -> Parts:
        failures = 0
        while True:
            try:
                return await build(self._client)
            except KubeError as error:
                failures += 1
                self._not_built = str(error)
                if failures == 1:
                    log.warning("cannot start yet, will be tried again", error=self._not_built)
                await anyio.sleep(_BUILDING.pause(failures))

    def _start(self, group: TaskGroup, parts: Parts, identity: str) -> None:
        for number, reflector in enumerate(parts.reflectors):
            group.start_soon(self._part, f"reflector {number}", reflector.run)
        for server in parts.servers:
            group.start_soon(self._part, server.name, server.run)
        for name, task in parts.tasks.items():
            group.start_soon(self._part, name, task)
        if parts.lead is not None:
            group.start_soon(self._stand, parts, parts.lead, identity)

    async def _part(self, name: str, task: Task) -> None:
        """Run what should never end. Raises :class:`Ended` where it does."""
        try:
            await task()
        except Exception as error:
            self._dead = f"{name} has ended: {type(error).__name__}"
            raise
        self._dead = f"{name} has ended"
        raise Ended(
            f"{name} has ended, which it should not; please report it with the log before this line"
        )

    async def _stand(
        self, parts: Parts, body: Callable[[Leadership], Awaitable[None]], identity: str
    ) -> None:
        with self._leading:
            for reflector in parts.reflectors:
                await reflector.wait_synced()

            async def act(leadership: Leadership) -> None:
                await self._part("the leader's work", lambda: body(leadership))

            if (election := self._election) is None:
                await act(Leadership(0, float("inf"), self._client.clock))
                return
            await lead(
                self._client,
                namespace=election.namespace,
                name=election.name,
                identity=identity,
                duration=election.duration,
                body=act,
            )

    async def _stop_on_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                again, self._stopping = self._stopping, True
                linger = 0.0 if again or number == signal.SIGINT else self._linger
                log.info("stopping", signal=signal.Signals(number).name, linger=linger)
                for server in self._parts.servers if self._parts is not None else ():
                    server.stop()
                self._leading.cancel()
                self._all.deadline = min(self._all.deadline, anyio.current_time() + linger)

    async def _keep_beating(self) -> None:
        while True:
            self._beat = time.monotonic()
            await anyio.sleep(1)


def _innermost(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
