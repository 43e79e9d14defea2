"""The two HTTP applications: admission (TLS) and plain (health, metrics). Raw ASGI, because this is
the hot path.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from preflight_kube import logs
from preflight_kube.admission.fast_path import HttpAnswer
from preflight_kube.admission.request_body import Body, Receive, ReviewRefused, Scope, problem, read
from preflight_kube.admission.review import MOST_TEXT, BadReview, uid_of
from preflight_kube.files.polling import Looks

from preflight_webhook.api import review
from preflight_webhook.api.review import shown
from preflight_webhook.api.types import PodReviewRequest
from preflight_webhook.config.config import Config
from preflight_webhook.config.merged_config import effective
from preflight_webhook.core import admit as admission
from preflight_webhook.core.decision import UNKNOWN, Decision, encode_answer
from preflight_webhook.core.detect.claims import DeviceClaim, Ref
from preflight_webhook.core.limits import OBJECT_NAME
from preflight_webhook.metrics import CONTENT_TYPE, Metrics
from preflight_webhook.webhook.claim_lookups import Lookups, LookupUnavailable
from preflight_webhook.webhook.namespace_overrides import NamespaceOverride, NamespaceOverrides

__all__ = ["Admission", "Plain", "ServingState"]

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PATH: Final = "/mutate-pod"
CONFINED_PATH: Final = PATH + "/confined"
"""For pods of namespaces whose Pod Security level forbids hostPath volumes: the API server says
those apart by their label, so nobody here has to ask for it."""
WAITING: Final = 8 * 1024 * 1024
"""Bytes of the reviews of one namespace that may wait for claims at a time."""
BEHIND: Final = 300.0
"""Seconds for which PreflightConfigs may go unread before requests should go elsewhere."""
_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain; charset=utf-8"
_PATHS: Final = (PATH, CONFINED_PATH)
_PENDING: Final = "preflight.pending"
"""Where a request's scope holds what was worked out of it before it turned out that somebody must
be asked.
"""

log = logs.get_logger(__name__)


@dataclass
class ServingState:
    """What both applications share."""

    config: Config
    metrics: Metrics = field(default_factory=Metrics)
    lookups: Lookups | None = None
    policies: NamespaceOverrides | None = None
    started: bool = False
    stopping: bool = False
    server_problem: Callable[[], str] = str
    """Why the admission port cannot be used, such as its certificate; empty where it can."""
    _was_ready: bool = False

    def __post_init__(self) -> None:
        self.looks = Looks(self.metrics.watching)

    def unready(self) -> str:
        """Why requests should go elsewhere; empty where they need not.

        What ends it is what would also keep a new replica from becoming ready, or what no restart
        would notice by itself.
        """
        if self.stopping:
            return "stopping"
        if not self.started:
            return "starting"
        if problem := self.server_problem() or self.looks.unready():
            return problem
        if self.policies is not None and self.config.preflight_configs.enabled:
            if not self.policies.synced and not self._was_ready:
                return f"starting: PreflightConfigs of namespaces: {self.policies.problem}"
            if self.policies.behind_for() > BEHIND:
                return f"PreflightConfigs of namespaces have not been read for {BEHIND:g} s: {self.policies.problem}"
        self._was_ready = True
        return ""

    def rules(self, namespace: str) -> tuple[Config, NamespaceOverride | None]:
        """The configuration that holds in ``namespace``, and what of it the namespace has set for
        itself.
        """
        if self.policies is None or not self.config.preflight_configs.enabled:
            return self.config, None
        if (policy := self.policies.of(namespace)) is None:
            return self.config, None
        return effective(self.config, policy.spec), policy


class _TooLarge(Exception):
    """A body of which only the beginning was kept."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.size, self.uid = body.size, uid_of(body.read())
        self.message = f"its review of {body.size} bytes is too large: {body.dropped}"


class _Pending(NamedTuple):
    """A review and the rules that hold for it, and what its pod ``needs`` to be asked for before it
    can be answered.
    """

    started: float
    body: bytes | bytearray
    request: PodReviewRequest
    confined: bool
    config: Config
    policy: NamespaceOverride | None
    needs: tuple[Ref, ...] = ()


class _Application:
    def __init__(self, state: ServingState) -> None:
        self.state = state

    @property
    def stopping(self) -> bool:
        """Whether each answer closes its connection."""
        return self.state.stopping

    @stopping.setter
    def stopping(self, now: bool) -> None:
        self.state.stopping = now


class Admission(_Application):
    """Answers `POST /mutate-pod`. What is not a review gets a 4xx with one sentence, and the server
    goes on.
    """

    immediate = True

    def __init__(self, state: ServingState) -> None:
        super().__init__(state)
        self._waiting: dict[str, int] = {}  # bytes, by namespace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        if scope["type"] != "http":
            return
        self.state.metrics.in_flight += 1
        try:
            answer = scope.get(_PENDING) or self._begin(scope["path"], await _read(scope, receive))
            while not isinstance(answer, HttpAnswer):
                answer = await self._after_lookup(answer)
            await _respond(send, answer)
        except ReviewRefused as error:
            await _respond(send, self._refuse(error.status, error.message))
        except _TooLarge as error:
            await _respond(send, self._unread(error.uid, error.message, error.size, 413))
        finally:
            self.state.metrics.in_flight -= 1

    def at_once(self, scope: Scope, body: bytes | bytearray) -> HttpAnswer | None:
        """The answer to a review, unless it takes a look-up, or the request is none: then the usual
        way says so.
        """
        if problem(scope, _PATHS) is not None:
            return None
        answer = self._begin(scope["path"], body)
        if isinstance(answer, HttpAnswer):
            return answer
        scope[_PENDING] = answer
        return None

    def _begin(self, path: str, body: bytes | bytearray) -> HttpAnswer | _Pending:
        """The answer, where all that it takes is known."""
        started, uid, state = time.perf_counter(), "", self.state
        try:
            request = review.decode_review(body)
            uid, namespace = request.uid, request.namespace
            pending = _Pending(
                started, body, request, path == CONFINED_PATH, *state.rules(namespace)
            )
            recall = partial(state.lookups.known, namespace) if state.lookups is not None else None
            return self._decided(pending, recall=recall)
        except Exception as error:
            return self._failed(error, uid, body)

    async def _after_lookup(self, pending: _Pending) -> HttpAnswer | _Pending:
        request, body = pending.request, pending.body
        try:
            claims = await self._claims(request.namespace, pending.needs, len(body))
            return self._decided(pending, claims)
        except Exception as error:
            return self._failed(error, request.uid, body)

    async def _claims(
        self, namespace: str, needs: tuple[Ref, ...], size: int
    ) -> Mapping[Ref, DeviceClaim | None]:
        if self.state.lookups is None:
            raise LookupUnavailable(
                "the pod's resource claims cannot be looked up: there is no API server to ask"
            )
        if (waiting := self._waiting.get(namespace, 0) + size) > WAITING:
            raise LookupUnavailable(
                f"the pod's resource claims cannot be looked up: {waiting} bytes of reviews of namespace {namespace} would wait for "
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

    def _decided(
        self,
        pending: _Pending,
        claims: Mapping[Ref, DeviceClaim | None] | None = None,
        recall: admission.Recall | None = None,
    ) -> HttpAnswer | _Pending:
        started, body, request, confined, config, policy, _ = pending
        decision = admission.decide(
            body,
            request.namespace,
            config,
            claims,
            confined=confined,
            recall=recall,
            read=request.object,
        )
        if decision.needs:
            return pending._replace(needs=decision.needs)
        answer, metrics = encode_answer(request.uid, decision), self.state.metrics
        metrics.decided(decision.label, time.perf_counter() - started)
        metrics.bytes_read += len(body)
        metrics.bytes_sent += len(answer)
        _record(metrics, request, decision, policy)
        return HttpAnswer(200, answer, _JSON, self.state.stopping)

    def _unread(self, uid: str, why: str, size: int, status: int) -> HttpAnswer:
        """The answer to a review that was not read: its pod is denied, so that failurePolicy Ignore
        admits nothing unchecked. What is not a review is refused."""
        if not uid:
            return self._refuse(status, why)
        self.state.metrics.decided("denied", 0.0)
        self.state.metrics.bytes_read += size
        message = f"the pod cannot be looked at: {shown(why)}; make it smaller, or use a namespace without preflight checks."
        logs.line("info", message, {"uid": uid, "result": "denied"})
        return HttpAnswer(
            200,
            encode_answer(uid, Decision("denied", message)),
            _JSON,
            last=self.state.stopping,
        )

    def _failed(self, error: Exception, uid: str, body: bytes | bytearray) -> HttpAnswer:
        if isinstance(error, review.TooDeep | RecursionError):
            # What decodes may say where; of what is worked out nobody knows.
            deep = isinstance(error, review.TooDeep) and str(error)
            why = deep or "the pod is nested too deep"
            return self._unread(uid or uid_of(body), why, len(body), 400)
        if isinstance(error, BadReview):
            return self._refuse(400, str(error), uid)
        # Not 503: of that one the API server does not show the user why.
        if isinstance(error, LookupUnavailable):
            return self._refuse(500, str(error), uid)
        # The API server applies its failurePolicy; the next request must find us alive.
        log.exception("admission failed", uid=uid)
        kind = type(error).__name__
        return self._refuse(500, f"internal error ({kind}); see the log of preflight-webhook", uid)

    def _refuse(self, status: int, message: str, uid: str = "") -> HttpAnswer:
        self.state.metrics.rejected.labels(str(status)).inc()
        log.warning("request refused", status=status, why=message, **({"uid": uid} if uid else {}))
        return HttpAnswer(status, message.encode() + b"\n", _TEXT, last=self.state.stopping)


class Plain(_Application):
    """Answers `/healthz`, `/readyz` and `/metrics`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        if scope["type"] == "http":
            await _respond(send, self._answer(scope["path"]))

    def _answer(self, path: str) -> HttpAnswer:
        if path == "/healthz":
            return HttpAnswer(200, b"ok\n", _TEXT)
        if path == "/readyz":
            why = self.state.unready()
            return HttpAnswer(503 if why else 200, f"{why or 'ok'}\n".encode(), _TEXT)
        if path == "/metrics":
            return HttpAnswer(200, self.state.metrics.text(), CONTENT_TYPE.encode())
        return HttpAnswer(404, b"not found; here are /healthz, /readyz and /metrics\n", _TEXT)


async def _read(scope: Scope, receive: Receive) -> bytes:
    """The whole body of an admission request. Raises
    :class:`~preflight_kube.admission.request_body.ReviewRefused` and :class:`_TooLarge`.
    """
    if (refused := problem(scope, _PATHS)) is not None:
        raise refused
    body = await read(scope, receive)
    if body.dropped:
        raise _TooLarge(body)
    return body.read()


async def _respond(send: Send, answer: HttpAnswer) -> None:
    headers = [
        (b"content-type", answer.content_type),
        (b"content-length", str(len(answer.body)).encode()),
    ]
    if answer.last:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def _record(
    metrics: Metrics,
    request: PodReviewRequest,
    decision: Decision,
    policy: NamespaceOverride | None,
) -> None:
    for skip in decision.skipped:
        metrics.skips.labels(skip.check, skip.reason).inc()
    if decision.stamp is not None:
        metrics.stamped(decision.stamp.source)
    if decision.unseen:
        metrics.unseen({one.kind for one in decision.unseen})
    told = decision.result in {"injected", "stamped", "denied"} or any(
        skip.reason == UNKNOWN for skip in decision.skipped
    )
    if not log.enabled("info" if told else "debug"):
        return
    metadata = request.object.metadata
    about: dict[str, object] = {
        "uid": shown(request.uid),
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
        decision.logged = _common(decision, "info" if told else "debug")
    logs.line_of(decision.logged, about)


def _common(decision: Decision, level: str) -> bytes:
    """What the log says of the decision about all of the pods that it is for."""
    about: dict[str, object] = {"result": decision.result}
    if decision.stamp is not None:
        about["gang"] = shown(decision.stamp.id)
    if decision.skipped:
        about["skipped"] = {skip.check: skip.reason for skip in decision.skipped}
    return logs.part(level, shown(decision.message, MOST_TEXT), about)
