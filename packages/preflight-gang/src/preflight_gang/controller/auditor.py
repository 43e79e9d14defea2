"""Every few minutes: how many GPU pods of opted-in namespaces carry no checks, or checks for other
claims than they have. Read page by page; nothing of it is kept."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Collection

import anyio
from preflight_kube.client.client import Client, KubeError
from preflight_kube.logs import get_logger
from preflight_kube.runtime.discovery import served
from preflight_proto.devices import GROUP

from preflight_gang.config import Config
from preflight_gang.controller.reports import Reports
from preflight_gang.core.unchecked import (
    CARRIES_CHECKS,
    LEFT_OUT,
    NO_CLAIMS,
    AuditedPod,
    DeviceClass,
    GpuClaims,
    Origin,
    ResourceClaim,
    gives_gpus,
    resource_names,
    why_unchecked,
)
from preflight_gang.metrics import Metrics

_CLASSES = (GROUP, "deviceclasses")

log = get_logger(__name__)


class Auditor:
    """The leader's: its numbers go with the leadership. ``reports`` knows who carries checks."""

    def __init__(self, client: Client, config: Config, metrics: Metrics, reports: Reports) -> None:
        self._client, self._config, self._metrics = client, config, metrics
        self._namespaces, self._reports = reports.namespaces, reports

    async def lead(self) -> None:
        """Count now and every ``auditInterval``, until cancelled."""
        pause = self._config.audit_seconds
        if not pause:
            return
        await self._namespaces.synced.wait()
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
            log.warning("audit of unchecked pods failed", error=str(error))
            return
        self._metrics.count_unchecked(found)
        self._metrics.audited.set(time.time())

    async def count(self) -> Counter[tuple[str, str]]:
        """Unchecked pods by namespace and reason. Raises :class:`KubeError`."""
        found: Counter[tuple[str, str]] = Counter()
        path, gpus = await self._devices()
        config, doubtful = self._config, self._reports.doubtful()
        for name in self._namespaces.all_opted_in():
            claims: GpuClaims | None = None
            async for pods in self._pods(name, every=name in doubtful):
                if claims is None and path and any(pod.claims for pod in pods):
                    claims = await self._claims(path, name)
                reasons = (
                    why_unchecked(
                        pod,
                        gpus,
                        claims or NO_CLAIMS,
                        gpu_claims=config.gpu_claims,
                        others=config.other_resource_names,
                    )
                    for pod in pods
                )
                found.update((name, reason) for reason in reasons if reason)
        for name in self._reports.static():
            if self._namespaces.opted_in(name):
                found[name, "static-pod"] += 1
        return found

    async def _pods(self, namespace: str, *, every: bool) -> AsyncIterator[list[AuditedPod]]:
        """Page by page the running pods without checks; ``every``: then those with checks, too."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        running = "status.phase!=Succeeded,status.phase!=Failed"
        for selector in (LEFT_OUT, CARRIES_CHECKS)[: 1 + every]:
            params = {"labelSelector": selector, "fieldSelector": running}
            async for pods, _ in self._client.pages(path, AuditedPod, params=params):
                yield pods

    async def _devices(self) -> tuple[str, Collection[str]]:
        """Where the API of claims is, if anywhere; by which resources containers ask for GPUs."""
        named, classes = self._config.gpu_resource_names, self._config.gpu_device_classes
        path = await served(self._client, *_CLASSES) if classes else None
        if path is None:
            return "", resource_names(named, classes, ())
        known: list[DeviceClass] = []
        async for page, _ in self._client.pages(path, DeviceClass):
            known.extend(one for one in page if one.metadata.name in classes)
        return path.rpartition("/")[0], resource_names(named, classes, known)

    async def _claims(self, path: str, namespace: str) -> GpuClaims:
        claims, giving = await self._origins(f"{path}/namespaces/{namespace}/resourceclaims")
        templates = await self._origins(f"{path}/namespaces/{namespace}/resourceclaimtemplates")
        return GpuClaims(claims, giving, templates[1])

    async def _origins(self, path: str) -> tuple[set[str], dict[str, Origin]]:
        """The names of all claims, or templates, of a collection; by name those that give GPUs."""
        every, giving, classes = set[str](), dict[str, Origin](), self._config.gpu_device_classes
        async for page, _ in self._client.pages(path, ResourceClaim):
            every.update(claim.metadata.name for claim in page)
            giving.update((c.metadata.name, c.metadata) for c in page if gives_gpus(c, classes))
        return every, giving
