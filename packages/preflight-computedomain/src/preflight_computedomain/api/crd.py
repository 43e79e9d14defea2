"""The CustomResourceDefinition of ComputeDomain, as NVIDIA's driver installs it. Pure."""

from __future__ import annotations

from typing import Any, Final

from preflight_kube.api.crd import list_map

from preflight_computedomain.api.names import GROUP, KIND, PLURAL, VERSION

_TEXT: Final = {"type": "string"}
_STATUS: Final = {"type": "string", "enum": ["Ready", "NotReady"], "default": "NotReady"}


def _object(*required: str, **fields: dict[str, Any]) -> dict[str, Any]:
    must = {"required": list(required)} if required else {}
    # Copies: YAML has references to what is there twice.
    return {"type": "object", **must, "properties": {key: {**fields[key]} for key in fields}}


def crd() -> dict[str, Any]:
    """The object, ready for ``kubectl apply --server-side``."""
    template = _object("name", name=_TEXT) | {
        "description": "The template to make, in this namespace; pods refer to it."
    }
    mode = {
        "type": "string",
        "enum": ["All", "Single"],
        "default": "Single",
        "description": "Where IMEX is host-managed, pods start with Single alone.",
    }
    nodes = {
        "type": "integer",
        "minimum": 0,
        "default": 0,
        "description": "Deprecated. It has no meaning where IMEX is host-managed.",
    }
    channel = _object("resourceClaimTemplate", resourceClaimTemplate=template, allocationMode=mode)
    spec = _object("channel", numNodes=nodes, channel=channel) | {
        "x-kubernetes-validations": [
            {"rule": "self == oldSelf", "message": "A computeDomain.spec is immutable"}
        ]
    }
    node = _object(
        "cliqueID",
        "ipAddress",
        "name",
        name=_TEXT,
        ipAddress=_TEXT,
        cliqueID=_TEXT,
        index={"type": "integer"},
        status=_STATUS,
    )
    status = _object(
        "status",
        status={
            **_STATUS,
            "description": "Ready: the template exists. It says nothing about IMEX.",
        },
        nodes={
            "type": "array",
            "items": node,
            **list_map("name"),
            "description": "Not written where IMEX is host-managed.",
        },
    )
    about = "Lets the pods of one workload use IMEX channels, for memory that GPUs of several nodes share."
    schema = _object(
        apiVersion=_TEXT, kind=_TEXT, metadata={"type": "object"}, spec=spec, status=status
    )
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
                    "schema": {"openAPIV3Schema": {"description": about, **schema}},
                    "subresources": {"status": {}},
                }
            ],
        },
    }
