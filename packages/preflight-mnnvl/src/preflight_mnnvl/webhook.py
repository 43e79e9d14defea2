"""The shell around admission: a review → what is known → the decision → its answer. Mirrors answer;
what they lack is read live, and no update asks anybody.

In mode `driver` nothing is written; in mode `literal` the objects of an admitted PodClique are made
first, and none on a dry run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

import anyio
import msgspec
from preflight_kube import logs
from preflight_kube.admission.metrics import AdmissionMetrics
from preflight_kube.admission.review import AdmissionRequest, Response
from preflight_kube.admission.reviews import Reviews, Unavailable
from preflight_kube.client.client import Client
from preflight_kube.runtime.reflector import Change, Reflector

from . import sets
from .admission import ClusterView, Review, ReviewAnswer, decide
from .config import Config
from .desired import Key
from .detection import ABSENT, Detection
from .lookups import GroveLookups
from .metrics import Metrics
from .mirror import Part
from .names import GROVE_GROUP, RESOURCE_GROUP
from .objects import BadObject, ComputeDomain, Metadata, PodCliqueSet, decode_pod
from .support import CHANNEL_CLASS, ClusterFacts, judge
from .watches import FabricNodes, brief, domain_watches

__all__ = ["PODCLIQUES", "SETS", "Webhook"]

PODCLIQUES: Final = "/mutate-podclique"
SETS: Final = "/validate-podcliqueset"
ROUNDS: Final = 6
"""Answers to one review until it is one: each lookup, and each object that is in the way, makes one
more.
"""
_NULL: Final = b"null"

log = logs.get_logger(__name__)


class _Class(msgspec.Struct):
    metadata: Metadata


class TakenNames:
    """ComputeDomains and claim templates that may have names of ours, by namespace and name."""

    def __init__(self) -> None:
        self.here: dict[str, dict[str, Metadata]] = {}

    def part(self, part: Part, found: ComputeDomain, *, gone: bool = False) -> None:
        """An object as it is now, or (``gone``) was; one with another name is passed over."""
        meta = found.metadata
        if not meta.name.endswith(_ENDS[part]):
            return
        here = self.here.setdefault(meta.namespace, {})
        if not gone:
            here[meta.name] = meta
        elif (there := here.get(meta.name)) is not None and there.uid == meta.uid:
            del here[meta.name]
        if not here:
            del self.here[meta.namespace]

    def only(self, part: Part, there: Iterable[Key]) -> None:
        """All that exist of a part: what else was known has gone while nobody looked."""
        known = set(there)
        for meta in [one for here in self.here.values() for one in here.values()]:
            if meta.name.endswith(_ENDS[part]) and (meta.namespace, meta.name) not in known:
                self.part(part, ComputeDomain(metadata=meta), gone=True)


class Webhook:
    """Mirrors while :meth:`mirror` runs; :meth:`mutate` and :meth:`validate` answer reviews."""

    def __init__(self, client: Client, config: Config, metrics: Metrics) -> None:
        self._client, self._config, self._metrics = client, config, metrics
        self._lookups = GroveLookups(client)
        self._sets: dict[str, dict[str, PodCliqueSet]] = {}  # by namespace and name
        self.support = judge(ClusterFacts(), config)
        self.detection = Detection(client, config, self._support_changed)
        self._nodes = FabricNodes(client, self.detection)
        self._mirrored = Reflector(
            client,
            f"/apis/{GROVE_GROUP}/v1alpha1/podcliquesets",
            PodCliqueSet,
            on_change=self._set_changed,
            kept=lambda one: PodCliqueSet(metadata=brief(one.metadata)),
            absent_retry=ABSENT,
        )
        self._taken = TakenNames()
        # In mode `literal` what has a name is found when the objects are made.
        self._parts = (
            domain_watches(client, config, self._taken, self.detection)
            if config.mode == "driver"
            else []
        )
        metrics.admission(client.requests, client.mirrors)
        # Of few values each, and looked up thousands of times a second.
        self._admissions, self._part = cache(metrics.admissions.labels), cache(_part)

    async def mirror(self) -> None:
        """Keep up with the cluster until cancelled."""
        async with anyio.create_task_group() as group:
            for run in (self.detection.run, self._nodes.run, self._mirrored.run, self._classes):
                group.start_soon(run)
            for one in self._parts:
                group.start_soon(one.run)

    @property
    def synced(self) -> bool:
        """Whether everything has been read once. What the cluster does not serve is
        read as absent.
        """
        return (
            self.detection.known.is_set()
            and self._nodes.synced.is_set()
            and self._mirrored.synced.is_set()
            and all(one.synced.is_set() for one in self._parts)
        )

    def _support_changed(self) -> None:
        self.support = judge(self.detection.facts, self._config)
        self._metrics.support(self.support)

    # --- reviews

    def reviews(self, metrics: AdmissionMetrics, longest: float) -> Reviews:
        """What answers at both paths; ``longest``: seconds for an answer."""
        return Reviews(
            {PODCLIQUES: self.mutate, SETS: self.validate},
            metrics,
            longest=longest,
            at_once={PODCLIQUES: self.mutate_at_once, SETS: self.validate_at_once},
        )

    def mutate_at_once(self, request: AdmissionRequest) -> Response | None:
        """A PodClique's review, where nobody must be asked and nothing made."""
        started = time.perf_counter()
        review = _review(request)
        answer = decide(review, self._config, self._known(review), self._mirrored_in(review))
        if answer.needs is not None or answer.make:
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
        """The same; nobody is ever asked."""
        started = time.perf_counter()
        new, old = bytes(request.object), bytes(request.old_object)
        answer = sets.review(
            request.operation,
            None if new == _NULL else new,
            None if old == _NULL else old,
            self._config,
            self.support,
        )
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

    def _mirrored_in(self, review: Review) -> Mapping[str, PodCliqueSet]:
        """The sets of the namespace; none while they are not followed: one of them may have been
        made anew, and a clique of a scaling group does not say of which it is.
        """
        return {} if self._mirrored.problem is not None else self._sets.get(review.namespace, {})

    def _known(self, review: Review) -> ClusterView:
        return ClusterView(self.support, found=self._taken.here.get(review.namespace, {}))

    async def _decided(self, review: Review) -> ReviewAnswer:
        known = self._known(review)
        for _ in range(ROUNDS):
            answer = decide(review, self._config, known, self._mirrored_in(review))
            if answer.needs is not None:
                known = await self._looked_up(review, known, answer)
                continue
            if not answer.make:
                return answer
            for body in answer.make:
                name = body["metadata"]["name"]
                if name in known.found:
                    continue
                there = await self._lookups.make(body)
                if there is not None:
                    known = known._replace(found={**known.found, name: there})
                    break
            else:
                return answer
        raise Unavailable("the cluster changes too fast for a decision; this is tried again")

    async def _looked_up(
        self, review: Review, known: ClusterView, answer: ReviewAnswer
    ) -> ClusterView:
        needs = answer.needs
        if needs is None:
            return known
        if needs.set_:
            live = await self._lookups.set_(review.namespace, needs.set_)
            return known._replace(set_=None if live is None else _trimmed(live), has_set=True)
        return known._replace(
            classes=await self._lookups.classes(review.namespace, needs.claims, known.support)
        )

    def _note(
        self, kind: str, request: AdmissionRequest, result: str, message: str, started: float
    ) -> None:
        seconds = time.perf_counter() - started
        self._admissions(kind, _RESULTS.get(result, result)).inc()
        self._metrics.latency.observe(seconds)
        level = "info" if result in {"injected", "denied", "unsupported"} else "debug"
        if log.enabled(level):
            about: dict[str, object] = {
                "uid": request.uid[:128],
                "object": f"{request.namespace}/{request.name}"[:300],
                "seconds": round(seconds, 6),
            }
            if message:
                about["why"] = message
            logs.line_of(self._part(level, kind, request.operation, result, request.dry_run), about)

    # --- mirrors

    def _set_changed(self, change: Change[PodCliqueSet]) -> None:
        meta = change.object.metadata
        here = self._sets.setdefault(meta.namespace, {})
        if change.kind != "deleted":
            here[meta.name] = _trimmed(change.object)
        elif (there := here.get(meta.name)) is not None and there.metadata.uid == change.key:
            del here[meta.name]
        if not here:
            del self._sets[meta.namespace]

    async def _classes(self) -> None:
        """Follow whether the class of the driver's templates exists,
        in the version that is served.
        """
        if self._config.mode != "driver":
            return
        await self.detection.known.wait()
        while True:
            version = self.support.claim_version
            async with anyio.create_task_group() as group:
                if version:
                    reflector = Reflector(
                        self._client,
                        f"/apis/{RESOURCE_GROUP}/{version}/deviceclasses",
                        _Class,
                        on_change=lambda change: self.detection.see(
                            device_class=change.kind != "deleted"
                        ),
                        params={"fieldSelector": f"metadata.name={CHANNEL_CLASS}"},
                        absent_retry=ABSENT,
                    )
                    group.start_soon(reflector.run)
                    await reflector.synced.wait()
                    self.detection.see(device_class=bool(reflector.store))
                while self.support.claim_version == version:
                    await self.detection.change()
                group.cancel_scope.cancel()


_ENDS: Final[dict[Part, str]] = {"domain": "-cd", "template": "-mnnvl-claim"}
_RESULTS: Final = {"going": "unchanged"}


def _part(level: str, kind: str, operation: str, result: str, dry_run: bool) -> bytes:
    """What the log lines of many reviews have in common."""
    about = {"kind": kind, "operation": operation, "result": result, "dry_run": dry_run}
    return logs.part(level, "reviewed", about)


def _review(request: AdmissionRequest) -> Review:
    old = bytes(request.old_object)
    return Review(
        request.operation,
        request.namespace,
        bytes(request.object),
        None if old == _NULL else old,
        request.dry_run,
        time.time(),
    )


def _trimmed(set_: PodCliqueSet) -> PodCliqueSet:
    """With what is read of the pods' templates, and nothing else: a mirror of whole ones would take
    hundreds of megabytes.
    """
    for clique in set_.cliques:
        try:
            pod = decode_pod(clique.spec.pod_spec)
        except BadObject:
            continue
        pod.affinity = None
        clique.spec.pod_spec = msgspec.Raw(msgspec.json.encode(pod))
        clique.labels = None
    set_.metadata.labels = None
    set_.metadata.annotations = {
        key: value
        for key, value in (set_.metadata.annotations or {}).items()
        if key.startswith(f"{GROVE_GROUP}/")
    }
    return set_
