"""AdmissionReview: bytes in, bytes out."""

from __future__ import annotations

import binascii
from typing import Any, Final, TypeVar

import msgspec

from .decision import Decision
from .objects import AnyReview, Mount, Pod, Request, Resources, Review, SecurityContext

__all__ = [
    "BadReview",
    "decode_entries",
    "decode_mounts",
    "decode_pod",
    "decode_resources",
    "decode_review",
    "decode_security",
    "decode_whole",
    "decode_whole_of",
    "encode_answer",
    "encode_patch",
]

T = TypeVar("T")
API_VERSION: Final = "admission.k8s.io/v1"

_review = msgspec.json.Decoder(Review)
_any_review = msgspec.json.Decoder(AnyReview)
_pod = msgspec.json.Decoder(Pod)
_resources: msgspec.json.Decoder[Resources | None] = msgspec.json.Decoder(Resources | None)
_mounts: msgspec.json.Decoder[list[Mount] | None] = msgspec.json.Decoder(list[Mount] | None)
_security: msgspec.json.Decoder[SecurityContext | None] = msgspec.json.Decoder(SecurityContext | None)
_entries: msgspec.json.Decoder[list[dict[str, Any]] | None] = msgspec.json.Decoder(list[dict[str, Any]] | None)
_whole: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])
_encode = msgspec.json.Encoder().encode


class BadReview(ValueError):
    """The request is no review that this webhook can answer. The message is one sentence."""


def decode_review(body: bytes | bytearray) -> Request:
    """The request of a review, with the fields we read of its pod. Raises :class:`BadReview`."""
    try:
        review = _review.decode(body)  # review and pod in one pass: what the body costs is paid once
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        decode_pod(_any(body).request.object)  # says what is wrong, and where
        raise BadReview(f"the body is no AdmissionReview of a pod ({error})") from None
    _check(review)
    return review.request


def decode_whole_of(body: bytes | bytearray) -> dict[str, Any]:
    """The pod of a review, with everything in it. Raises :class:`BadReview`."""
    return decode_whole(_any(body).request.object)


def _any(body: bytes | bytearray) -> AnyReview:
    try:
        review = _any_review.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadReview(f"the body is no AdmissionReview ({error}); POST one of {API_VERSION} as JSON") from None
    _check(review)
    return review


def _check(review: Review | AnyReview) -> None:
    if review.kind != "AdmissionReview" or review.api_version != API_VERSION:
        raise BadReview(f"the body is a {review.api_version} {review.kind}, expected {API_VERSION} AdmissionReview")
    if review.request.kind.kind != "Pod" or review.request.kind.group:
        kind = "/".join(part for part in (review.request.kind.group, review.request.kind.kind) if part)
        raise BadReview(
            f"the review is about a {kind}, this webhook is for pods; mend the rules of its MutatingWebhookConfiguration"
        )


def decode_pod(raw: bytes | bytearray | msgspec.Raw) -> Pod:
    """The fields we read of a pod. Raises :class:`BadReview`."""
    try:
        return _pod.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadReview(f"request.object is no pod ({error})") from None


def decode_whole(raw: bytes | bytearray | msgspec.Raw) -> dict[str, Any]:
    """A pod with everything in it. Raises :class:`BadReview`."""
    whole: dict[str, Any] = _part(_whole, bytes(raw), "the pod")
    return whole


def encode_patch(patch: list[dict[str, Any]]) -> bytes:
    """A JSONPatch as an AdmissionReview carries it, a JSON string of base64; nothing for one that changes nothing."""
    return b"" if not patch else b'"%s"' % binascii.b2a_base64(_encode(patch), newline=False)


def decode_resources(raw: bytes) -> Resources | None:
    """A container's or a pod's resources. Raises :class:`BadReview`."""
    return _part(_resources, raw, "resources")


def decode_mounts(raw: bytes) -> list[Mount]:
    """A container's mounts. Raises :class:`BadReview`."""
    return _part(_mounts, raw, "volumeMounts") or []


def decode_security(raw: bytes) -> SecurityContext | None:
    """A container's security context. Raises :class:`BadReview`."""
    return _part(_security, raw, "securityContext")


def decode_entries(raw: bytes) -> list[dict[str, Any]]:
    """A container's list, such as its environment, whole; empty where it is none, which is the API server's to refuse."""
    try:
        return _entries.decode(raw) or []
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


def _part(decoder: msgspec.json.Decoder[T], raw: bytes, what: str) -> T:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadReview(f"request.object is no pod ({what}: {error})") from None


def encode_answer(uid: str, decision: Decision) -> bytes:
    """The AdmissionReview that answers the request ``uid``."""
    response: dict[str, object] = {"uid": uid, "allowed": not decision.denied}
    if decision.denied:
        response["status"] = {"code": 403, "reason": "Forbidden", "message": decision.message}
    elif decision.encoded:
        response["patchType"] = "JSONPatch"
        response["patch"] = msgspec.Raw(decision.encoded)
    if decision.warnings:
        response["warnings"] = decision.warnings
    return _encode({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})
