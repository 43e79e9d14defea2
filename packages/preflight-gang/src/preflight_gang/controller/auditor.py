"""Every few minutes: how many GPU pods of opted-in namespaces carry no checks, or checks for other
claims than they have. Read page by page; nothing of it is kept."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable

import anyio
from preflight_kube.client.client import Client, KubeError
from preflight_kube.logs import get_logger
from preflight_kube.runtime.discovery import served
from preflight_proto.devices import GROUP

from preflight_gang.config import Config
from preflight_gang.controller.namespaces import Namespaces
from preflight_gang.core.claims import (
    DeviceClass,
    GpuClaims,
    Origin,
    ResourceClaim,
    ResourceClaimTemplate,
    gives_gpus,
    resource_names,
)
from preflight_gang.core.unchecked import CARRIES_CHECKS, LEFT_OUT, AuditedPod, why_unchecked
from preflight_gang.metrics import Metrics

__all__ = ["Auditor"]

_CLASSES = (GROUP, "deviceclasses")

log = get_logger(__name__)


class Auditor:
    """The leader's: its numbers go with the leadership.

    Of pods that carry checks, namespaces: ``static``, once for each that can run none;
    ``doubtful``, those with any that has claims, or the label alone.
    """

    def __init__(
        self,
        client: Client,
        config: Config,
        metrics: Metrics,
        namespaces: Namespaces,
        *,
        static: Callable[[], Iterable[str]] = tuple,
        doubtful: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self._client, self._config, self._metrics = client, config, metrics
        self._namespaces, self._static, self._doubtful = namespaces, static, doubtful

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
        doubtful = self._doubtful()
        for name in self._namespaces.all_opted_in():
            claims: GpuClaims | None = None
            for selector in [LEFT_OUT, *([CARRIES_CHECKS] if name in doubtful else [])]:
                params = {
                    "labelSelector": selector,
                    "fieldSelector": "status.phase!=Succeeded,status.phase!=Failed",
                }
                pages = self._client.pages(
                    f"/api/v1/namespaces/{name}/pods", AuditedPod, params=params
                )
                async for pods, _ in pages:
                    if claims is None and path and any(pod.claims for pod in pods):
                        claims = await self._claims(path, name)
                    config = self._config
                    reasons = (
                        why_unchecked(
                            pod,
                            gpus,
                            claims,
                            gpu_claims=config.gpu_claims,
                            others=config.other_resource_names,
                        )
                        for pod in pods
                    )
                    found.update((name, reason) for reason in reasons if reason)
        for name in self._static():
            if self._namespaces.opted_in(name):
                found[name, "static-pod"] += 1
        return found

    async def _devices(self) -> tuple[str, Collection[str]]:
        """Where the API of claims is served, empty where it is not; and the resources by which a
        container asks for GPUs.
        """
        config = self._config
        classes = await served(self._client, *_CLASSES) if config.gpu_device_classes else None
        if classes is None:
            return "", resource_names(config.gpu_resource_names, config.gpu_device_classes, ())
        known: list[DeviceClass] = []
        async for page, _ in self._client.pages(classes, DeviceClass):
            known.extend(one for one in page if one.metadata.name in config.gpu_device_classes)
        path = classes.rpartition("/")[0]
        return path, resource_names(config.gpu_resource_names, config.gpu_device_classes, known)

    async def _claims(self, path: str, namespace: str) -> GpuClaims:
        gpus = self._config.gpu_device_classes
        claims, gpu_claims, gpu_templates = set[str](), dict[str, Origin](), dict[str, Origin]()
        async for made, _ in self._client.pages(
            f"{path}/namespaces/{namespace}/resourceclaims", ResourceClaim
        ):
            claims.update(one.metadata.name for one in made)
            gpu_claims.update(
                (one.metadata.name, one.metadata) for one in made if gives_gpus(one, gpus)
            )
        templates = f"{path}/namespaces/{namespace}/resourceclaimtemplates"
        async for page, _ in self._client.pages(templates, ResourceClaimTemplate):
            gpu_templates.update(
                (one.metadata.name, one.metadata) for one in page if gives_gpus(one, gpus)
            )
        return GpuClaims(claims, gpu_claims, gpu_templates)
