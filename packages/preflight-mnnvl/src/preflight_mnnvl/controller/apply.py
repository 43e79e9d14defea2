"""Actions → requests. Each write is sent once: what became of it is seen at the next
look.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, Final, Literal

import msgspec
from preflight_kube.client.client import (
    Client,
    Conflict,
    Fenced,
    KubeError,
    NotFound,
    PreconditionFailed,
)
from preflight_kube.logs import get_logger
from preflight_kube.runtime.retry import for_good

from preflight_mnnvl.api import names
from preflight_mnnvl.api.types import ComputeDomain, Part
from preflight_mnnvl.config import Config
from preflight_mnnvl.controller.cache import MnnvlCache
from preflight_mnnvl.core.reconcile import ClusterWrite
from preflight_mnnvl.core.support import Support
from preflight_mnnvl.metrics import Metrics

__all__ = ["AGENT", "DomainWriter", "Ending", "NameTaken"]

AGENT: Final = "preflight-mnnvl"
_DONE: Final[dict[str, str]] = {"make": "created", "adopt": "adopted", "release": "released"}

log = get_logger(__name__)
Kind = Literal["ComputeDomain", "ResourceClaim", "PodGang"]


class NameTaken(Exception):
    """An object of this name exists, and the cache does not have it: ``part`` and ``found`` say
    what is there.
    """

    def __init__(self, part: Part, found: ComputeDomain) -> None:
        super().__init__(found.metadata.name)
        self.part, self.found = part, found


class Ending(Exception):
    """The namespace is being deleted: nothing can be created there, and nothing needs to be."""


class DomainWriter:
    """One leader's writes, through a client that is fenced by its leadership."""

    def __init__(self, client: Client, config: Config, cache: MnnvlCache, metrics: Metrics) -> None:
        self._client, self._config, self._cache, self._metrics = client, config, cache, metrics

    async def act(self, action: ClusterWrite, support: Support) -> None:
        """Send one write of a plan; its answer counts as seen.

        Raises:
            NameTaken: something of that name exists.
            Ending: the namespace is being deleted.
            KubeError: it was refused, or is no longer what was read.
        """
        part: Part = "domain" if action.kind == "ComputeDomain" else "claim"
        collection = _collection(action, support)
        path = f"{collection}/{action.name}"
        try:
            if action.verb == "create":
                said = await self._client.create(collection, action.body)
            else:
                said = await self._client.json_patch(path, action.body)
        except KubeError as error:
            self._count(action.kind, error)
            if action.verb != "create":
                raise
            if isinstance(error, Conflict) and error.reason == "AlreadyExists":
                if (found := await self._there(collection, action.name)) is not None:
                    raise NameTaken(part, found) from None
            elif error.status == 403 and "being terminated" in str(error):
                raise Ending from None
            raise
        self._metrics.writes.labels(action.kind, _DONE[action.why]).inc()
        log.info(_DONE[action.why], kind=action.kind, namespace=action.namespace, name=action.name)
        self._cache.wrote(part, msgspec.json.decode(said, type=ComputeDomain))

    async def _there(self, collection: str, name: str) -> ComputeDomain | None:
        """What has the name, by the right to list that reflectors have."""
        pages = self._client.pages(
            collection, ComputeDomain, params={"fieldSelector": f"metadata.name={name}"}
        )
        async with aclosing(pages):
            async for items, _ in pages:
                if items:
                    return items[0]
        return None

    async def announce(self, namespace: str, name: str, patch: dict[str, Any]) -> None:
        """Say on a PodGang that its objects belong to it. Raises :class:`KubeError`."""
        path = f"/apis/{names.SCHEDULER_GROUP}/v1alpha1/namespaces/{namespace}/podgangs/{name}"
        try:
            await self._client.merge_patch(path, patch)
        except KubeError as error:
            self._count("PodGang", error)
            raise
        self._metrics.writes.labels("PodGang", "announced").inc()

    def _count(self, kind: Kind, error: KubeError) -> None:
        if isinstance(error, Fenced):
            return
        stale = isinstance(error, Conflict | PreconditionFailed | NotFound)
        result = "conflict" if stale else "refused" if for_good(error) else "failed"
        self._metrics.writes.labels(kind, result).inc()


def _collection(action: ClusterWrite, support: Support) -> str:
    version, plural = f"{names.RESOURCE_GROUP}/{support.claim_version or 'v1'}", "resourceclaims"
    if action.kind == "ComputeDomain":
        version = f"{names.COMPUTE_DOMAIN_GROUP}/{support.domain_version or 'v1beta1'}"
        plural = "computedomains"
    return f"/apis/{version}/namespaces/{action.namespace}/{plural}"
