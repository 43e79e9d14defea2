"""What is looked at again and again while the server runs: files that change, connections that do
not go on, PreflightConfigs.

Each by a task of its own, so that nothing that one of them meets keeps another from its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from preflight_kube.admission.connections import Connections
from preflight_kube.admission.stalled import Stalled
from preflight_kube.admission.tls import Certificate
from preflight_kube.configfile import ConfigFile
from preflight_kube.logs import get_logger

from ..configuration.config import Config
from .app import State

__all__ = ["Watchers", "watch"]

LOOK_EVERY: Final = 5.0
"""Seconds between two looks at the files; a kubelet itself takes about a minute to bring new ones."""
FAILING: Final = 60.0
"""Seconds of failed looks after which requests should go elsewhere."""

log = get_logger(__name__)


class Watchers:
    """``ports``: the connections of each; the first is that of admission."""

    def __init__(
        self,
        state: State,
        file: ConfigFile[Config],
        certificate: Certificate,
        ports: Sequence[Connections],
    ) -> None:
        self._state, self._file, self._certificate = state, file, certificate
        self._ports = [(port, Stalled()) for port in ports]
        self._said = ""

    def start(self, patience: float) -> list[asyncio.Task[None]]:
        """The tasks, each by the name of what it looks at; none of them ends by itself.
        ``patience``: seconds between two looks at connections.
        """
        looks: tuple[tuple[str, Callable[[], Awaitable[None]], float], ...] = (
            ("certificate", self.certificate, LOOK_EVERY),
            ("configuration", self.configuration, LOOK_EVERY),
            ("connections", self.connections, patience),
            ("preflightconfigs", self.preflightconfigs, LOOK_EVERY),
        )
        return [asyncio.create_task(watch(self._state, *look), name=look[0]) for look in looks]

    async def certificate(self) -> None:
        """Serve new connections with the newest, and say so where clients will not take it."""
        certificate, metrics = self._certificate, self._state.metrics
        if certificate.refresh():
            admission = self._ports[0][0]
            admission.certificate_changed()
            if certificate.client_ca is not None:
                admission.retire()  # who is connected showed a certificate to the authority of before
        metrics.certificate_expiry.set(certificate.expires)
        problem = self._state.certificate_problem()
        metrics.certificate_valid.set(0 if problem else 1)
        if problem and problem != self._said:
            log.error("clients do not take the serving certificate", why=problem)
        self._said = problem

    async def configuration(self) -> None:
        """In a thread: a file can take a second to read, and admissions go on meanwhile."""
        if await asyncio.to_thread(self._file.refresh):
            self._state.config = (
                self._file.config
            )  # at once for all that comes; what is being decided ends as it began

    async def connections(self) -> None:
        """Cut off who does not go on."""
        for port, stalled in self._ports:
            port.look(stalled)

    async def preflightconfigs(self) -> None:
        """Follow them; returns only where there is nobody to follow them with."""
        if self._state.policies is not None:
            await self._state.policies.run(lambda: self._state.config.preflight_configs.enabled)


async def watch(state: State, name: str, look: Callable[[], Awaitable[None]], every: float) -> None:
    """Look every so many seconds, for ever. A look that fails is logged and tried again; after a
    minute of failures requests should go elsewhere, until one succeeds."""
    up = state.metrics.watching.labels(name)
    up.set(1)
    failures = 0
    while True:
        try:
            await look()
        except Exception as error:
            failures += 1
            up.set(0)
            if failures == 1:
                log.exception("a watcher failed, what was read last stays in use", watcher=name)
            if failures * every >= FAILING:
                state.failing[name] = f"{type(error).__name__}: {str(error)[:256]}"
        else:
            failures = 0
            up.set(1)
            state.failing.pop(name, None)
        await asyncio.sleep(every)
