"""Which PreflightConfig of a namespace is in force, and what is wrong with those that are not.

Pure. The API server refuses what makes no sense, by the CustomResourceDefinition
(:mod:`preflight_gang.api.crd`). What was stored under another one is invalid where the webhook
could not read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from preflight_kube.api import conditions
from preflight_kube.text import printable
from preflight_proto.policy import ACCEPTED, GROUP, KIND, VERSION, PreflightConfigSpec

LONGEST: Final = 4000
"""Characters of what is wrong; Kubernetes allows a message 32,768."""


class _About(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    namespace: str
    uid: str
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None


class _Status(msgspec.Struct, frozen=True, kw_only=True):
    conditions: tuple[dict[str, Any], ...] = ()


class StoredOverride(msgspec.Struct, frozen=True, kw_only=True):
    """A PreflightConfig as it stands in the cluster; ``spec`` is anything that was ever let in."""

    metadata: _About
    spec: Any = None
    status: _Status = _Status()


class OverrideVerdict(NamedTuple):
    """``reason`` is one of InForce, Superseded, Invalid, Terminating; ``message`` is for people."""

    accepted: bool
    reason: str
    message: str


def _unreadable(spec: object) -> str:
    """Why the webhook could not read a spec, in words; else empty."""
    try:
        msgspec.convert(spec, PreflightConfigSpec)
    except msgspec.ValidationError as error:
        return printable(str(error))[:LONGEST]
    return ""


def judge(policies: Iterable[StoredOverride]) -> list[tuple[StoredOverride, OverrideVerdict]]:
    """What becomes of the objects of one namespace, of which the oldest valid one is in force.

    By name where several are as old; whatever loses comes before what wins, so that never two are
    in force while it is written in this order.
    """
    judged: list[tuple[StoredOverride, OverrideVerdict]] = []
    winner: StoredOverride | None = None
    for one in sorted(policies, key=_age):
        namespace = one.metadata.namespace
        if one.metadata.deletion_timestamp is not None:
            reason, why = "Terminating", "Not in force: it is being deleted."
        elif wrong := _unreadable(one.spec):
            reason, why = "Invalid", f"Not in force: its spec cannot be read ({wrong})."
        elif winner is None:
            winner = one
            continue
        else:
            reason = "Superseded"
            why = f"Not in force: superseded by {winner.metadata.name}, the oldest of namespace {namespace}; keep one of them."
        judged.append((one, OverrideVerdict(False, reason, why)))
    if winner is not None:
        why = f"In force in namespace {winner.metadata.namespace}."
        judged.append((winner, OverrideVerdict(True, "InForce", why)))
    return judged


def _age(one: StoredOverride) -> tuple[str, str]:
    created = one.metadata.creation_timestamp
    return created.isoformat() if created is not None else "", one.metadata.name


def status(one: StoredOverride, verdict: OverrideVerdict, now: str) -> dict[str, Any] | None:
    """The object to write as its status, in the version it was read; None where it says so already.

    ``now`` is RFC 3339. Conditions of others stay as they are.
    """
    existing = [
        condition
        for condition in one.status.conditions
        if condition.get("type") != ACCEPTED or conditions.find([condition], ACCEPTED) is not None
    ]
    wanted = conditions.Condition(
        type=ACCEPTED,
        status="True" if verdict.accepted else "False",
        reason=verdict.reason,
        message=verdict.message,
        observed_generation=one.metadata.generation,
    )
    merged = conditions.merge(existing, [wanted], now)
    if merged == list(one.status.conditions):
        return None
    about = one.metadata
    metadata = {"name": about.name, "namespace": about.namespace, "uid": about.uid}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {**metadata, "resourceVersion": about.resource_version},
        "status": {"conditions": merged},
    }
