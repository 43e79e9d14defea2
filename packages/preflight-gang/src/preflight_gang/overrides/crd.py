"""The CustomResourceDefinition of PreflightConfig, made from its schema and rules. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from preflight_kube.api import crd as definitions
from preflight_kube.api.conditions import Conditions
from preflight_kube.api.crd import Column, condition_column
from preflight_proto.policy import ACCEPTED, GROUP, KIND, PLURAL, VERSION, PreflightConfigSpec

from .acceptance import RULES

__all__ = ["crd"]


class OverrideStatus(msgspec.Struct):
    """Written by the gang controller."""

    conditions: Conditions = ()


_COLUMNS: Final = (
    condition_column(ACCEPTED),
    condition_column(ACCEPTED, "reason", name="Reason"),
    Column("Gangs by", ".spec.gangDiscovery.method"),
    Column("Enforcement", ".spec.enforcement"),
    Column("Age", ".metadata.creationTimestamp", "date"),
    condition_column(ACCEPTED, "message", name="Message", priority=1),
)


def crd() -> dict[str, Any]:
    """The object, ready for `kubectl apply --server-side`."""
    return definitions.crd(
        GROUP,
        KIND,
        VERSION,
        spec=PreflightConfigSpec,
        status=OverrideStatus,
        plural=PLURAL,
        description="What a namespace sets for itself. Of several the oldest is in force; the condition Accepted says which, and why not.",
        rules=[
            definitions.ValidationRule(("spec", *rule.at), rule.cel, rule.message) for rule in RULES
        ],
        columns=_COLUMNS,
    )
