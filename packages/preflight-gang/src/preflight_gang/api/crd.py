"""The CustomResourceDefinitions of PreflightConfig, with the rules that its schema cannot say, and
of NodeHealth. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from preflight_kube.api import crd as definitions
from preflight_kube.api import node_health
from preflight_kube.api.conditions import Conditions
from preflight_kube.api.crd import Column, condition_column
from preflight_proto import names
from preflight_proto.policy import ACCEPTED, GROUP, KIND, PLURAL, VERSION, PreflightConfigSpec


class OverrideRule(NamedTuple):
    """What a schema cannot say about the object ``at``: in CEL for the API server, and for us.

    A test asks both about the same objects.
    """

    at: tuple[str, ...]
    cel: str
    holds: Callable[[Mapping[str, Any]], bool]
    message: str


def _reads(option: str, methods: tuple[str, ...]) -> OverrideRule:
    listed = ", ".join(f"'{method}'" for method in methods)
    return OverrideRule(
        ("gangDiscovery",),
        f"!has(self.{option}) || !has(self.method) || self.method in [{listed}]",
        lambda it: option not in it or it.get("method", methods[0]) in methods,
        f"{option} is read only where method is {' or '.join(methods)}; set method so, or leave {option} out",
    )


def _not_ours(key: str) -> OverrideRule:
    return OverrideRule(
        ("gangDiscovery", "labels"),
        f"!has(self.{key}) || !self.{key}.startsWith('{names.PREFIX}')",
        lambda it: not it.get(key, "").startswith(names.PREFIX),
        f"{key} is below {names.PREFIX}, where users' labels are removed; choose another label",
    )


RULES: Final = (
    OverrideRule(
        (),
        "has(self.gangDiscovery) || has(self.enforcement)",
        lambda it: "gangDiscovery" in it or "enforcement" in it,
        "nothing is set; set gangDiscovery or enforcement, or delete the object",
    ),
    _reads("labels", ("auto", "labels")),
    _reads("ownerSchedulers", ("auto", "kai")),
    OverrideRule(
        ("gangDiscovery", "labels"),
        "!has(self.gangIdLabel) || !has(self.gangSizeLabel) || self.gangIdLabel != self.gangSizeLabel",
        lambda it: "gangIdLabel" not in it or it["gangIdLabel"] != it.get("gangSizeLabel"),
        "gangIdLabel and gangSizeLabel are the same label; give the size one of its own",
    ),
    _not_ours("gangIdLabel"),
    _not_ours("gangSizeLabel"),
)


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
    rules = [
        definitions.ValidationRule(("spec", *rule.at), rule.cel, rule.message) for rule in RULES
    ]
    return definitions.crd(
        GROUP,
        KIND,
        VERSION,
        spec=PreflightConfigSpec,
        status=OverrideStatus,
        plural=PLURAL,
        description="What a namespace sets for itself. Of several the oldest is in force; the condition Accepted says which, and why not.",
        rules=rules,
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
