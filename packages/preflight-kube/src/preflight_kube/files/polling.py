"""Polls what changes without a word while a service runs: files, connections that do not go on.

Each poll is a task of its own, so that nothing that one of them meets keeps another from its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from prometheus_client import Gauge

from preflight_kube.logs import get_logger

FAILING: Final = 60.0
"""Seconds of failed polls after which requests should go elsewhere."""

log = get_logger(__name__)


class Polling:
    """The polls of one service, and which of them fail. ``up``: a gauge with one label, the poll's
    name; 1 while it works, 0 while it does not.
    """

    def __init__(self, up: Gauge | None = None) -> None:
        self._up = up
        self._failing: dict[str, str] = {}

    def unready(self) -> str:
        """Why requests should go elsewhere: a poll that has failed for :data:`FAILING` seconds.
        Empty where there is none.
        """
        return next(
            (f"{name} is not watched any more: {why}" for name, why in self._failing.items()), ""
        )

    async def keep(
        self, name: str, poll: Callable[[], Awaitable[None] | None], every: float
    ) -> None:
        """Poll every so many seconds until cancelled, for the first time at once. A poll that fails
        is logged and tried again.
        """
        failures = 0
        self._show(name, works=True)  # a poll may go on for as long as the service runs
        while True:
            try:
                if (waited := poll()) is not None:
                    await waited
            except Exception as error:
                failures += 1
                if failures == 1:
                    log.exception("a watcher failed, what was read last stays in use", watcher=name)
                if failures * every >= FAILING:
                    self._failing[name] = f"{type(error).__name__}: {str(error)[:256]}"
            else:
                failures = 0
                self._failing.pop(name, None)
            self._show(name, works=not failures)
            await asyncio.sleep(every)

    def _show(self, name: str, *, works: bool) -> None:
        if self._up is not None:
            self._up.labels(name).set(int(works))
