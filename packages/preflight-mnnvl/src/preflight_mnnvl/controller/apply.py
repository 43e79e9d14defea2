"""Actions → requests. Each write is sent once: what became of it is seen at the next reconcile."""

from __future__ import annotations

from typing import Any, Final, Literal

from preflight_kube.client.client import Client
from preflight_kube.logs import get_logger
from preflight_kube.runtime.retry import for_good
from preflight_kube.runtime.writes import (
    Create,
    Exists,
    Missing,
    Patch,
    Refused,
    Stored,
    Write,
    apply,
)

from preflight_mnnvl.api import names
from preflight_mnnvl.api.types import ComputeDomain
from preflight_mnnvl.controller.cache import MnnvlCache
from preflight_mnnvl.core.reconcile import ClusterWrite
from preflight_mnnvl.core.support import Support
from preflight_mnnvl.metrics import Metrics

__all__ = ["AGENT", "Behind", "DomainWriter", "Ending"]

AGENT: Final = "preflight-mnnvl"
_DONE: Final[dict[str, str]] = {"make": "created", "adopt": "adopted", "release": "released"}
_FORBIDDEN: Final = 403

log = get_logger(__name__)
Kind = Literal["ComputeDomain", "ResourceClaim", "PodGang"]


class Behind(Exception):
    """An object of this name is there, or is not: the cache will say so."""


class Ending(Exception):
    """The namespace is being deleted: nothing can be created there, and nothing needs to be."""


class DomainWriter:
    """One leader's writes, through a client that is fenced by its leadership."""

    def __init__(self, client: Client, cache: MnnvlCache, metrics: Metrics) -> None:
        self._client, self._cache, self._metrics = client, cache, metrics

    async def act(self, action: ClusterWrite, support: Support) -> None:
        """Send one write of a plan; its answer counts as seen.

        Raises:
            Behind: something of that name exists, or has gone.
            Ending: the namespace is being deleted.
            KubeError: it was refused, or is no longer what was read.
        """
        version, plural = (
            f"{names.RESOURCE_GROUP}/{support.claim_version or 'v1'}",
            "resourceclaims",
        )
        if action.kind == "ComputeDomain":
            version = f"{names.COMPUTE_DOMAIN_GROUP}/{support.domain_version or 'v1beta1'}"
            plural = "computedomains"
        path = f"/apis/{version}/namespaces/{action.namespace}/{plural}"
        new = action.verb == "create"
        write = Create(path, action.body) if new else Patch(f"{path}/{action.name}", action.body)
        stored = await self._sent(action.kind, write, _DONE[action.why])
        log.info(_DONE[action.why], kind=action.kind, namespace=action.namespace, name=action.name)
        self._cache.wrote(
            "domain" if action.kind == "ComputeDomain" else "claim", stored.object(ComputeDomain)
        )

    async def announce(self, namespace: str, name: str, patch: dict[str, Any]) -> None:
        """Say on a PodGang that its objects belong to it. Raises as :meth:`act`."""
        path = f"/apis/{names.SCHEDULER_GROUP}/v1alpha1/namespaces/{namespace}/podgangs/{name}"
        await self._sent("PodGang", Patch(path, patch, "merge"), "announced")

    async def _sent(self, kind: Kind, write: Write, done: str) -> Stored:
        match await apply(self._client, write):
            case Stored() as stored:
                self._metrics.writes.labels(kind, done).inc()
                return stored
            case Exists() | Missing():
                self._metrics.writes.labels(kind, "conflict").inc()
                raise Behind
            case answer:
                stale = isinstance(answer, Refused) and answer.stale
        error = answer.error
        result = "conflict" if stale else "refused" if for_good(error) else "failed"
        self._metrics.writes.labels(kind, result).inc()
        if error.status == _FORBIDDEN and "being terminated" in str(error):
            raise Ending
        raise error
