"""The CustomResourceDefinitions of PreflightConfig, with the rules that its schema cannot say, and
of NodeHealth. Pure.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from preflight_kube.api import crd as definitions
from preflight_kube.api import node_health
from preflight_kube.api.conditions import Conditions
from preflight_kube.api.crd import Column, ValidationRule, condition_column
from preflight_proto import names
from preflight_proto.policy import ACCEPTED, GROUP, KIND, PLURAL, VERSION, PreflightConfigSpec

_DISCOVERY: Final = ("spec", "gangDiscovery")
_LABELS: Final = (*_DISCOVERY, "labels")


def _reads(option: str, methods: tuple[str, ...]) -> ValidationRule:
    listed = ", ".join(f"'{method}'" for method in methods)
    return ValidationRule(
        _DISCOVERY,
        f"!has(self.{option}) || !has(self.method) || self.method in [{listed}]",
        f"{option} is read only where method is {' or '.join(methods)}; set method so, or leave {option} out",
    )


def _not_ours(key: str) -> ValidationRule:
    return ValidationRule(
        _LABELS,
        f"!has(self.{key}) || !self.{key}.startsWith('{names.PREFIX}')",
        f"{key} is below {names.PREFIX}, where users' labels are removed; choose another label",
    )


RULES: Final = (
    ValidationRule(
        ("spec",),
        "has(self.gangDiscovery) || has(self.enforcement)",
        "nothing is set; set gangDiscovery or enforcement, or delete the object",
    ),
    _reads("labels", ("auto", "labels")),
    _reads("ownerSchedulers", ("auto", "kai")),
    ValidationRule(
        _LABELS,
        "!has(self.gangIdLabel) || !has(self.gangSizeLabel) || self.gangIdLabel != self.gangSizeLabel",
        "gangIdLabel and gangSizeLabel are the same label; give the size one of its own",
    ),
    _not_ours("gangIdLabel"),
    _not_ours("gangSizeLabel"),
)
"""What its schema cannot say, for the API server."""


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
        rules=RULES,
        columns=_COLUMNS,
    )


def node_health_crd() -> dict[str, Any]:
    """The object, ready for `kubectl apply --server-side`."""
    return definitions.crd(
        node_health.GROUP,
        node_health.KIND,
        node_health.VERSION,
        spec=node_health.NodeHealthSpec,
        status=node_health.NodeHealthStatus,
        plural=node_health.PLURAL,
        short_names=["nh"],
        scope="Cluster",
        description="What conditions and checks say of the node of the same name. Written by the gang controller alone.",
        columns=(
            Column("State", ".status.state"),
            Column("Since", ".status.since", "date"),
            Column("Found by", ".status.foundBy"),
            Column("Code", ".status.code"),
            Column("Last pass", ".status.lastPass", "date"),
            Column("GB/s", ".status.measured", "number"),
            Column("Usual", ".status.usual", "number"),
            Column("GPU", ".status.gpu", priority=1),
            Column("By word of", ".status.byWordOf", priority=1),
            Column("Repaired", ".status.repaired", "date", priority=1),
            Column("Revalidated", ".status.revalidated", "date", priority=1),
        ),
    )
