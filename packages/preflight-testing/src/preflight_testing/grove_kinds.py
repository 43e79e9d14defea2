"""Definitions of the kinds that Grove and NVIDIA's driver bring, with just the fields that are used
here; structural, so that a typo is pruned.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

CONDITIONS = [object]


class Schema(Json):
    """Stands in a :func:`schema`'s example as it is."""


def schema(of: Any) -> Json:
    """The schema of what ``of`` shows: ``int``, ``str`` or ``bool``; ``object``, whatever it has;
    ``[items]``; ``{str: values}``; else an object with these fields.
    """
    if isinstance(of, Schema):
        return of
    if isinstance(of, list):
        return {"type": "array", "items": schema(of[0])}
    if not isinstance(of, dict):
        return dict(TYPES[of])
    if str in of:
        return {"type": "object", "additionalProperties": schema(of[str])}
    return {"type": "object", "properties": {name: schema(field) for name, field in of.items()}}


TYPES: dict[type, Json] = {
    int: {"type": "integer", "format": "int32"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    object: {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}


def crd(
    group: str,
    kind: str,
    plural: str,
    versions: dict[str, Json],
    *,
    short: str = "",
    scale: bool = False,
) -> Json:
    """A CustomResourceDefinition; ``versions``: each one's schema, the first is stored."""
    subresources: Json = {"status": {}}
    if scale:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
        }
    names = {
        "kind": kind,
        "plural": plural,
        "singular": kind.lower(),
        **({"shortNames": [short]} if short else {}),
    }
    served = [
        {
            "name": version,
            "served": True,
            "storage": i == 0,
            "schema": {"openAPIV3Schema": shown},
            "subresources": subresources,
        }
        for i, (version, shown) in enumerate(versions.items())
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": served},
    }


def kind(api: str, name: str, plural: str, spec: Any, status: Any, **more: Any) -> Json:
    """The definition of a kind, by a :func:`schema` of each half; ``more``: crd's options."""
    group, version = api.split("/")
    shown = schema({"spec": spec, "status": status})
    return crd(group, name, plural, {version: shown}, **more)


CLIQUE = {
    "roleName": str,
    "podSpec": object,
    "replicas": int,
    "minAvailable": int,
    "startsAfter": [str],
}
ANNOTATIONS = {str: str}
SET = {
    "replicas": Schema({**TYPES[int], "default": 0}),
    "template": {
        "cliques": [
            {"name": str, "labels": {str: str}, "annotations": ANNOTATIONS, "spec": CLIQUE}
        ],
        "podCliqueScalingGroups": [
            {"name": str, "cliqueNames": [str], "annotations": ANNOTATIONS}
            | {"replicas": int, "minAvailable": int}
        ],
        "terminationDelay": str,
        "cliqueStartupType": str,
    },
}
GROUP = {"replicas": int, "minAvailable": int, "cliqueNames": [str]}
REFERENCES = [{"namespace": str, "name": str}]
GANG = {
    "podgroups": [{"name": str, "podReferences": REFERENCES, "minReplicas": int}],
    "priorityClassName": str,
}
COUNTED = {"replicas": int, "conditions": CONDITIONS}
READY = {"readyReplicas": int, "scheduledReplicas": int}
ALPHA = "grove.io/v1alpha1"

GROVE: list[Json] = [
    kind(ALPHA, "PodCliqueSet", "podcliquesets", SET, COUNTED, short="pcs", scale=True),
    kind(ALPHA, "PodClique", "podcliques", CLIQUE, COUNTED | READY, short="pclq", scale=True),
    kind(
        *(ALPHA, "PodCliqueScalingGroup", "podcliquescalinggroups", GROUP, COUNTED),
        short="pcsg",
        scale=True,
    ),
    kind(
        *("scheduler.grove.io/v1alpha1", "PodGang", "podgangs"),
        GANG,
        {"phase": str, "conditions": CONDITIONS},
        short="pg",
    ),
]


def compute_domains(*, literal: bool = False) -> Json:
    """``v1beta1`` as the driver defines it, immutable and with a required channel; ``literal``:
    ``v1alpha1`` without one.
    """
    mode = Schema({"type": "string", "enum": ["Single", "All"]})
    channel = {"resourceClaimTemplate": {"name": str}, "allocationMode": mode}
    fixed = [{"rule": "self == oldSelf", "message": "A computeDomain.spec is immutable"}]
    rules: Json = {"x-kubernetes-validations": fixed} | (
        {} if literal else {"required": ["channel"]}
    )
    spec = schema({"numNodes": int} | ({} if literal else {"channel": channel})) | rules
    node = {"name": str, "ipAddress": str, "cliqueID": str, "index": int, "status": str}
    version = "v1alpha1" if literal else "v1beta1"
    return kind(
        *(f"resource.nvidia.com/{version}", "ComputeDomain", "computedomains"),
        Schema(spec),
        {"status": str, "nodes": [node]},
    )
