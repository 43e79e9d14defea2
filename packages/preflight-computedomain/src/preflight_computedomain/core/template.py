"""The ResourceClaimTemplate that a ComputeDomain asks for, and whose one is. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from preflight_computedomain.api import names
from preflight_computedomain.api.opaque_config import domain_of
from preflight_computedomain.api.types import ClaimTemplate, ComputeDomain

_REQUEST: Final = "channel"


def labels_of(uid: str) -> dict[str, str]:
    """Labels that say whose a template is, and that it is a workload's."""
    return {names.LABEL: uid, names.TARGET_LABEL: names.WORKLOAD}


def body(domain: ComputeDomain) -> dict[str, Any]:
    """The template to create for ``domain``."""
    # In alphabetical order: the API server compares the bytes of parameters, and a patch of a label
    # writes them anew, sorted.
    parameters = {
        "allocationMode": domain.spec.channel.allocation_mode,
        "apiVersion": names.API_VERSION,
        "domainID": domain.metadata.uid,
        "kind": names.CHANNEL_CONFIG,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": domain.template,
            "namespace": domain.metadata.namespace,
            "finalizers": [names.FINALIZER],
            "labels": labels_of(domain.metadata.uid),
        },
        "spec": {
            "spec": {
                "devices": {
                    "requests": [
                        {"name": _REQUEST, "exactly": {"deviceClassName": names.CHANNEL_CLASS}}
                    ],
                    "config": [
                        {
                            "requests": [_REQUEST],
                            "opaque": {"driver": names.DRIVER, "parameters": parameters},
                        }
                    ],
                }
            }
        },
    }


def owner(template: ClaimTemplate) -> str:
    """The uid of the ComputeDomain whose template this is; empty where it is nobody's.

    It is whose uid its one configuration for this driver names, which nobody can change, if its
    labels, where it still has them, say so too.
    """
    configs = template.configs
    uid = domain_of(configs[0]) if len(configs) == 1 else ""
    labels = template.metadata.labels
    ours = (
        labels.get(names.LABEL, uid) == uid
        and labels.get(names.TARGET_LABEL, names.WORKLOAD) == names.WORKLOAD
    )
    return uid if ours else ""


def repair_patch(template: ClaimTemplate, uid: str) -> dict[str, Any] | None:
    """A merge patch that puts back labels and finalizer; None where all are there."""
    about = template.metadata
    change: dict[str, Any] = {}
    if missing := dict(labels_of(uid).items() - about.labels.items()):
        change["labels"] = missing
    if names.FINALIZER not in about.finalizers:
        change["finalizers"] = [*about.finalizers, names.FINALIZER]
    return {"metadata": {**change, "resourceVersion": about.resource_version}} if change else None


def released(finalizers: Iterable[str], resource_version: str) -> dict[str, Any]:
    """A merge patch without our finalizer; of another version it is refused."""
    kept = [name for name in finalizers if name != names.FINALIZER]
    return {"metadata": {"finalizers": kept or None, "resourceVersion": resource_version}}
