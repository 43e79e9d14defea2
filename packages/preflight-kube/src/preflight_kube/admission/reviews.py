"""The ASGI application that answers AdmissionReviews: each path is an application of its own."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from preflight_kube.admission import limits, review
from preflight_kube.admission import request_body as body
from preflight_kube.admission.fast_path import HttpAnswer
from preflight_kube.admission.metrics import ReviewMetrics
from preflight_kube.admission.request_body import Body, Receive, ReviewRefused, Scope
from preflight_kube.admission.review import AdmissionRequest, BadReview, Response
from preflight_kube.client import budget
from preflight_kube.logs import get_logger

Application = Callable[[AdmissionRequest], Awaitable[Response]]
"""Decides about one request. Where it raises :class:`~.review.BadReview` the request is denied, and
:class:`~.request_body.ReviewRefused` is answered as it says; whatever else it raises is answered
with status 500, on which the API server applies the failurePolicy."""
Immediate = Callable[[AdmissionRequest], Response | None]
"""Decides without waiting; None where the application at its path must do so. What it raises is
nobody's: the application is asked then, too."""
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LONGEST: Final = 10.0
"""Seconds for an answer where the API server does not say how long it waits; its default."""
SPARE: Final = 0.5
"""Seconds before the API server's own time-out, so that our sentence reaches the user rather than
its.
"""
_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain; charset=utf-8"
_ASKED: Final = "asked at once"
"""Where a request's scope holds the review for which an answer without waiting has been asked."""
_DURATION: Final = re.compile(r"(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")

log = get_logger(__name__)


class Unavailable(Exception):
    """An application cannot answer just now; the message is one sentence for the user."""


class _Metadata(msgspec.Struct, rename="camel"):
    deletion_timestamp: str | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class Reviews:
    """``applications`` by path. A review too large or too deep to be read, or beyond one of the
    :mod:`~.limits`, is denied before its application sees it, so that failurePolicy Ignore admits
    nothing unseen; what is not a review is refused with 4xx. ``longest``: seconds for an answer,
    at most.

    ``at_once``, by path too: asked before the application. Where the whole review came in one
    piece, its answer leaves without a task of its own.
    """

    def __init__(
        self,
        applications: Mapping[str, Application],
        metrics: ReviewMetrics,
        *,
        longest: float = LONGEST,
        at_once: Mapping[str, Immediate] | None = None,
    ) -> None:
        self._applications, self._metrics, self._longest = dict(applications), metrics, longest
        self._immediate = dict(at_once or {})
        self._callers = budget.Callers(limits.CALLER_A_SECOND, limits.CALLER_AT_ONCE)
        self.immediate = bool(at_once)
        """Whether some reviews are answered where their last byte is read."""
        self.stopping = False
        """Set it, and each answer closes its connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        if scope["type"] != "http":
            return
        try:
            if (refused := body.problem(scope, self._applications)) is not None:
                raise refused
            payload = await body.read(scope, receive)
            status, kind, answer = 200, _JSON, await self._answered(scope, payload)
        except ReviewRefused as error:
            self._metrics.refused.labels(str(error.status)).inc()
            about = {"uid": error.uid} if error.uid else {}
            about |= {"why": error.message, "path": scope["path"][:200]}
            log.warning("request refused", status=error.status, **about)
            status, kind, answer = error.status, _TEXT, error.message.encode() + b"\n"
        headers = [(b"content-type", kind), (b"content-length", str(len(answer)).encode())]
        if self.stopping:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def at_once(self, scope: Scope, whole: bytes | bytearray) -> HttpAnswer | None:
        """The answer to a review that nobody need wait for; what is out of the ordinary goes the
        usual way.
        """
        started, path = time.perf_counter(), scope["path"]
        if path not in self._immediate or body.problem(scope, self._immediate) is not None:
            return None
        try:
            request = review.decode(whole)
        except BadReview:  # it is raised again, and answered, there
            return None
        if (response := self._without_waiting(scope, request)) is None:
            return None
        answer = self._counted(path, request.uid, response, started, len(whole))
        return HttpAnswer(200, answer, _JSON, self.stopping)

    def _without_waiting(self, scope: Scope, request: AdmissionRequest) -> Response | None:
        """The answer where it takes no waiting; each request is asked about once."""
        decide = self._immediate.get(scope["path"])
        if decide is None or _ASKED in scope:
            return None
        scope[_ASKED] = request
        with suppress(Exception):  # it is raised again, and answered, by the application
            return self._beyond(scope["path"], request) or decide(request)
        return None

    async def _answered(self, scope: Scope, whole: Body) -> bytes:
        """The review that answers. Raises :class:`ReviewRefused`."""
        started, path = time.perf_counter(), scope["path"]
        raw, status = whole.read(), 413
        why = f"its review of {whole.size} bytes is too large: {whole.dropped}; make it smaller"
        try:
            request = None if whole.dropped else scope.get(_ASKED) or review.decode(raw)
        except BadReview as error:
            request, why, status = None, str(error), 400
        if request is None:
            uid, response = _unread(path, raw, why, status)
        else:
            uid, address = request.uid, (scope.get("client") or ("",))[0]
            seconds = min(self._longest, _patience(scope.get("query_string", b"")) or self._longest)
            response = self._without_waiting(scope, request) or await self._decided(
                path, request, seconds, address
            )
        return self._counted(path, uid, response, started, whole.size)

    def _counted(self, path: str, uid: str, response: Response, started: float, read: int) -> bytes:
        """The review that answers."""
        answer = review.encode(uid, response)
        result = response.result or (
            "denied" if not response.allowed else "patched" if response.patch else "allowed"
        )
        self._metrics.answered(path, result, time.perf_counter() - started, read, len(answer))
        return answer

    async def _decided(
        self, path: str, request: AdmissionRequest, seconds: float, address: str
    ) -> Response:
        about = {"uid": request.uid[:128], "path": path}
        try:
            if (beyond := self._beyond(path, request)) is not None:
                return beyond
            if self._callers.beyond(address):
                raise Unavailable(
                    f"reviews from {address} make more than {limits.CALLER_A_SECOND} requests to the API server a second; this is tried again"
                )
            async with asyncio.timeout(seconds):
                with budget.requests(limits.REQUESTS, self._callers, address):
                    return await self._applications[path](request)
        except budget.BudgetSpent as error:
            return Response.denied(f"the object cannot be judged: {error}; make it smaller.")
        except BadReview as error:
            # Of an HTTP status 400 the API server does not show the user why.
            return Response.denied(f"{error}.", code=400)
        except ReviewRefused:
            raise
        except Unavailable as error:
            # Of a 503 the API server does not show the user why.
            raise self._failed(about, str(error)) from None
        except TimeoutError:
            log.error("admission took too long", seconds=seconds, **about)
            raise self._failed(
                about, f"there was no answer within {seconds:g} s; see the log of the webhook"
            ) from None
        except Exception as error:
            # The API server applies its failurePolicy; the next request must find us alive.
            log.exception("admission failed", **about)
            why = f"internal error ({type(error).__name__}); see the log of the webhook"
            raise self._failed(about, why) from None

    def _beyond(self, path: str, request: AdmissionRequest) -> Response | None:
        """The answer to what is beyond a limit; None where nothing is. What is on its way out may
        still lose its finalizers.
        """
        if not (why := limits.of_request(request)):
            return None
        if request.operation == "UPDATE" and request.old(_Object).metadata.deletion_timestamp:
            return Response()
        uid = request.uid[:128]
        log.warning("review denied before its application", why=why, uid=uid, path=path)
        return Response.denied(why)

    def _failed(self, about: Mapping[str, str], why: str) -> ReviewRefused:
        self._metrics.failed(about["path"])
        return ReviewRefused(500, why, about["uid"])


def _unread(path: str, beginning: bytes, why: str, status: int) -> tuple[str, Response]:
    """(its uid, the answer to a review that was not read): it is denied. What is not a review is
    refused.
    """
    if not (uid := review.uid_of(beginning)):
        raise ReviewRefused(status, why)
    log.warning("review denied unread", uid=uid, path=path, why=why)
    return uid, Response.denied(f"the object cannot be looked at: {why}.", code=status)


@lru_cache(maxsize=64)
def _patience(query: bytes) -> float | None:
    """Seconds that the API server will wait for the answer, less what the way takes; None where it
    does not say.
    """
    asked = parse_qs(query[:1000].decode("latin-1")).get("timeout", [""])[0]
    match = _DURATION.fullmatch(asked)
    if match is None or not asked:
        return None
    seconds = 60 * int(match[1] or 0) + float(match[2] or 0)
    return max(seconds - SPARE, seconds / 2)
