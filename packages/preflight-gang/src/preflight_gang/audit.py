"""Every few minutes: how many GPU pods of opted-in namespaces carry no checks. Read page by page; nothing of it is kept."""

from __future__ import annotations

import logging
import time
from collections import Counter

import anyio

from .config import Config
from .kube.client import Client, KubeError
from .metrics import Metrics
from .unchecked import LEFT_OUT, Namespace, Unchecked, opted_in, why_unchecked

__all__ = ["Audit"]

log = logging.getLogger(__name__)


class Audit:
    """The leader's: its numbers go with the leadership."""

    def __init__(self, client: Client, config: Config, metrics: Metrics) -> None:
        self._client, self._config, self._metrics = client, config, metrics

    async def lead(self) -> None:
        """Count now and every ``auditInterval``, until cancelled."""
        pause = self._config.audit_seconds
        if not pause:
            return
        try:
            while True:
                await self._round()
                await anyio.sleep(pause)
        finally:
            self._metrics.unchecked.clear()

    async def _round(self) -> None:
        try:
            found = await self.count()
        except KubeError as error:
            self._metrics.unchecked.clear()  # not known is not none
            log.warning("pods without checks could not be counted", extra={"about": {"error": str(error)}})
            return
        self._metrics.unchecked.clear()
        for (namespace, reason), pods in found.items():
            self._metrics.unchecked.labels(self._metrics.bounded("namespace", namespace), reason).inc(pods)
        self._metrics.audited.set(time.time())

    async def count(self) -> Counter[tuple[str, str]]:
        """Unchecked pods by namespace and reason. Raises :class:`KubeError`."""
        found: Counter[tuple[str, str]] = Counter()
        config = self._config
        params = {"labelSelector": LEFT_OUT, "fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
        async for namespaces, _ in self._client.pages("/api/v1/namespaces", Namespace):
            for namespace in namespaces:
                if not opted_in(namespace, config.namespaces, config.exclude_namespaces):
                    continue
                name = namespace.metadata.name
                async for pods, _ in self._client.pages(f"/api/v1/namespaces/{name}/pods", Unchecked, params=params):
                    reasons = (why_unchecked(pod, config.gpu_resource_names) for pod in pods)
                    found.update((name, reason) for reason in reasons if reason)
        return found
