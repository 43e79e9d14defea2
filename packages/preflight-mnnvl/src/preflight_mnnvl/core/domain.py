"""A domain: its names, its labels, by them whose it is, and the objects that are written. Pure.

Names are joined with dashes, as the requirement has them, so that some could be read two ways: the
clique `p-1` and replica 1 of the scaling group `p`, or the set `llm-0-pool` and the scaling group
`pool` of `llm`. A pod's claim knows nothing but a name, so where the name of a set, a scaling group
or a clique has an index among its parts, a hash says which is meant. A name is the identity of no
object all the same: the labels are, and an object with other labels is somebody else's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import to_builtins
from preflight_kube.api.jsonpatch import Operation, add, pointer, test
from preflight_proto.devices import request_in

from preflight_mnnvl.api import names
from preflight_mnnvl.api.annotations import SCOPES, Scope, scope_of
from preflight_mnnvl.api.identity import CliqueIdentity, CliqueRefused
from preflight_mnnvl.api.types import Metadata, OwnerReference, shown
from preflight_mnnvl.core.fabric import WAITING
from preflight_mnnvl.core.support import Support

_index_in = re.compile(r"-(?:0|[1-9][0-9]*)(?:-|\Z)", re.ASCII).search
"""Looks for an index among the parts of a name, but for its first."""


class Domain(NamedTuple):
    """One ComputeDomain: of the scope `clique` with ``clique``, of `scalingGroupReplica` with
    ``group`` and ``group_index``. ``indexed``: the name of that has an index among its parts.
    ``earlier``: with the names of release 0.2, which had a hash for the set's name alone.
    """

    scope: Scope
    pcs: str
    replica: str
    clique: str = ""
    group: str = ""
    group_index: str = ""
    indexed: bool = False
    earlier: bool = False

    @property
    def stem(self) -> str:
        """The beginning of all names of its objects, before `-cd` and `-mnnvl-claim`."""
        stem = f"{self.pcs}-{self.replica}"
        if self.scope == "clique":
            stem = f"{stem}-{self.clique}"
        elif self.scope == "scalingGroupReplica":
            stem = f"{stem}-{self.group}-{self.group_index}"
        if self.indexed and not self.earlier:
            which = "/".join((self.pcs, self.scope, self.clique, self.group))
            return f"{stem}-{names.hashed(which)}"
        # Another set may be called like what stands before an index in this set's name.
        return f"{stem}-{names.hashed(self.pcs)}" if _index_in(self.pcs) else stem

    @property
    def name(self) -> str:
        """The name of the ComputeDomain."""
        return f"{self.stem}-cd"

    @property
    def claim(self) -> str:
        """The name of the claim template, or in `literal` mode of the claim."""
        return f"{self.stem}-mnnvl-claim"


def domain_of(identity: CliqueIdentity, scope: str) -> Domain:
    """The domain of a PodClique. Raises :class:`CliqueRefused` for a bad scope, and bad names."""
    known = scope_of(scope)
    if known is None:
        raise CliqueRefused(
            f'the scope "{shown(scope, 40)}" is unknown; write one of {", ".join(SCOPES)}'
        )
    domain = Domain(known, identity.pcs, identity.replica)
    if known == "clique":
        indexed = _index_in(f"-{identity.group}-{identity.template}") is not None
        domain = domain._replace(clique=identity.clique, indexed=indexed)
    elif known == "scalingGroupReplica":
        group, indexed = identity.group, _index_in(f"-{identity.group}") is not None
        domain = domain._replace(group=group, group_index=identity.group_index, indexed=indexed)
    if problem := bad_name(domain.claim) or bad_name(domain.name):
        raise CliqueRefused(problem)
    return domain


def bad_name(name: str) -> str:
    """Why Kubernetes does not take a name, as a clause; empty where it does."""
    if len(name) > names.MOST_NAME:
        return f"the name {shown(name)} would have {len(name)} characters, more than {names.MOST_NAME}; shorten the names of set and clique"
    if not names.is_name(name):
        return f'the name "{shown(name)}" is none that Kubernetes takes; use lower-case letters, digits, "-" and "."'
    return ""


def identity_labels(domain: Domain) -> dict[str, str]:
    """The labels that say which domain it is."""
    labels = {names.PCS_NAME[0]: names.label_value(domain.pcs), names.PCS_INDEX[0]: domain.replica}
    if domain.scope == "clique":
        labels[names.CLIQUE_NAME] = names.label_value(domain.clique)
    elif domain.scope == "scalingGroupReplica":
        labels[names.PCSG_NAME[0]] = names.label_value(domain.group)
        labels[names.PCSG_INDEX[0]] = domain.group_index
    return labels


def labels_of(domain: Domain, gang: str, instance: str) -> dict[str, str]:
    """All labels of its objects; ``gang``: the PodGang that will own them."""
    return {
        **identity_labels(domain),
        names.MANAGED: "true",
        names.MANAGED_BY: names.MANAGED_BY_US,
        names.INSTANCE: names.label_value(instance),
        names.PODGANG: names.label_value(gang),
    }


def other_release(given: Mapping[str, str] | None, instance: str) -> str:
    """Name who owns an object with the labels ``given``; empty where it is this release's."""
    labels = given or {}
    by = labels.get(names.MANAGED_BY)
    if by and by != names.MANAGED_BY_US:
        return f"is managed by {shown(by)}"
    if not by or labels.get(names.MANAGED) != "true":
        return f"does not carry the label {names.MANAGED}"
    if labels.get(names.INSTANCE) != names.label_value(instance):
        return f'belongs to the release "{shown(labels.get(names.INSTANCE, ""))}", not to "{shown(instance)}"'
    return ""


def other_identity(given: Mapping[str, str] | None, domain: Domain, instance: str) -> str:
    """Name who owns an object of our name; empty where it is this domain's."""
    if whose := other_release(given, instance):
        return whose
    labels, wanted = given or {}, identity_labels(domain)
    for key in names.IDENTITY:
        if labels.get(key) != wanted.get(key):
            return f'is of another domain: its label {key} is "{shown(labels.get(key, ""))}", expected "{wanted.get(key, "")}"'
    return ""


def owned_by(meta: Metadata) -> str:
    """The first owner of an object that is in the way, as the end of a clause; empty for none."""
    owner = next(iter(meta.owner_references or ()), None)
    return f" and belongs to the {shown(owner.kind, 63)} {shown(owner.name)}" if owner else ""


# --- its objects, and the patches that make them a PodGang's

Body = dict[str, Any]


def head(namespace: str, labels: Mapping[str, str], owner: OwnerReference | None) -> Body:
    """The metadata that objects of a domain have in common."""
    owners = {} if owner is None else {"ownerReferences": [to_builtins(owner)]}
    return {"namespace": namespace, "labels": dict(labels), **owners}


def compute_domain(domain: Domain, shared: Body, support: Support, recreated: str = "") -> Body:
    """The ComputeDomain. ``recreated``: uid of the lost one that it replaces, or "unknown"."""
    metadata = {"name": domain.name, **shared}
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


def resource_claim(domain: Domain, shared: Body, support: Support, device_class: str) -> Body:
    """The requirement's claim, in the shape of the version that is served."""
    of_domain = f'device.attributes["compute-domain.nvidia.com"].name == "{domain.name}"'
    selectors = [{"cel": {"expression": of_domain}}]
    wanted: Body = {"deviceClassName": device_class, "selectors": selectors}
    request = request_in(support.claim_version, names.CLAIM, wanted)
    return {
        "apiVersion": f"{names.RESOURCE_GROUP}/{support.claim_version}",
        "kind": "ResourceClaim",
        "metadata": {"name": domain.claim, **shared},
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
