"""AdmissionReviews and parts of pods, decoded; text of others as it may be shown."""

from __future__ import annotations

import sys
from typing import Any, TypeVar

import msgspec
from preflight_kube.admission.review import (
    API_VERSION,
    MOST_TEXT,
    MOST_WARNINGS,
    BadReview,
    uid_of,
)
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

__all__ = [
    "MOST_TEXT",
    "MOST_WARNINGS",
    "BadReview",
    "TooDeep",
    "decode_aliases",
    "decode_dns",
    "decode_entries",
    "decode_mounts",
    "decode_pod",
    "decode_resources",
    "decode_review",
    "decode_security",
    "decode_whole",
    "decode_whole_of",
    "shown",
    "uid_of",
]

T = TypeVar("T")
_review = msgspec.json.Decoder(PodReview)
_any_review = msgspec.json.Decoder(AnyReview)
_pod = msgspec.json.Decoder(Pod)
_resources: msgspec.json.Decoder[ResourceRequirements | None] = msgspec.json.Decoder(
    ResourceRequirements | None
)
_mounts: msgspec.json.Decoder[list[VolumeMount] | None] = msgspec.json.Decoder(
    list[VolumeMount] | None
)
_security: msgspec.json.Decoder[SecurityContext | None] = msgspec.json.Decoder(
    SecurityContext | None
)
_aliases: msgspec.json.Decoder[list[HostAlias] | None] = msgspec.json.Decoder(
    list[HostAlias] | None
)
_dns: msgspec.json.Decoder[DnsConfig | None] = msgspec.json.Decoder(DnsConfig | None)
_entries: msgspec.json.Decoder[list[dict[str, Any]] | None] = msgspec.json.Decoder(
    list[dict[str, Any]] | None
)
_whole: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


def shown(text: str, most: int = 256) -> str:
    """A tenant's ``text`` as it may stand in an answer or a log line: what would change a terminal
    or the order of reading is written out.
    """
    return text if len(text) <= most and text.isprintable() else printable(text, most)


class TooDeep(BadReview):
    """What was sent is nested deeper than any pod is."""


def _decode(decoder: msgspec.json.Decoder[T], raw: bytes | bytearray | msgspec.Raw, what: str) -> T:
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


def decode_pod(raw: bytes | bytearray | msgspec.Raw) -> Pod:
    """The fields we read of a pod. Raises :class:`BadReview`."""
    return _decode(_pod, raw, "request.object is not a pod")


def decode_whole(raw: bytes | bytearray | msgspec.Raw) -> dict[str, Any]:
    """A pod with everything in it. Raises :class:`BadReview`."""
    return _decode(_whole, raw, "request.object is not a pod")


def decode_resources(raw: bytes) -> ResourceRequirements | None:
    """A container's or a pod's resources. Raises :class:`BadReview`."""
    return _part(_resources, raw, "resources")


def decode_mounts(raw: bytes) -> list[VolumeMount]:
    """A container's mounts. Raises :class:`BadReview`."""
    return _part(_mounts, raw, "volumeMounts") or []


def decode_security(raw: bytes) -> SecurityContext | None:
    """A container's security context. Raises :class:`BadReview`."""
    return _part(_security, raw, "securityContext")


def decode_aliases(raw: bytes) -> list[HostAlias]:
    """A pod's hostAliases. Raises :class:`BadReview`."""
    return _part(_aliases, raw, "hostAliases") or []


def decode_dns(raw: bytes) -> DnsConfig | None:
    """A pod's dnsConfig. Raises :class:`BadReview`."""
    return _part(_dns, raw, "dnsConfig")


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


def _part(decoder: msgspec.json.Decoder[T], raw: bytes, what: str) -> T:
    return _decode(decoder, raw, f"request.object is not a pod: {what}")
