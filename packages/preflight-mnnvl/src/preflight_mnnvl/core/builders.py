"""The shapes of what is made: a ComputeDomain in both modes, and in `literal` mode
the claim. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from preflight_mnnvl.api.names import (
    CLAIM,
    COMPUTE_DOMAIN_GROUP,
    RECREATED,
    RESOURCE_GROUP,
    SCHEDULER_GROUP,
)
from preflight_mnnvl.core.domain import Domain
from preflight_mnnvl.core.support import Support

__all__ = ["Head", "compute_domain", "gang_owner", "resource_claim", "set_owner"]

Body = dict[str, Any]


class Head(NamedTuple):
    """What the objects of a domain have in common. ``owner`` is None where the set is not known to
    the webhook.
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
        metadata["annotations"] = {RECREATED: recreated}
    spec: Body = {"numNodes": 0}
    if support.channel:
        spec["channel"] = {
            "resourceClaimTemplate": {"name": domain.claim},
            "allocationMode": "Single",
        }
    return {
        "apiVersion": f"{COMPUTE_DOMAIN_GROUP}/{support.domain_version}",
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
    # Since v1beta2 class and selectors stand one level below the request's name.
    request = (
        {"name": CLAIM, **wanted}
        if support.claim_version == "v1beta1"
        else {"name": CLAIM, "exactly": wanted}
    )
    version = f"{RESOURCE_GROUP}/{support.claim_version}"
    return {
        "apiVersion": version,
        "kind": "ResourceClaim",
        "metadata": head.of(domain.claim),
        "spec": {"devices": {"requests": [request]}},
    }


def gang_owner(name: str, uid: str) -> Body:
    """The final owner."""
    return {
        "apiVersion": f"{SCHEDULER_GROUP}/v1alpha1",
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
