"""Pods of reviews and parts of them, decoded; text of others as it may be shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from preflight_kube.admission.review import AdmissionRequest, Alike, BadReview
from preflight_proto.printable import printable

from preflight_webhook.api.types import (
    DnsConfig,
    HostAlias,
    NameOnly,
    Pod,
    ResourceRequirements,
    SecurityContext,
)

T = TypeVar("T")
Encoded = bytes | bytearray | msgspec.Raw
_entries: Final[msgspec.json.Decoder[list[dict[str, Any]] | None]] = msgspec.json.Decoder(
    list[dict[str, Any]] | None
)


def shown(text: str, most: int = 256) -> str:
    """A tenant's ``text`` as it may stand in an answer or a log line: what would change a terminal
    or the order of reading is written out.
    """
    return text if len(text) <= most and text.isprintable() else printable(text, most)


def _decode(decoder: msgspec.json.Decoder[T], raw: Encoded, what: str) -> T:
    """The one place where text of others is read here. ``what`` begins the
    sentence of the error.
    """
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise BadReview(
            f"{what} (it is nested deeper than {sys.getrecursionlimit()} levels)"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadReview(f"{what} ({shown(str(error))})") from None


def _reader(shape: Any, part: str = "") -> Callable[[Encoded], Any]:
    """What reads JSON of ``shape``, a pod or a ``part`` of one. It raises :class:`BadReview`."""
    decoder = msgspec.json.Decoder(shape)
    what = f"request.object is not a pod{f': {part}' if part else ''}"
    return lambda raw: _decode(decoder, raw, what)


decode_pod: Callable[[Encoded], Pod] = _reader(Pod)
"""The fields we read of a pod."""
_pods: Final = Alike[Pod]()
"""Read of the last reviews; not to be changed."""
decode_whole: Callable[[Encoded], dict[str, Any]] = _reader(dict[str, Any])
"""A pod with everything in it."""


def pod_of(request: AdmissionRequest) -> Pod:
    """The fields we read of the pod that a review is about. Raises :class:`BadReview`."""
    about = request.kind
    if about.kind != "Pod" or about.group:
        kind = shown("/".join(part for part in (about.group, about.kind) if part))
        raise BadReview(
            f"the review is about a {kind}, this webhook is for pods; correct the rules of its MutatingWebhookConfiguration"
        )
    raw = bytes(request.object)
    if (pod := _pods.get(raw)) is None:
        pod = decode_pod(raw)
        _pods.keep(raw, pod)
    return pod


decode_resources: Callable[[bytes], ResourceRequirements | None] = _reader(
    ResourceRequirements | None, "resources"
)
decode_mounts: Callable[[bytes], Sequence[NameOnly] | None] = _reader(
    list[NameOnly] | None, "volumeMounts"
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
    except BadReview:
        return []
