"""The CustomResourceDefinition of ComputeDomain, field by field as NVIDIA's driver installs it.

Pure.
"""

from __future__ import annotations

from typing import Any, Final

from preflight_computedomain.api.names import GROUP, KIND, PLURAL, VERSION

__all__ = ["crd"]

_STATUS: Final = {"type": "string", "enum": ["Ready", "NotReady"], "default": "NotReady"}
_SPEC: Final = {
    "type": "object",
    "required": ["channel"],
    "x-kubernetes-validations": [
        {"rule": "self == oldSelf", "message": "A computeDomain.spec is immutable"}
    ],
    "properties": {
        "numNodes": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "Deprecated. It has no meaning where IMEX is host-managed.",
        },
        "channel": {
            "type": "object",
            "required": ["resourceClaimTemplate"],
            "properties": {
                "resourceClaimTemplate": {
                    "type": "object",
                    "required": ["name"],
                    "description": "The template to make, in this namespace; pods refer to it.",
                    "properties": {"name": {"type": "string"}},
                },
                "allocationMode": {
                    "type": "string",
                    "enum": ["All", "Single"],
                    "default": "Single",
                    "description": "Where IMEX is host-managed, pods start with Single alone.",
                },
            },
        },
    },
}
_NODE: Final = {
    "type": "object",
    "required": ["cliqueID", "ipAddress", "name"],
    "properties": {
        "name": {"type": "string"},
        "ipAddress": {"type": "string"},
        "cliqueID": {"type": "string"},
        "index": {"type": "integer"},
        "status": _STATUS,
    },
}


def crd() -> dict[str, Any]:
    """The object, ready for ``kubectl apply --server-side``."""
    schema = {
        "type": "object",
        "description": "Lets the pods of one workload use IMEX channels, for memory that GPUs of several nodes share.",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _SPEC,
            "status": {
                "type": "object",
                "required": ["status"],
                "properties": {
                    "status": {
                        **_STATUS,
                        "description": "Ready: the template exists. It says nothing about IMEX.",
                    },
                    "nodes": {
                        "type": "array",
                        "items": _NODE,
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                        "description": "Not written where IMEX is host-managed.",
                    },
                },
            },
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }
