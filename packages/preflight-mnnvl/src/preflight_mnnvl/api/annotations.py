"""What is asked for: three annotations, each by itself from the nearest layer that has it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from preflight_mnnvl.api.names import (
    DEFAULT_DEVICE_CLASS,
    DEVICE_CLASS,
    ENABLED,
    GROVE_MNNVL_GROUP,
    KEYS,
    PCSG_NAME,
    SCOPE,
)
from preflight_mnnvl.api.types import Group, Metadata, PodCliqueSet, shown

__all__ = ["SCOPES", "Layer", "Mode", "Scope", "Wish", "odd", "resolve", "scope_of", "wish_of"]

Mode = Literal["driver", "literal"]
Scope = Literal["replica", "clique", "scalingGroupReplica"]
SCOPES: Final[tuple[Scope, ...]] = ("replica", "clique", "scalingGroupReplica")
Layer = tuple[str, Mapping[str, str]]
"""Where annotations stand, in words, and the annotations."""


class Wish(NamedTuple):
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
) -> Wish:
    """The effective wish of a PodClique, whose layers are ``called`` so in sentences.

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
        for key in KEYS:
            if key not in keys and key in layer:
                keys[key], at[key] = layer[key], where
    groves = next(
        (
            (found[GROVE_MNNVL_GROUP], where)
            for where, found in nearest
            if GROVE_MNNVL_GROUP in found
        ),
        None,
    )
    return Wish(
        keys.get(ENABLED) == "true",
        keys.get(SCOPE) or "replica",
        keys.get(DEVICE_CLASS) or DEFAULT_DEVICE_CLASS,
        keys,
        at,
        None if groves is None or groves[0] == "none" else groves,
    )


def wish_of(meta: Metadata, set_: PodCliqueSet | None, mode: Mode) -> Wish:
    """The effective wish of the PodClique ``meta``. Its scaling group is found by exact names:
    Grove's own search by the name's end would take `worker` for `gpu-worker`.
    """
    short, full = (meta.label(key) for key in PCSG_NAME)
    grouped = bool(short or full)
    group = None
    if set_ is not None and grouped:
        ends = {name for name in (short, full) if name}
        group = next(
            (
                one
                for one in set_.groups
                if one.name == short
                or any(
                    end == one.name or _is_full(end, set_.metadata.name, one.name) for end in ends
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
    return f'{ENABLED} is "{shown(value, 40)}"; only "true" switches it on'
