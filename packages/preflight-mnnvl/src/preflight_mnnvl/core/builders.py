"""The objects that are written: the shapes of ComputeDomain, claim and owners, and the patches that
make objects a PodGang's. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from preflight_proto.devices import request_in

from preflight_mnnvl.api import names
from preflight_mnnvl.api.types import Metadata, OwnerReference
from preflight_mnnvl.core.domain import Domain
from preflight_mnnvl.core.fabric import WAITING
from preflight_mnnvl.core.support import Support

__all__ = [
    "Head",
    "abandoned",
    "adopted",
    "adoption",
    "alive",
    "announcement",
    "compute_domain",
    "gang_owner",
    "owned_by_set",
    "resource_claim",
    "set_owner",
]

Body = dict[str, Any]


class Head(NamedTuple):
    """The metadata that objects of a domain have in common. ``owner`` is None where the set is not
    known to the webhook.
    """

    namespace: str
    labels: Mapping[str, str]
    owner: Mapping[str, Any] | None

    def of(self, name: str) -> Body:
        """The metadata of the object called ``name``."""
        metadata: Body = {"name": name, "namespace": self.namespace, "labels": dict(self.labels)}
        return {**metadata, "ownerReferences": [dict(self.owner)]} if self.owner else metadata


def compute_domain(domain: Domain, head: Head, support: Support, recreated: str = "") -> Body:
    """The ComputeDomain. ``recreated``: the uid of a lost one whose place it takes, "unknown", or
    nothing.
    """
    metadata = head.of(domain.name)
    if recreated:
        metadata["annotations"] = {names.RECREATED: recreated}
    spec: Body = {"numNodes": 0}
    if support.domain_version != "v1alpha1":  # the driver's own version, which requires it
        template = {"name": domain.claim}
        spec["channel"] = {"resourceClaimTemplate": template, "allocationMode": "Single"}
    return {
        "apiVersion": f"{names.COMPUTE_DOMAIN_GROUP}/{support.domain_version}",
        "kind": "ComputeDomain",
        "metadata": metadata,
        "spec": spec,
    }


def resource_claim(domain: Domain, head: Head, support: Support, device_class: str) -> Body:
    """The requirement's claim, in the shape of the version that is served."""
    selector = {
        "cel": {
            "expression": f'device.attributes["compute-domain.nvidia.com"].name == "{domain.name}"'
        }
    }
    wanted: Body = {"deviceClassName": device_class, "selectors": [selector]}
    request = request_in(support.claim_version, names.CLAIM, wanted)
    version = f"{names.RESOURCE_GROUP}/{support.claim_version}"
    return {
        "apiVersion": version,
        "kind": "ResourceClaim",
        "metadata": head.of(domain.claim),
        "spec": {"devices": {"requests": [request]}},
    }


def gang_owner(name: str, uid: str) -> Body:
    """The final owner."""
    return {
        "apiVersion": f"{names.SCHEDULER_GROUP}/v1alpha1",
        "kind": "PodGang",
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def set_owner(name: str, uid: str) -> Body:
    """The owner for as long as there is no PodGang. No controller: Grove deletes what it takes for
    its own.
    """
    return {
        "apiVersion": "grove.io/v1alpha1",
        "kind": "PodCliqueSet",
        "name": name,
        "uid": uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }


_NOBODY = "00000000-0000-0000-0000-000000000000"


def alive(meta: Metadata | None) -> bool:
    """Tell whether it is there and not being deleted; only what has a uid can own anything."""
    return meta is not None and bool(meta.uid) and not meta.going


def adopted(meta: Metadata, gang: Metadata | None) -> bool:
    """Tell whether this PodGang, of this uid, is its one owner."""
    return gang is not None and [_whole(owner) for owner in meta.owner_references or ()] == [
        gang_owner(gang.name, gang.uid)
    ]


def owned_by_set(meta: Metadata) -> bool:
    """Tell whether a PodCliqueSet is its only owner, or nobody is."""
    return all(owner.kind == "PodCliqueSet" for owner in meta.owner_references or ())


def adoption(meta: Metadata, gang: Metadata) -> list[dict[str, Any]]:
    """The JSONPatch after which ``gang`` is the one owner; it fails where the object is no longer
    the one that was read.
    """
    patch = [
        *_guards(meta),
        {
            "op": "add",
            "path": "/metadata/ownerReferences",
            "value": [gang_owner(gang.name, gang.uid)],
        },
    ]
    if meta.label(names.PODGANG) != names.label_value(gang.name):
        patch.append(
            {
                "op": "add",
                "path": f"/metadata/labels/{names.PODGANG.replace('/', '~1')}",
                "value": names.label_value(gang.name),
            }
        )
    return patch


def abandoned(meta: Metadata) -> list[dict[str, Any]]:
    """The JSONPatch that hands an object to the garbage collector: its owner is a PodGang that
    cannot exist.

    There is no right to delete, on purpose; and this fails, as a deletion would not, where a
    PodGang has adopted the object meanwhile.
    """
    owner = {
        **gang_owner(meta.label(names.PODGANG) or "none", _NOBODY),
        "blockOwnerDeletion": False,
    }
    return [*_guards(meta), {"op": "add", "path": "/metadata/ownerReferences", "value": [owner]}]


def announcement(gang: Metadata, *, whole: bool = True, fabric: str = "") -> dict[str, Any] | None:
    """The merge patch after which a PodGang says that its objects belong to it exactly where that
    is so (``whole``), and whether its pods share one fabric; None where nothing changes. That pods
    wait is only said where something else was.
    """
    annotations: dict[str, str | None] = {}
    if (gang.annotation(names.ADOPTED) == "true") != whole:
        annotations[names.ADOPTED] = "true" if whole else None
    before = gang.annotation(names.ONE_FABRIC)
    if before != (fabric or None) and (before or not fabric.startswith(WAITING)):
        annotations[names.ONE_FABRIC] = fabric or None
    return {"metadata": {"uid": gang.uid, "annotations": annotations}} if annotations else None


def _guards(meta: Metadata) -> list[dict[str, Any]]:
    """It is the object that was read, and its owners are those; what else others write into it, as
    the driver does, is in nobody's way.
    """
    owners = [
        {key: value for key, value in _whole(owner).items() if value is not None}
        for owner in meta.owner_references or ()
    ]
    now = {"ownerReferences": owners} if owners else {"resourceVersion": meta.resource_version}
    return [
        {"op": "test", "path": f"/metadata/{key}", "value": value}
        for key, value in ({"uid": meta.uid} | now).items()
    ]


def _whole(owner: OwnerReference) -> dict[str, Any]:
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": owner.controller,
        "blockOwnerDeletion": owner.block_owner_deletion,
    }
