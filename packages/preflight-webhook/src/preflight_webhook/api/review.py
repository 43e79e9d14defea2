"""AdmissionReviews and parts of pods, decoded; text of others as it may be shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from preflight_kube.admission.review import API_VERSION, BadReview
from preflight_proto.printable import printable

from preflight_webhook.api.types import (
    AnyReview,
    DnsConfig,
    HostAlias,
    Pod,
    PodReview,
    PodReviewRequest,
    ResourceRequirements,
    SecurityContext,
    VolumeMount,
)

T = TypeVar("T")
Encoded = bytes | bytearray | msgspec.Raw
_review = msgspec.json.Decoder(PodReview)
_any_review = msgspec.json.Decoder(AnyReview)
_entries: Final[msgspec.json.Decoder[list[dict[str, Any]] | None]] = msgspec.json.Decoder(
    list[dict[str, Any]] | None
)


def shown(text: str, most: int = 256) -> str:
    """A tenant's ``text`` as it may stand in an answer or a log line: what would change a terminal
    or the order of reading is written out.
    """
    return text if len(text) <= most and text.isprintable() else printable(text, most)


class TooDeep(BadReview):
    """What was sent is nested deeper than any pod is."""


def _decode(decoder: msgspec.json.Decoder[T], raw: Encoded, what: str) -> T:
    """The one place where text of others is read here. ``what`` begins the
    sentence of the error.
    """
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise TooDeep(
            f"{what} (it is nested deeper than {sys.getrecursionlimit()} levels)"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadReview(f"{what} ({shown(str(error))})") from None


def decode_review(body: bytes | bytearray) -> PodReviewRequest:
    """The request of a review, with the fields we read of its pod. Raises :class:`BadReview`."""
    try:
        # Review and pod in one pass: what the body costs is paid once.
        review = _decode(_review, body, "the body is not an AdmissionReview of a pod")
    except TooDeep:
        raise
    except BadReview:
        decode_pod(_any(body).request.object)  # says what is wrong, and where
        raise
    _check(review)
    return review.request


def decode_whole_of(body: bytes | bytearray) -> dict[str, Any]:
    """The pod of a review, with everything in it. Raises :class:`BadReview`."""
    return decode_whole(_any(body).request.object)


def _any(body: bytes | bytearray) -> AnyReview:
    review = _decode(
        _any_review, body, f"the body is not an AdmissionReview; POST one of {API_VERSION} as JSON"
    )
    _check(review)
    return review


def _check(review: PodReview | AnyReview) -> None:
    if review.kind != "AdmissionReview" or review.api_version != API_VERSION:
        found = shown(f"{review.api_version} {review.kind}")
        raise BadReview(f"the body is a {found}, expected {API_VERSION} AdmissionReview")
    if review.request.kind.kind != "Pod" or review.request.kind.group:
        kind = shown(
            "/".join(part for part in (review.request.kind.group, review.request.kind.kind) if part)
        )
        raise BadReview(
            f"the review is about a {kind}, this webhook is for pods; correct the rules of its MutatingWebhookConfiguration"
        )


def _reader(shape: Any, part: str = "") -> Callable[[Encoded], Any]:
    """What reads JSON of ``shape``, a pod or a ``part`` of one. It raises :class:`BadReview`."""
    decoder = msgspec.json.Decoder(shape)
    what = f"request.object is not a pod{f': {part}' if part else ''}"
    return lambda raw: _decode(decoder, raw, what)


decode_pod: Callable[[Encoded], Pod] = _reader(Pod)
"""The fields we read of a pod."""
decode_whole: Callable[[Encoded], dict[str, Any]] = _reader(dict[str, Any])
"""A pod with everything in it."""
decode_resources: Callable[[bytes], ResourceRequirements | None] = _reader(
    ResourceRequirements | None, "resources"
)
decode_mounts: Callable[[bytes], Sequence[VolumeMount] | None] = _reader(
    list[VolumeMount] | None, "volumeMounts"
)
decode_security: Callable[[bytes], SecurityContext | None] = _reader(
    SecurityContext | None, "securityContext"
)
decode_aliases: Callable[[bytes], Sequence[HostAlias] | None] = _reader(
    list[HostAlias] | None, "hostAliases"
)
decode_dns: Callable[[bytes], DnsConfig | None] = _reader(DnsConfig | None, "dnsConfig")


def decode_entries(raw: bytes) -> list[dict[str, Any]]:
    """A container's list, such as its environment, whole; empty where it is none, which is the API
    server's to refuse.
    """
    try:
        return _decode(_entries, raw, "") or []
    except TooDeep:
        raise
    except BadReview:
        return []
