"""PreflightConfigs: followed by every replica; the one that leads writes its verdict as status."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from preflight_kube.client.client import Client, Conflict, NotFound
from preflight_kube.logs import get_logger
from preflight_kube.runtime.controller import Controller
from preflight_kube.runtime.events import timestamp
from preflight_kube.runtime.reflector import Change, Reflector
from preflight_kube.runtime.workqueue import Key, Queue
from preflight_proto.policy import path

from preflight_gang.core.overrides import StoredOverride, judge, status
from preflight_gang.metrics import Metrics

ABSENT_RETRY: Final = 60.0
"""Seconds after which it is seen whether the cluster has the definition by now."""
WORKERS: Final = 4
MIN_INTERVAL: Final = 0.1
"""Seconds between two looks at a namespace, however often its objects change."""

log = get_logger(__name__)


class OverrideController:
    """Mirrors while ``mirror`` runs; acts while :meth:`lead` does. No gang waits for any of it."""

    def __init__(self, client: Client, metrics: Metrics) -> None:
        self._metrics = metrics
        self.queue = Queue("namespace", lambda _: MIN_INTERVAL, client.clock, self._everything)
        self.reflector = Reflector(
            client,
            path(),
            StoredOverride,
            on_change=self._changed,
            indexes={"namespace": lambda policy: (policy.metadata.namespace,)},
            absent_retry=ABSENT_RETRY,
        )
        self.mirror = self.reflector.run

    def _changed(self, change: Change[StoredOverride]) -> None:
        self.queue.add((change.object.metadata.namespace, ""))

    def _everything(self) -> Iterable[Key]:
        return ((namespace, "") for namespace in self.reflector.values("namespace"))

    async def lead(self, client: Client) -> None:
        """Keep the status of the objects current, until cancelled. ``client``: fenced."""
        await self.reflector.synced.wait()
        await Controller(
            "preflightconfig",
            self.queue,
            lambda key: self._reconcile(client, key[0]),
            workers=WORKERS,
            metrics=self._metrics.runtime,
        ).run()

    async def _reconcile(self, client: Client, namespace: str) -> None:
        now = timestamp(datetime.now(UTC))
        for policy, verdict in judge(self.reflector.by_index("namespace", namespace)):
            body = status(policy, verdict, now)
            if body is None:
                continue
            about = policy.metadata
            try:
                await client.replace_status(path(namespace, about.name), body)
            except (Conflict, NotFound):
                # Another version by now, which the watch brings; until then nobody is put in force.
                self._metrics.writes.labels("status", "conflict").inc()
                return
            self._metrics.writes.labels("status", "written").inc()
            if verdict.reason == "Invalid":
                self._metrics.config_errors.labels("preflightconfig").inc()
            (log.info if verdict.accepted else log.warning)(
                "PreflightConfig status updated",
                preflight_config=f"{namespace}/{about.name}",
                generation=about.generation,
                reason=verdict.reason,
                message=verdict.message,
            )
