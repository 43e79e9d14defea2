"""Events on wrappers: said beside the work, so that nobody waits for them. Each has a name of its
own, and so is there once.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import anyio
from preflight_kube.client.client import Client, Fenced, KubeError
from preflight_kube.logs import get_logger
from preflight_kube.runtime.events import Regarding, event, timestamp

from preflight_appwrapper.api.names import API_VERSION, KIND
from preflight_appwrapper.api.types import AppWrapper
from preflight_appwrapper.core.plan import WrapperEvent
from preflight_appwrapper.metrics import Metrics

__all__ = ["Speaker"]

COMPONENT: Final = "preflight-appwrapper"
_MOST: Final = 10_000
"""Events that wait; of more, the oldest are left out."""
_TRIES: Final = 5
_WORKERS: Final = 4

log = get_logger(__name__)


class Speaker:
    """``client`` is fenced by the leadership."""

    def __init__(self, client: Client, metrics: Metrics) -> None:
        self._client, self._metrics = client, metrics
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_MOST)
        self._bell = anyio.Event()

    def say(self, wrapper: AppWrapper, one: WrapperEvent) -> None:
        """Have it said soon."""
        metadata = wrapper.metadata
        about = Regarding(API_VERSION, KIND, metadata.name, metadata.uid, metadata.namespace)
        body = event(
            COMPONENT,
            about,
            about=one.key,
            good=not one.warning,
            reason=one.reason,
            message=one.message,
            now=timestamp(datetime.now(UTC)),
        )
        self._waiting.append(body)
        self._bell.set()

    async def run(self) -> None:
        """Write what is said until cancelled."""
        async with anyio.create_task_group() as group:
            for _ in range(_WORKERS):
                group.start_soon(self._work)

    async def _work(self) -> NoReturn:
        while True:
            while not self._waiting:
                self._bell = anyio.Event() if self._bell.is_set() else self._bell
                await self._bell.wait()
            await self._create(self._waiting.popleft())

    async def _create(self, body: dict[str, Any]) -> None:
        path = f"/api/v1/namespaces/{body['metadata']['namespace']}/events"
        for tries in range(_TRIES):
            try:
                await self._client.create(path, body)
            except Fenced:
                return
            except KubeError as error:
                if error.reason == "AlreadyExists":
                    return
                if error.status and error.status != 429 and error.status < 500:
                    self._failed(body, error)
                    return
                if tries == _TRIES - 1:
                    self._failed(body, error)
                    return
                await anyio.sleep(2.0**tries)
            else:
                self._metrics.writes.labels("event", "written").inc()
                return

    def _failed(self, body: dict[str, Any], error: KubeError) -> None:
        self._metrics.writes.labels("event", "failed").inc()
        log.warning(
            "Event not written",
            namespace=body["metadata"]["namespace"],
            name=body["involvedObject"]["name"],
            error=str(error),
        )
