"""Pods of reviews and parts of them, decoded; text of others as it may be shown."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from preflight_kube.admission.review import AdmissionRequest, Alike, BadReview
from preflight_proto.printable import printable

from preflight_webhook.api.types import Pod, ResourceRequirements

T = TypeVar("T")
Encoded = bytes | bytearray | msgspec.Raw
_list: Final = list[dict[str, Any]] | None
_map: Final = dict[str, Any] | None
_entries: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(_list)


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


@dataclass(slots=True)
class DecodedPod:
    """A pod as it was read, not to be changed. ``last``: what was made of it in
    :mod:`..core.admit`, behind all else that this follows from, the configuration first.
    """

    pod: Pod
    last: tuple[tuple[Any, ...], Any] = ((None,), None)


_pods: Final = Alike[DecodedPod]()
"""Read of the last reviews."""
decode_whole: Callable[[Encoded], dict[str, Any]] = _reader(dict[str, Any])
"""A pod with everything in it."""


def pod_of(request: AdmissionRequest) -> DecodedPod:
    """The fields we read of the pod that a review is about. Raises :class:`BadReview`."""
    about = request.kind
    if about.kind != "Pod" or about.group:
        kind = shown("/".join(part for part in (about.group, about.kind) if part))
        raise BadReview(
            f"the review is about a {kind}, this webhook is for pods; correct the rules of its MutatingWebhookConfiguration"
        )
    if (read := _pods.get(request.object)) is None:
        raw = request.object.copy()
        read = DecodedPod(decode_pod(raw))
        _pods.keep(raw, read)
    return read


decode_resources: Callable[[bytes], ResourceRequirements | None] = _reader(
    ResourceRequirements | None, "resources"
)
decode_mounts: Callable[[bytes], list[dict[str, Any]] | None] = _reader(_list, "volumeMounts")
decode_aliases: Callable[[bytes], list[dict[str, Any]] | None] = _reader(_list, "hostAliases")
decode_security: Callable[[bytes], dict[str, Any] | None] = _reader(_map, "securityContext")
decode_dns: Callable[[bytes], dict[str, Any] | None] = _reader(_map, "dnsConfig")


def texts(value: object) -> list[str]:
    """The strings of a list; none of what is no list, which is the API server's to refuse."""
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def decode_entries(raw: bytes) -> list[dict[str, Any]]:
    """A container's list, such as its environment, whole; empty where it is none, which is the API
    server's to refuse.
    """
    try:
        return _decode(_entries, raw, "") or []
    except BadReview:
        return []
