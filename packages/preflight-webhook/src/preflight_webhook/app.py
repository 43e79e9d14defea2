"""The two HTTP applications: admission (TLS) and plain (health, metrics). Raw ASGI, because this is the hot path."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

from . import admission, logs, review
from .claims import Claim, Ref
from .config import Config
from .decision import Decision
from .lookups import Lookups, Unavailable
from .metrics import CONTENT_TYPE, Metrics
from .objects import Request
from .policies import Policies, Policy
from .policy import effective

__all__ = ["Admission", "Plain", "State"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PATH: Final = "/mutate-pod"
CONFINED_PATH: Final = PATH + "/confined"
"""For pods of namespaces whose Pod Security level forbids hostPath volumes: the API server tells those apart by their
label, so nobody here has to ask for it."""
MAX_BODY: Final = 3 * 1024 * 1024
"""Bytes. etcd takes objects of 1.5 MiB, and a review may hold two of them."""
_JSON: Final = (b"content-type", b"application/json")
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")

log = logging.getLogger(__name__)


@dataclass
class State:
    """What both applications share."""

    config: Config
    metrics: Metrics = field(default_factory=Metrics)
    lookups: Lookups | None = None
    policies: Policies | None = None
    started: bool = False
    stopping: bool = False
    _was_ready: bool = False

    def unready(self) -> str:
        """Why requests should go elsewhere; empty where they need not. Once ready, only stopping ends it."""
        if self.stopping:
            return "stopping"
        if self._was_ready:
            return ""
        if not self.started:
            return "starting"
        if self.policies is not None and self.config.preflight_configs.enabled and not self.policies.synced:
            return f"starting: PreflightConfigs of namespaces: {self.policies.problem}"
        self._was_ready = True
        return ""

    def policy(self, namespace: str) -> Policy | None:
        """What the namespace has set for itself, as far as it counts."""
        if self.policies is None or not self.config.preflight_configs.enabled:
            return None
        return self.policies.of(namespace)


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Admission:
    """Answers `POST /mutate-pod`. What is no review gets a 4xx with one sentence, and the server goes on."""

    def __init__(self, state: State) -> None:
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self.state.metrics.in_flight += 1
        try:
            await self._answer(scope, receive, send)
        finally:
            self.state.metrics.in_flight -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        uid = ""
        try:
            body = await _read(scope, receive)
            started = time.perf_counter()
            request = review.decode_review(body)
            uid = request.uid
            config, confined = self.state.config, scope["path"] == CONFINED_PATH
            if (policy := self.state.policy(request.namespace)) is not None:
                config = effective(config, policy.spec)
            decision = admission.decide(request.object, request.namespace, config, confined=confined)
            if decision.needs:
                claims = await self._claims(request.namespace, decision.needs)
                decision = admission.decide(request.object, request.namespace, config, claims, confined=confined)
            answer = review.encode_answer(uid, decision)
        except _Refused as error:
            await self._refuse(send, error.status, error.message)
            return
        except review.BadReview as error:
            await self._refuse(send, 400, str(error), uid)
            return
        except Unavailable as error:
            await self._refuse(send, 500, str(error), uid)  # of a 503 the API server does not show the user why
            return
        except Exception as error:
            # The API server applies its failurePolicy; the next request must find us alive.
            log.exception("admission failed", extra={"about": {"uid": uid}})
            await self._refuse(
                send, 500, f"internal error ({type(error).__name__}); the log of preflight-webhook has the story", uid
            )
            return
        metrics = self.state.metrics
        metrics.decided(decision.label, time.perf_counter() - started)
        metrics.bytes_read += len(body)
        metrics.bytes_sent += len(answer)
        _tell(metrics, request, decision, policy)
        await _respond(send, 200, answer, _JSON, last=self.state.stopping)

    async def _claims(self, namespace: str, needs: tuple[Ref, ...]) -> dict[Ref, Claim | None]:
        if self.state.lookups is None:
            raise Unavailable("the pod's resource claims cannot be looked up: there is no API server to ask")
        return await self.state.lookups.claims(namespace, needs)

    async def _refuse(self, send: Send, status: int, message: str, uid: str = "") -> None:
        self.state.metrics.rejected.labels(str(status)).inc()
        log.warning(
            "request refused: %s", message, extra={"about": {"status": status, **({"uid": uid} if uid else {})}}
        )
        await _respond(send, status, message.encode() + b"\n", _TEXT, last=self.state.stopping)


class Plain:
    """Answers `/healthz`, `/readyz` and `/metrics`."""

    def __init__(self, state: State) -> None:
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path == "/healthz":
            await _respond(send, 200, b"ok\n", _TEXT)
        elif path == "/readyz":
            why = self.state.unready()
            await _respond(send, 503 if why else 200, f"{why or 'ok'}\n".encode(), _TEXT)
        elif path == "/metrics":
            await _respond(send, 200, self.state.metrics.text(), (b"content-type", CONTENT_TYPE.encode()))
        else:
            await _respond(send, 404, b"not found; here are /healthz, /readyz and /metrics\n", _TEXT)


async def _read(scope: Scope, receive: Receive) -> bytes:
    """The whole body of an admission request, or why it is none."""
    if scope["path"] not in {PATH, CONFINED_PATH}:
        raise _Refused(404, f"not found; POST an AdmissionReview to {PATH}")
    if scope["method"] != "POST":
        raise _Refused(405, f"{scope['method']} is not allowed; POST an AdmissionReview to {PATH}")
    length = 0
    for name, value in scope["headers"]:
        if name == b"content-type" and value.split(b";", 1)[0].strip().lower() != b"application/json":
            raise _Refused(415, f"content-type {value.decode('latin-1')[:80]} is not supported; send application/json")
        if name == b"content-length":
            length = int(value)
    if length > MAX_BODY:
        raise _Refused(413, f"a body of {length} bytes is too large; the limit is {MAX_BODY}")
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Refused(400, "the connection ended within the body")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MAX_BODY:
            raise _Refused(413, f"a body of more than {MAX_BODY} bytes is too large")
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def _respond(
    send: Send, status: int, body: bytes, content_type: tuple[bytes, bytes], *, last: bool = False
) -> None:
    """``last``: of this connection; the client's next request goes elsewhere."""
    headers = [content_type, (b"content-length", str(len(body)).encode())]
    if last:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _tell(metrics: Metrics, request: Request, decision: Decision, policy: Policy | None) -> None:
    for skip in decision.skipped:
        metrics.skips.labels(skip.check, skip.reason).inc()
    if decision.stamp is not None:
        metrics.stamped(decision.stamp.source)
    if decision.unseen:
        metrics.unseen({one.kind for one in decision.unseen})
    told = decision.result in {"injected", "stamped", "denied"}
    if not log.isEnabledFor(logging.INFO if told else logging.DEBUG):
        return
    about: dict[str, object] = {
        "uid": request.uid,
        "namespace": request.namespace,
        "result": decision.result,
        "dry_run": request.dry_run,
    }
    if decision.stamp is not None:
        about["gang"] = decision.stamp.id
    if policy is not None:
        about["preflight_config"] = policy.name
    if decision.skipped:
        about["skipped"] = {skip.check: skip.reason for skip in decision.skipped}
    logs.line("info" if told else "debug", decision.message, about)
