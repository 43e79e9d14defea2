"""The shell around admission: a review → what is known → the decision → its answer.

What the cache lacks is read live, and nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import anyio
import msgspec
from preflight_kube import logs
from preflight_kube.admission.metrics import AdmissionMetrics
from preflight_kube.admission.review import AdmissionRequest, Response
from preflight_kube.admission.reviews import Reviews, Unavailable
from preflight_kube.client.client import Client, KubeError, NotFound
from preflight_proto.devices import requests_of

from preflight_mnnvl.api.names import GROVE_GROUP, RESOURCE_GROUP, is_name
from preflight_mnnvl.api.types import Metadata, PodCliqueSet, shown
from preflight_mnnvl.config import Config
from preflight_mnnvl.core import validate_podcliqueset as sets
from preflight_mnnvl.core.claims import ClaimRef
from preflight_mnnvl.core.mutate_podclique import ClusterView, Review, ReviewAnswer, decide
from preflight_mnnvl.core.support import Support
from preflight_mnnvl.metrics import Metrics

PODCLIQUES: Final = "/mutate-podclique"
SETS: Final = "/validate-podcliqueset"
LONGEST: Final = 2.0
"""Seconds for one lookup; the API server waits for the answer."""
_NULL: Final = b"null"
T = TypeVar("T")

log = logs.get_logger(__name__)


class Informers(Protocol):
    """The cluster as it is followed (:class:`~.controller.informers.AdmissionInformers`)."""

    @property
    def support(self) -> Support:
        """What the cluster can do now."""

    def set_(self, namespace: str, name: str) -> PodCliqueSet | None:
        """The PodCliqueSet of this name, where it is known."""

    def taken(self, namespace: str, name: str) -> Metadata | None:
        """What has this name, which may be one of ours, or uid."""


class Webhook:
    """Answers reviews by what its ``informers`` have, and by what it looks up."""

    def __init__(
        self, client: Client, config: Config, metrics: Metrics, informers: Informers
    ) -> None:
        self._config, self._metrics, self._informers = config, metrics, informers
        self._client = client
        metrics.admission(client)
        metrics.supports(lambda: informers.support.ok, lambda: informers.support.fabric_nodes)

    # --- reviews

    def reviews(self, metrics: AdmissionMetrics, longest: float) -> Reviews:
        """Answer at both paths; ``longest``: seconds for an answer."""
        return Reviews(
            {PODCLIQUES: self.mutate, SETS: self.validate},
            metrics,
            longest=longest,
            at_once={PODCLIQUES: self.mutate_at_once, SETS: self.validate_at_once},
        )

    def mutate_at_once(self, request: AdmissionRequest) -> Response | None:
        """A PodClique's review, where nobody must be asked."""
        started = time.perf_counter()
        review = _review(request)
        answer = self._answer(review, self._known(review))
        if answer.needs is not None:
            return None
        return self._mutated(request, answer, started)

    async def mutate(self, request: AdmissionRequest) -> Response:
        """A PodClique's review."""
        started = time.perf_counter()
        try:
            answer = await self._decided(_review(request))
        except Unavailable:
            self._metrics.admissions.labels("PodClique", "failed").inc()
            raise
        return self._mutated(request, answer, started)

    async def validate(self, request: AdmissionRequest) -> Response:
        """A PodCliqueSet's review."""
        return self.validate_at_once(request)

    def validate_at_once(self, request: AdmissionRequest) -> Response:
        """Answer the same at once; nobody is ever asked."""
        started = time.perf_counter()
        new, old = _written(request.object), _written(request.old_object)
        support = self._informers.support
        answer = sets.review(request.operation, new, old, self._config, support)
        result = "unchanged" if answer.allowed else "denied"
        self._note("PodCliqueSet", request, result, answer.message, started)
        if not answer.allowed:
            return Response.denied(answer.message, warnings=answer.warnings)
        return Response(warnings=answer.warnings)

    def _mutated(self, request: AdmissionRequest, answer: ReviewAnswer, started: float) -> Response:
        self._note("PodClique", request, answer.result, answer.message, started)
        patch = msgspec.json.encode(answer.patch) if answer.patch else ()
        if not answer.allowed:
            return Response.denied(answer.message, warnings=answer.warnings)
        return Response(patch=patch, warnings=answer.warnings)

    def _known(self, review: Review) -> ClusterView:
        informers = self._informers
        return ClusterView(informers.support, taken=partial(informers.taken, review.namespace))

    async def _decided(self, review: Review) -> ReviewAnswer:
        known = self._known(review)
        while (needs := (answer := self._answer(review, known)).needs) is not None:
            if needs.set_:
                live = await self._set(review.namespace, needs.set_)
                known = known._replace(set_=live, has_set=True)
            else:
                classes = await self._classes(review.namespace, needs.claims, known.support)
                known = known._replace(classes=classes)
        return answer

    def _answer(self, review: Review, known: ClusterView) -> ReviewAnswer:
        return decide(review, self._config, known, partial(self._informers.set_, review.namespace))

    def _note(
        self, kind: str, request: AdmissionRequest, result: str, message: str, started: float
    ) -> None:
        seconds = time.perf_counter() - started
        counted = "unchanged" if result == "going" else result
        self._metrics.admissions.labels(kind, counted).inc()
        self._metrics.latency.observe(seconds)
        level = "info" if result in {"injected", "denied", "unsupported"} else "debug"
        if log.enabled(level):
            about: dict[str, object] = {
                "kind": kind,
                "operation": request.operation,
                "result": result,
                "dry_run": request.dry_run,
                "uid": request.uid[:128],
                "object": f"{request.namespace}/{request.name}"[:300],
                "seconds": round(seconds, 6),
            }
            if message:
                about["why"] = message
            logs.line(level, "reviewed", about)

    # --- what a decision needs and the informers do not have: read once, live, within bounds; each
    # raises Unavailable where the cluster does not say

    async def _set(self, namespace: str, name: str) -> PodCliqueSet | None:
        if not is_name(name):  # labels are validated after admission
            return None
        path = f"/apis/{GROVE_GROUP}/v1alpha1/namespaces/{namespace}/podcliquesets/{name}"
        return await self._asked(f"the PodCliqueSet {shown(name)}", path, PodCliqueSet)

    async def _classes(
        self, namespace: str, refs: Iterable[ClaimRef], support: Support
    ) -> dict[ClaimRef, Collection[str]]:
        """The device classes that claims and templates ask for, of those that exist."""
        known: dict[ClaimRef, Collection[str]] = {}
        for ref in dict.fromkeys(refs):
            if not is_name(ref.name):  # so are claims
                continue
            plural = "resourceclaims" if ref.kind == "ResourceClaim" else "resourceclaimtemplates"
            version = support.claim_version or "v1"
            path = f"/apis/{RESOURCE_GROUP}/{version}/namespaces/{namespace}/{plural}/{ref.name}"
            claim = await self._asked(f"the {ref.kind} {shown(ref.name)}", path, dict[str, Any])
            if claim is not None:
                known[ref] = [name for request in requests_of(claim) for name in request.classes]
        return known

    async def _asked(self, what: str, path: str, type_: type[T]) -> T | None:
        try:
            with anyio.fail_after(LONGEST):
                return await self._client.get(path, type_)
        except NotFound:
            return None
        except (KubeError, TimeoutError) as error:
            why = shown(str(error).rstrip(".") or f"no answer within {LONGEST:g} s", 300)
            raise Unavailable(f"{what} cannot be read ({why}); this is tried again") from error


def _written(raw: msgspec.Raw) -> bytes | None:
    return None if (written := bytes(raw)) == _NULL else written


def _review(request: AdmissionRequest) -> Review:
    new, old = bytes(request.object), _written(request.old_object)
    return Review(request.operation, request.namespace, new, old, time.time())
