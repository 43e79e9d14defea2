"""The objects that are written, and the patches that make them a PodGang's. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import to_builtins
from preflight_kube.api.jsonpatch import Operation, add, pointer, test
from preflight_proto.devices import request_in

from preflight_mnnvl.api import names
from preflight_mnnvl.api.types import Metadata, OwnerReference
from preflight_mnnvl.core.domain import Domain
from preflight_mnnvl.core.fabric import WAITING
from preflight_mnnvl.core.support import Support

Body = dict[str, Any]


class Head(NamedTuple):
    """The metadata that objects of a domain have in common."""

    namespace: str
    labels: Mapping[str, str]
    owner: OwnerReference | None

    def of(self, name: str) -> Body:
        """The metadata of the object called ``name``."""
        metadata: Body = {"name": name, "namespace": self.namespace, "labels": dict(self.labels)}
        if self.owner is not None:
            metadata["ownerReferences"] = [to_builtins(self.owner)]
        return metadata


def compute_domain(
    domain: Domain, head: Head, support: Support, *, recreated: bool = False
) -> Body:
    """The ComputeDomain. ``recreated``: it replaces one that was lost."""
    metadata = head.of(domain.name)
    if recreated:
        metadata["annotations"] = {names.RECREATED: "true"}
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
    of_domain = f'device.attributes["compute-domain.nvidia.com"].name == "{domain.name}"'
    selectors = [{"cel": {"expression": of_domain}}]
    wanted: Body = {"deviceClassName": device_class, "selectors": selectors}
    request = request_in(support.claim_version, names.CLAIM, wanted)
    return {
        "apiVersion": f"{names.RESOURCE_GROUP}/{support.claim_version}",
        "kind": "ResourceClaim",
        "metadata": head.of(domain.claim),
        "spec": {"devices": {"requests": [request]}},
    }


def gang_owner(gang: Metadata) -> OwnerReference:
    """The final owner."""
    group = f"{names.SCHEDULER_GROUP}/v1alpha1"
    return OwnerReference(group, "PodGang", gang.name, gang.uid, True, True)


def set_owner(set_: Metadata) -> OwnerReference:
    """The owner before; no controller, as Grove deletes what it takes for its own."""
    group = f"{names.GROVE_GROUP}/v1alpha1"
    return OwnerReference(group, "PodCliqueSet", set_.name, set_.uid, False, False)


_NOBODY = "00000000-0000-0000-0000-000000000000"


def alive(meta: Metadata | None) -> bool:
    """Tell whether it is there and not being deleted; only what has a uid can own anything."""
    return meta is not None and bool(meta.uid) and not meta.going


def adopted(meta: Metadata, gang: Metadata | None) -> bool:
    """Tell whether this PodGang, of this uid, is its one owner."""
    return gang is not None and meta.owner_references == [gang_owner(gang)]


def owned_by_set(meta: Metadata) -> bool:
    """Tell whether a PodCliqueSet is its only owner, or nobody is."""
    return all(owner.kind == "PodCliqueSet" for owner in meta.owner_references or ())


def adoption(meta: Metadata, gang: Metadata) -> list[Operation]:
    """The patch after which ``gang`` is the one owner; it fails where the object was changed."""
    patch = [*_guards(meta), _owned(gang_owner(gang))]
    value = names.label_value(gang.name)
    if meta.label(names.PODGANG) != value:
        patch.append(add(pointer("metadata", "labels", names.PODGANG), value))
    return patch


def abandoned(meta: Metadata) -> list[Operation]:
    """The patch that hands an object to the garbage collector, by an owner that cannot exist.

    There is no right to delete, on purpose; and this fails, as a deletion would not, where a
    PodGang has adopted the object meanwhile.
    """
    owner = gang_owner(Metadata(name=meta.label(names.PODGANG) or "none", uid=_NOBODY))
    owner.block_owner_deletion = False
    return [*_guards(meta), _owned(owner)]


def _owned(owner: OwnerReference) -> Operation:
    return add("/metadata/ownerReferences", [to_builtins(owner)])


def announcement(gang: Metadata, *, whole: bool = True, fabric: str = "") -> dict[str, Any] | None:
    """The merge patch that says on a PodGang whether its objects are its own (``whole``), and
    whether its pods share one fabric; None where nothing changes. That pods wait is only said where
    something else was.
    """
    annotations: dict[str, str | None] = {}
    if (gang.annotation(names.ADOPTED) == "true") != whole:
        annotations[names.ADOPTED] = "true" if whole else None
    before = gang.annotation(names.ONE_FABRIC)
    if before != (fabric or None) and (before or not fabric.startswith(WAITING)):
        annotations[names.ONE_FABRIC] = fabric or None
    return {"metadata": {"uid": gang.uid, "annotations": annotations}} if annotations else None


def _guards(meta: Metadata) -> list[Operation]:
    """It is the object that was read, with those owners; what else others write into it, as the
    driver does, does not matter.
    """
    owners = [
        {key: value for key, value in to_builtins(owner).items() if value is not None}
        for owner in meta.owner_references or ()
    ]
    now = {"ownerReferences": owners} if owners else {"resourceVersion": meta.resource_version}
    return [test(f"/metadata/{key}", value) for key, value in ({"uid": meta.uid} | now).items()]
