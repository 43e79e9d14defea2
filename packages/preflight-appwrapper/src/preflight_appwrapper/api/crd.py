"""The CustomResourceDefinition of AppWrapper, from the Structs that the controller reads. Pure.

What these leave open, because they survive a bad field, is closed here.
"""

from __future__ import annotations

from typing import Any, Final

from preflight_kube.api import crd as definitions
from preflight_kube.api.crd import Column, condition_column, embedded, list_map

from preflight_appwrapper.api.names import GROUP, KIND, PLURAL
from preflight_appwrapper.api.types import AppWrapperSpec, AppWrapperStatus

_COLUMNS: Final = (
    Column("Status", ".status.phase"),
    condition_column("QuotaReserved", name="Quota Reserved"),
    condition_column("ResourcesDeployed", name="Resources Deployed"),
    condition_column("Unhealthy"),
    Column("Age", ".metadata.creationTimestamp", "date"),
)


def crd() -> dict[str, Any]:
    """The object, ready for `kubectl apply --server-side`."""
    definition = definitions.crd(
        GROUP,
        KIND,
        "v1beta2",
        spec=AppWrapperSpec,
        status=AppWrapperStatus,
        plural=PLURAL,
        short_names=["aw"],
        description="The complete manifests of a workload, which is created, watched, reset and deleted as one.",
        columns=_COLUMNS,
        defaults=False,
    )
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    _plain(schema)
    spec["required"] = ["components"]
    component = _items(spec, "components")
    component["required"] = ["template"]
    component["properties"]["template"] = {"type": "object", **embedded()}
    _pod_set(_items(component, "podSets"))
    info = _items(component, "podSetInfos")
    kept = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    info["properties"]["tolerations"]["items"] = kept
    _items(info, "schedulingGates")["required"] = ["name"]
    _int32(status, "resettingCount", "migrationCount")
    _conditions(status)
    known = _items(status, "componentStatus")
    known["required"] = ["name", "kind", "apiVersion", "podSets"]
    _conditions(known)
    _pod_set(_items(known, "podSets"))
    return definition


def _items(part: dict[str, Any], name: str) -> dict[str, Any]:
    items: dict[str, Any] = part["properties"][name]["items"]
    return items


def _int32(part: dict[str, Any], *names: str) -> None:
    for name in names:
        part["properties"][name] = {"type": "integer", "format": "int32"}


def _pod_set(part: dict[str, Any]) -> None:
    part["required"] = ["path"]
    _int32(part, "replicas")


def _conditions(part: dict[str, Any]) -> None:
    part["properties"]["conditions"].update(list_map("type"))
    condition = _items(part, "conditions")
    condition["required"] = ["type", "status", "reason", "message", "lastTransitionTime"]
    properties = condition["properties"]
    properties["status"]["enum"] = ["True", "False", "Unknown"]
    properties["lastTransitionTime"] = {"type": "string", "format": "date-time"}
    properties["observedGeneration"]["minimum"] = 0


def _plain(part: Any) -> None:
    """Without what a definition does not say: null has no meaning of its own."""
    if isinstance(part, dict):
        part.pop("nullable", None)
        for value in part.values():
            _plain(value)
