"""The wish, in three annotations; and what was decided at the creation, in one for life. Pure.

The webhook writes the decision; the controller reads it, and the webhook at each update, from the
stored object. Readers ignore unknown fields and refuse a higher version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from preflight_mnnvl.api import names
from preflight_mnnvl.api.types import Group, Metadata, PodCliqueSet, shown

Mode = Literal["driver", "literal"]
Scope = Literal["replica", "clique", "scalingGroupReplica"]
CLASS_WITHOUT_EFFECT: Final = (
    f"{names.DEVICE_CLASS} has no effect here: the DRA driver makes the claims (mode: driver)"
)
SCOPES: Final[tuple[Scope, ...]] = ("replica", "clique", "scalingGroupReplica")


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
    clique = (called[0], own or {})
    entry = (called[1], (group and group.annotations) or {})
    whole = (called[2], (set_ and set_.annotations) or {})
    # As Grove inherits its own, whatever our mode is.
    nearest = [clique, entry, whole] if grouped else [clique, whole]
    keys: dict[str, str] = {}
    at: dict[str, str] = {}
    for where, layer in [entry, clique] if grouped and mode == "literal" else nearest:
        for key in names.KEYS:
            if key not in keys and key in layer:
                keys[key], at[key] = layer[key], where
    key = names.GROVE_MNNVL_GROUP
    groves = next(((layer[key], where) for where, layer in nearest if key in layer), None)
    return FabricRequest(
        keys.get(names.ENABLED) == "true",
        keys.get(names.SCOPE) or "replica",
        keys.get(names.DEVICE_CLASS) or names.DEFAULT_DEVICE_CLASS,
        keys,
        at,
        None if groves is None or groves[0] == "none" else groves,
    )


def fabric_request(meta: Metadata, set_: PodCliqueSet | None, mode: Mode) -> FabricRequest:
    """The annotations in force for the PodClique ``meta``."""
    named = {name for key in names.PCSG_NAME if (name := meta.label(key))}
    replicas = [meta.label(key) for key in names.PCS_INDEX]
    group, whole = None, None
    if set_ is not None:
        whole, pcs = set_.metadata, set_.metadata.name
        for it in set_.groups if named else ():  # by its short or full name, which are exact
            if named & {it.name, *(f"{pcs}-{replica}-{it.name}" for replica in replicas)}:
                group = it
                break
    return resolve(meta.annotations, group, whole, grouped=bool(named), mode=mode)


def scope_of(text: str) -> Scope | None:
    """The scope that is called exactly so; None for what is none."""
    return next((scope for scope in SCOPES if scope == text), None)


def odd(value: str | None) -> str:
    """A warning where ``value`` of the first annotation is no switch; else empty."""
    if value is None or value in {"true", "false"}:
        return ""
    around = " with white space around it" if value != value.strip() else ""
    return f'{names.ENABLED} is "{shown(value, 40)}"{around}; only "true" switches it on'


VERSION: Final = 1
MOST_TEXT: Final = 16 * 1024


class MnnvlDecision(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """``gpu_claims``: the pod's own claims that give GPUs. ``restored``: in seconds of the epoch,
    when it was taken from the living domain, as the PodClique had lost its own; else 0.
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
    """The decision in the annotation; None for none that we wrote. Raises :class:`Newer`."""
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
    """The entry among the pod's resource claims: of a template, or of one claim for all."""
    key = "resourceClaimTemplateName" if decision.mode == "driver" else "resourceClaimName"
    return {"name": names.CLAIM, key: decision.claim}
