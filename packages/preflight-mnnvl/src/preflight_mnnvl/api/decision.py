"""What was decided about a PodClique at its creation, as it carries it for life in one annotation.
Pure.

Written by the webhook, read by the controller and, from the stored object, by the webhook at each
update. Readers ignore unknown fields and refuse a higher version.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from preflight_mnnvl.api.annotations import Mode, Scope
from preflight_mnnvl.api.names import CLAIM, DEFAULT_DEVICE_CLASS

__all__ = ["VERSION", "MnnvlDecision", "Newer", "pod_claim", "read", "write"]

VERSION: Final = 1
MOST_TEXT: Final = 16 * 1024


class MnnvlDecision(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """``gpu_claims``: the pod's own claims that give GPUs, as they were looked up
    at the creation. ``restored``: when the decision was taken from the living domain, as the
    PodClique had lost its own, in seconds of the epoch; else 0.
    """

    v: int
    mode: Mode
    scope: Scope
    cd: str
    claim: str
    gang: str
    placement: Literal["any", "fabric"] = "any"
    device_class: str = DEFAULT_DEVICE_CLASS
    gpu_claims: tuple[str, ...] = ()
    restored: int = 0


class _Version(msgspec.Struct):
    v: int = 0


class Newer(ValueError):
    """The decision was written by a later version; the message is one clause."""


_encoder: Final = msgspec.json.Encoder(order="deterministic")
_decoder: Final = msgspec.json.Decoder(MnnvlDecision)
_version: Final = msgspec.json.Decoder(_Version)


def write(decision: MnnvlDecision) -> str:
    """The annotation: the same bytes for the same decision."""
    return _encoder.encode(decision).decode()


def read(text: str | None) -> MnnvlDecision | None:
    """The decision in the annotation; None where there is none that we wrote. Raises
    :class:`Newer`.
    """
    if not text or len(text) > MOST_TEXT:
        return None
    try:
        v = _version.decode(text).v
        if v > VERSION:
            raise Newer(
                f"its decision has version {v}, and this program knows {VERSION}; install the release that wrote it, or a later one"
            )
        return _decoder.decode(text) if v == VERSION else None
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


def pod_claim(decision: MnnvlDecision) -> dict[str, str]:
    """The entry among the pod's resource claims. `driver`: a claim for each pod, from the template;
    `literal`: one claim for all.
    """
    key = "resourceClaimTemplateName" if decision.mode == "driver" else "resourceClaimName"
    return {"name": CLAIM, key: decision.claim}
