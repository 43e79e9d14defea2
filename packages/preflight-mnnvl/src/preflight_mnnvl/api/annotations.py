"""The wish: three annotations, each by itself from the nearest layer that has it; and what
was decided about a PodClique at its creation, as it carries it for life in one annotation. Pure.

The webhook writes the decision; the controller reads it, and the webhook at each update, from the
stored object. Readers ignore unknown fields and refuse a higher version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from preflight_mnnvl.api import names
from preflight_mnnvl.api.types import Group, Metadata, PodCliqueSet, shown

__all__ = [
    "CLASS_WITHOUT_EFFECT",
    "SCOPES",
    "VERSION",
    "FabricRequest",
    "Layer",
    "MnnvlDecision",
    "Mode",
    "Newer",
    "Scope",
    "fabric_request",
    "odd",
    "pod_claim",
    "read_decision",
    "resolve",
    "scope_of",
    "write_decision",
]

Mode = Literal["driver", "literal"]
Scope = Literal["replica", "clique", "scalingGroupReplica"]
CLASS_WITHOUT_EFFECT: Final = (
    f"{names.DEVICE_CLASS} has no effect here: the DRA driver makes the claims (mode: driver)"
)
SCOPES: Final[tuple[Scope, ...]] = ("replica", "clique", "scalingGroupReplica")
Layer = tuple[str, Mapping[str, str]]
"""Where annotations stand, in words, and the annotations."""


class FabricRequest(NamedTuple):
    """``keys``: the effective annotations, none invented. ``at``: which layer each came from.
    ``group``: Grove's own wish in force, and its layer.
    """

    enabled: bool
    scope: str
    device_class: str
    keys: dict[str, str]
    at: dict[str, str]
    group: tuple[str, str] | None


def resolve(
    own: Mapping[str, str] | None,
    group: Group | None,
    set_: Metadata | None,
    *,
    grouped: bool,
    mode: Mode,
    called: tuple[str, str, str] = ("the PodClique", "the scaling group", "the PodCliqueSet"),
) -> FabricRequest:
    """The annotations in force for a PodClique, whose layers are ``called`` so in sentences.

    ``grouped``: it belongs to a scaling group, whose entry is ``group`` where it is known.
    `driver`: the clique's own annotations, then the group's, then the set's. `literal`, as the
    requirement has it: of a scaling group's clique the group, then the clique, and never the set.
    """
    clique: Layer = (called[0], own or {})
    entry: Layer = (called[1], (group and group.annotations) or {})
    whole: Layer = (called[2], (set_ and set_.annotations) or {})
    nearest = (
        [clique, entry, whole] if grouped else [clique, whole]
    )  # as Grove inherits its own, whatever our mode is
    keys: dict[str, str] = {}
    at: dict[str, str] = {}
    for where, layer in [entry, clique] if grouped and mode == "literal" else nearest:
        for key in names.KEYS:
            if key not in keys and key in layer:
                keys[key], at[key] = layer[key], where
    groves = next(
        (
            (layer[names.GROVE_MNNVL_GROUP], where)
            for where, layer in nearest
            if names.GROVE_MNNVL_GROUP in layer
        ),
        None,
    )
    return FabricRequest(
        keys.get(names.ENABLED) == "true",
        keys.get(names.SCOPE) or "replica",
        keys.get(names.DEVICE_CLASS) or names.DEFAULT_DEVICE_CLASS,
        keys,
        at,
        None if groves is None or groves[0] == "none" else groves,
    )


def fabric_request(meta: Metadata, set_: PodCliqueSet | None, mode: Mode) -> FabricRequest:
    """The annotations in force for the PodClique ``meta``. Its scaling group is found by exact
    names: Grove's own search by the name's end would take `worker` for `gpu-worker`.
    """
    short, full = (meta.label(key) for key in names.PCSG_NAME)
    grouped = bool(short or full)
    group = None
    if set_ is not None and grouped:
        ends = {name for name in (short, full) if name}
        group = next(
            (
                entry
                for entry in set_.groups
                if entry.name == short
                or any(
                    end == entry.name or _is_full(end, set_.metadata.name, entry.name)
                    for end in ends
                )
            ),
            None,
        )
    return resolve(
        meta.annotations, group, set_.metadata if set_ else None, grouped=grouped, mode=mode
    )


def _is_full(full: str, pcs: str, group: str) -> bool:
    replica = full.removeprefix(f"{pcs}-").removesuffix(f"-{group}")
    return full == f"{pcs}-{replica}-{group}" and replica.isascii() and replica.isdecimal()


def scope_of(text: str) -> Scope | None:
    """The scope that is called exactly so; None for what is none."""
    return next((scope for scope in SCOPES if scope == text), None)


def odd(value: str | None) -> str:
    """A warning where ``value`` of the first annotation looks like a switch and is none; else
    empty.
    """
    if value is None or value in {"true", "false"}:
        return ""
    return f'{names.ENABLED} is "{shown(value, 40)}"; only "true" switches it on'


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
    device_class: str = names.DEFAULT_DEVICE_CLASS
    gpu_claims: tuple[str, ...] = ()
    restored: int = 0


class _Version(msgspec.Struct):
    v: int = 0


class Newer(ValueError):
    """The decision was written by a later version; the message is one clause."""


_encoder: Final = msgspec.json.Encoder(order="deterministic")
_decoder: Final = msgspec.json.Decoder(MnnvlDecision)
_version: Final = msgspec.json.Decoder(_Version)


def write_decision(decision: MnnvlDecision) -> str:
    """The annotation: the same bytes for the same decision."""
    return _encoder.encode(decision).decode()


def read_decision(text: str | None) -> MnnvlDecision | None:
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
    return {"name": names.CLAIM, key: decision.claim}
