"""Definitions of the kinds that Grove and NVIDIA's driver bring, with just the fields that are used
here; structural, so that a typo is pruned.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

INTEGER: Json = {"type": "integer", "format": "int32"}
TEXT: Json = {"type": "string"}
TEXTS: Json = {"type": "array", "items": TEXT}
MAP: Json = {"type": "object", "additionalProperties": TEXT}
CONDITIONS: Json = {
    "type": "array",
    "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}


def _object(**fields: Json) -> Json:
    return {"type": "object", "properties": fields}


def _list(**fields: Json) -> Json:
    return {"type": "array", "items": _object(**fields)}


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
            "schema": {"openAPIV3Schema": schema},
            "subresources": subresources,
        }
        for i, (version, schema) in enumerate(versions.items())
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": served},
    }


def _kind(spec: Json, **status: Json) -> Json:
    return _object(spec=spec, status=_object(**status))


CLIQUE: Json = _object(
    roleName=TEXT,
    podSpec={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    replicas=INTEGER,
    minAvailable=INTEGER,
    startsAfter=TEXTS,
)
SET = _object(
    replicas={**INTEGER, "default": 0},
    template=_object(
        cliques=_list(name=TEXT, labels=MAP, annotations=MAP, spec=CLIQUE),
        podCliqueScalingGroups=_list(
            name=TEXT, cliqueNames=TEXTS, annotations=MAP, replicas=INTEGER, minAvailable=INTEGER
        ),
        terminationDelay=TEXT,
        cliqueStartupType=TEXT,
    ),
)
GANG = _object(
    podgroups=_list(name=TEXT, podReferences=_list(namespace=TEXT, name=TEXT), minReplicas=INTEGER),
    priorityClassName=TEXT,
)
COUNTED: Json = {
    "replicas": INTEGER,
    "readyReplicas": INTEGER,
    "scheduledReplicas": INTEGER,
    "conditions": CONDITIONS,
}

GROVE: list[Json] = [
    crd(
        "grove.io",
        "PodCliqueSet",
        "podcliquesets",
        {"v1alpha1": _kind(SET, replicas=INTEGER, conditions=CONDITIONS)},
        short="pcs",
        scale=True,
    ),
    crd(
        "grove.io",
        "PodClique",
        "podcliques",
        {"v1alpha1": _kind(CLIQUE, **COUNTED)},
        short="pclq",
        scale=True,
    ),
    crd(
        "grove.io",
        "PodCliqueScalingGroup",
        "podcliquescalinggroups",
        {
            "v1alpha1": _kind(
                _object(replicas=INTEGER, minAvailable=INTEGER, cliqueNames=TEXTS),
                replicas=INTEGER,
                conditions=CONDITIONS,
            )
        },
        short="pcsg",
        scale=True,
    ),
    crd(
        "scheduler.grove.io",
        "PodGang",
        "podgangs",
        {"v1alpha1": _kind(GANG, phase=TEXT, conditions=CONDITIONS)},
        short="pg",
    ),
]


def compute_domains(*, literal: bool = False) -> Json:
    """``v1beta1`` as the driver defines it, immutable and with a required channel; ``literal``:
    ``v1alpha1`` without one.
    """
    channel = _object(
        resourceClaimTemplate=_object(name=TEXT),
        allocationMode={"type": "string", "enum": ["Single", "All"]},
    )
    nodes = _list(name=TEXT, ipAddress=TEXT, cliqueID=TEXT, index=INTEGER, status=TEXT)
    fixed = [{"rule": "self == oldSelf", "message": "A computeDomain.spec is immutable"}]
    spec = {
        **_object(numNodes=INTEGER, channel=channel),
        "required": ["channel"],
        "x-kubernetes-validations": fixed,
    }
    plain = {**_object(numNodes=INTEGER), "x-kubernetes-validations": fixed}
    status: Json = {"status": TEXT, "nodes": nodes}
    schema = _kind(plain, status=TEXT, nodes=nodes) if literal else _kind(spec, **status)
    return crd(
        "resource.nvidia.com",
        "ComputeDomain",
        "computedomains",
        {"v1alpha1" if literal else "v1beta1": schema},
    )
