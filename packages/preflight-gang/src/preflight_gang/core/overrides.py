"""Which PreflightConfig of a namespace is in force, and what is wrong with those that are not.

Pure. What one may say stands in its schema (:class:`preflight_proto.policy.PreflightConfigSpec`)
and in :data:`RULES`. The CustomResourceDefinition is made from the same two
(:mod:`preflight_gang.api.crd`), so the API server refuses nearly all of what is refused here; what
is left was stored under another definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from preflight_kube.api import conditions
from preflight_kube.files import schema
from preflight_proto.policy import ACCEPTED, GROUP, KIND, VERSION, PreflightConfigSpec

from preflight_gang.api.crd import RULES

LONGEST: Final = 4000
"""Characters of a message; Kubernetes allows 32,768."""


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


def problems(spec: object) -> list[str]:
    """Every problem of a spec, one sentence each, beginning with its path."""
    found = schema.problems(_SCHEMA, {"spec": spec}, "the object")
    return found or [
        f"{at}: {rule.message}."
        for rule in RULES
        for at, it in _at(spec, rule.at)
        if not rule.holds(it)
    ]


_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["spec"],
    "properties": {"spec": {"$ref": "#/$defs/PreflightConfigSpec"}},
    "$defs": msgspec.json.schema(PreflightConfigSpec)["$defs"],
}


def _at(spec: Any, way: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The object at ``way`` with its path, where there is one."""
    where = "spec"
    for key in way:
        if key not in spec:
            return
        spec, where = spec[key], f"{where}.{key}"
    yield where, spec


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
        elif wrong := problems(one.spec):
            reason, why = "Invalid", _cut(" ".join(wrong))
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


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


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
