"""Admission: the AdmissionReview of a pod that is created, answered by :mod:`~.core.admission`
with the claim that it names: of a mirror, or read, as it may have been made just now.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from preflight_kube.admission import limits
from preflight_kube.admission.review import AdmissionRequest, Response
from preflight_kube.admission.reviews import Unavailable
from preflight_kube.api.workloads.model import at, maps
from preflight_kube.client.client import Client, KubeError
from preflight_kube.runtime.cache import Cache
from preflight_kube.runtime.indexes import namespaced_name
from preflight_proto.devices import requests_of

from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.claim import Claim, RawClaim
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.core.admission import admit, claim_of

T = TypeVar("T")
MUTATE: Final = "/mutate-pods"
_CLAIM_KINDS: Final = (
    ("resourceclaims", "resourceClaimName"),
    ("resourceclaimtemplates", "resourceClaimTemplateName"),
)


class Webhook:
    """Call it with a request. ``claims`` has to run for it to follow the cluster."""

    def __init__(self, client: Client, config: Config) -> None:
        self._client, self._config = client, config
        self.claims: Cache[Claim | list[str]] = Cache(
            client,
            names.CLAIMS,
            RawClaim,
            decode=RawClaim.read,
            key=lambda item: namespaced_name(item)[0],
        )

    async def __call__(self, request: AdmissionRequest) -> Response:
        """The patch, or one sentence for each reason against the pod."""
        what = request.resource.resource, request.sub_resource, request.operation
        if what != ("pods", "", "CREATE"):
            return Response()
        pod, namespace = request.new(dict), request.namespace
        claim: Claim | None = None
        entries: list[str] = []
        if name := claim_of(pod):
            if refused := limits.of_list(pod, "spec.resourceClaims", limits.REQUESTS - 1):
                return Response.denied(refused)
            read = await self._claim(namespace, name)
            if isinstance(read, list):
                why = f"the GpuClaim that the pod names is not valid: {' '.join(read)}"
                return Response.denied(why)
            claim = read
            entries = await self._gpu_entries(namespace, pod)
        verdict = admit(pod, claim, self._config, gpu_entries=entries)
        if verdict.refused:
            return Response.denied(verdict.refused, warnings=verdict.warnings)
        return Response(patch=verdict.patch, warnings=verdict.warnings)

    async def _claim(self, namespace: str, name: str) -> Claim | list[str] | None:
        if (claim := self.claims.get(f"{namespace}/{name}")) is not None:
            return claim
        path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/gpuclaims/{name}"
        raw = await self._read(path, RawClaim, f"GpuClaim {name}")
        return None if raw is None else raw.read()

    async def _gpu_entries(self, namespace: str, pod: dict[str, Any]) -> list[str]:
        """Those of its resourceClaims that ask for a device class of GPUs and are there."""
        gpus = []
        for entry in maps(at(pod, ("spec", "resourceClaims"))):
            for plural, field in _CLAIM_KINDS:
                name = entry.get(field)
                if isinstance(name, str) and names.is_object_name(name):
                    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/{plural}/{name}"
                    raw = await self._read(path, dict[str, Any], "a resource claim of the pod")
                    # Administrative access counts: it shows GPUs that are other pods'.
                    asked = {cls for request in requests_of(raw or {}) for cls in request.classes}
                    if not asked.isdisjoint(self._config.gpu_classes):
                        gpus.append(str(entry.get("name")))
                    break  # one that names both is refused by the API server
        return gpus

    async def _read(self, path: str, type_: type[T], what: str) -> T | None:
        try:
            return await self._client.get_or_none(path, type_)
        except KubeError as error:
            raise Unavailable(f"{what} cannot be read ({error})") from None
