"""The CustomResourceDefinition of PreflightConfig, made from its schema and rules.

Pure. Kubernetes wants a *structural* schema: a type on every level and no references.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from preflight_proto.policy import ACCEPTED, GROUP, KIND, PLURAL, VERSION, Spec

from .policy import RULES

__all__ = ["crd"]

Schema = dict[str, Any]

_NO_STRUCTURE: Final = frozenset({"title", "default"})


def crd() -> Schema:
    """The object, ready for `kubectl apply --server-side`."""
    whole = {
        "type": "object",
        "description": "What a namespace sets for itself. Of several the oldest is in force; the condition Accepted says which, and why not.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _ruled(_structural(msgspec.json.schema(Spec))),
            "status": _STATUS,
        },
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": whole},
        "subresources": {"status": {}},
        "additionalPrinterColumns": _COLUMNS,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": KIND.lower()},
            "versions": [version],
        },
    }


def _structural(schema: Schema) -> Schema:
    definitions = schema.get("$defs", {})

    def inline(part: Schema) -> Schema:
        if "$ref" in part:
            return inline(definitions[part["$ref"].removeprefix("#/$defs/")])
        made = {key: value for key, value in part.items() if key not in _NO_STRUCTURE and value != []}
        if "enum" in made:
            made["type"] = "string"
        if "items" in made:
            made["items"] = inline(made["items"])
        if "properties" in made:
            made["properties"] = {name: inline(value) for name, value in made["properties"].items()}
        return made

    return inline({"$ref": schema["$ref"]})


def _ruled(spec: Schema) -> Schema:
    for rule in RULES:
        place = spec
        for key in rule.at:
            place = place["properties"][key]
        place.setdefault("x-kubernetes-validations", []).append({"rule": rule.cel, "message": rule.message})
    return spec


_STATUS: Final[Schema] = {
    "type": "object",
    "description": "Written by the gang controller.",
    "properties": {
        "conditions": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": {
                "type": "object",
                "required": ["type", "status", "reason", "message", "lastTransitionTime"],
                "properties": {
                    "type": {"type": "string", "maxLength": 316},
                    "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                    "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
                    "message": {"type": "string", "maxLength": 32768},
                    "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
                    "lastTransitionTime": {"type": "string", "format": "date-time"},
                },
            },
        }
    },
}


def _condition(field: str) -> str:
    return f'.status.conditions[?(@.type=="{ACCEPTED}")].{field}'


_COLUMNS: Final = [
    {"name": ACCEPTED, "type": "string", "jsonPath": _condition("status")},
    {"name": "Reason", "type": "string", "jsonPath": _condition("reason")},
    {"name": "Gangs by", "type": "string", "jsonPath": ".spec.gangDiscovery.method"},
    {"name": "Enforcement", "type": "string", "jsonPath": ".spec.enforcement"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Message", "type": "string", "priority": 1, "jsonPath": _condition("message")},
]
