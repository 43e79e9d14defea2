"""The HTTP application of admission, and what it counts and logs of each review."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from preflight_kube import logs
from preflight_kube.admission.request_body import Receive, ReviewRefused, Scope
from preflight_kube.admission.review import (
    MOST_TEXT,
    AdmissionRequest,
    BadReview,
    GroupVersionKind,
    Response,
)
from preflight_kube.admission.reviews import Reviews, Send, Unavailable

from preflight_webhook.api import review
from preflight_webhook.api.review import shown
from preflight_webhook.api.types import Pod
from preflight_webhook.config.config import Config, effective
from preflight_webhook.core.admit import decide
from preflight_webhook.core.decision import UNKNOWN, Decision
from preflight_webhook.core.detect.devices import DeviceClaim, Ref
from preflight_webhook.core.limits import OBJECT_NAME
from preflight_webhook.metrics import Metrics
from preflight_webhook.webhook.claim_lookups import NO_LOOKUP, Lookups
from preflight_webhook.webhook.namespace_overrides import NamespaceOverride, NamespaceOverrides

PATH: Final = "/mutate-pod"
CONFINED_PATH: Final = PATH + "/confined"
"""For pods of namespaces whose Pod Security level forbids hostPath volumes: the API server says
those apart by their label, so nobody here has to ask for it."""
_POD: Final = GroupVersionKind(version="v1", kind="Pod")
WAITING: Final = 8 * 1024 * 1024
"""Bytes of the reviews of one namespace that may wait for claims at a time."""

log = logs.get_logger(__name__)


@dataclass
class ServingState:
    """What decisions stand on besides the pod."""

    config: Config
    metrics: Metrics = field(default_factory=Metrics)
    lookups: Lookups | None = None
    policies: NamespaceOverrides | None = None

    def rules(self, namespace: str) -> tuple[Config, NamespaceOverride | None]:
        """The configuration that holds in ``namespace``, and what of it the namespace has set for
        itself.
        """
        follows = self.config.preflight_configs.enabled
        policy = self.policies.of(namespace) if self.policies is not None and follows else None
        return (effective(self.config, policy.spec) if policy else self.config), policy


class Admission(Reviews):
    """Answers `POST /mutate-pod`, and for pods that may mount no hostPath `…/confined`. A review of
    anything but a pod is refused: the rule that sends it is the operator's to correct.
    """

    def __init__(self, state: ServingState) -> None:
        paths = {PATH: False, CONFINED_PATH: True}
        super().__init__(
            {path: partial(self._answer, confined) for path, confined in paths.items()},
            state.metrics,
            at_once={path: partial(self._known, confined) for path, confined in paths.items()},
        )
        self.state = state
        self._waiting: dict[str, int] = {}  # bytes, by namespace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        self.state.metrics.in_flight += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.state.metrics.in_flight -= 1

    def _known(self, confined: bool, request: AdmissionRequest) -> Response | None:
        """The answer, where all that it takes is known. Nothing may be added to a pod later."""
        created = request.operation == "CREATE" and not request.sub_resource
        if not created and request.kind == _POD:
            return Response(result="unchanged")
        decision = self._decision(request, confined)
        return None if decision.needs else decision.response

    async def _answer(self, confined: bool, request: AdmissionRequest) -> Response:
        """The answer, with what the pod's claims ask for looked up."""
        try:
            decision = self._decision(request, confined)
            if needs := decision.needs:
                claims = await self._claims(request.namespace, needs, len(bytes(request.object)))
                decision = self._decision(request, confined, claims)
        except BadReview as error:
            raise ReviewRefused(400, str(error), request.uid) from None
        return decision.response

    def _decision(
        self,
        request: AdmissionRequest,
        confined: bool,
        claims: Mapping[Ref, DeviceClaim | None] | None = None,
    ) -> Decision:
        """The decision, counted and logged unless claims must be known first."""
        state, namespace = self.state, request.namespace
        read = review.pod_of(request)
        config, policy = state.rules(namespace)
        recall = partial(state.lookups.known, namespace) if state.lookups is not None else None
        decision = decide(
            request.object, namespace, config, claims, confined=confined, recall=recall, read=read
        )
        if not decision.needs:
            _record(state.metrics, request, read.pod, decision, policy)
        return decision

    async def _claims(
        self, namespace: str, needs: tuple[Ref, ...], size: int
    ) -> Mapping[Ref, DeviceClaim | None]:
        """What is needed to be known, while the review of ``size`` bytes waits."""
        if self.state.lookups is None:
            raise Unavailable(f"{NO_LOOKUP}: there is no API server to ask")
        if (waiting := self._waiting.get(namespace, 0) + size) > WAITING:
            raise Unavailable(
                f"{NO_LOOKUP}: {waiting} bytes of reviews of namespace {namespace} would wait for "
                f"theirs, the limit is {WAITING}; create fewer pods at a time"
            )
        self._waiting[namespace] = waiting
        try:
            return await self.state.lookups.claims(namespace, needs)
        finally:
            if (left := self._waiting[namespace] - size) > 0:
                self._waiting[namespace] = left
            else:
                del self._waiting[namespace]


def _record(
    metrics: Metrics,
    request: AdmissionRequest,
    pod: Pod,
    decision: Decision,
    policy: NamespaceOverride | None,
) -> None:
    for skip in decision.skipped:
        metrics.skips.labels(skip.check, skip.reason).inc()
    if decision.stamp is not None:  # of a source that is perhaps the configuration's
        metrics.members[decision.stamp.source] = metrics.members.get(decision.stamp.source, 0) + 1
    if decision.unseen:
        for kind in {env.kind for env in decision.unseen}:  # each once
            metrics.unseen_environments.labels(kind).inc()
    notable = decision.result in {"injected", "stamped", "denied"} or any(
        skip.reason == UNKNOWN for skip in decision.skipped
    )
    if not log.enabled("info" if notable else "debug"):
        return
    metadata = pod.metadata
    about: dict[str, object] = {
        "uid": shown(request.uid[:128]),
        "namespace": request.namespace,
        # By which names people know a pod: its own, or the beginning of it that its maker gave; and
        # the maker.
        "pod": shown(metadata.name or metadata.generate_name, OBJECT_NAME),
        "dry_run": request.dry_run,
    }
    for owner in metadata.owner_references or ():
        if owner.controller:
            about["owner"] = shown(f"{owner.kind}/{owner.name}", 2 * OBJECT_NAME)
            break
    if policy is not None:
        about["preflight_config"] = policy.name
    if not decision.logged:
        decision.logged = _common(decision, "info" if notable else "debug")
    logs.line_of(decision.logged, about)


def _common(decision: Decision, level: str) -> bytes:
    """What the log says of the decision about all of the pods that it is for."""
    about: dict[str, object] = {"result": decision.result}
    if decision.stamp is not None:
        about["gang"] = shown(decision.stamp.id)
    if decision.skipped:
        about["skipped"] = {skip.check: skip.reason for skip in decision.skipped}
    return logs.part(level, shown(decision.message, MOST_TEXT), about)
