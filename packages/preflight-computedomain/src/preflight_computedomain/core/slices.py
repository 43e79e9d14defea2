"""The node's ResourceSlice: channel 0 where the node can have it. Pure.

The kubelet removes the slices of its node when it starts; so what is there is looked at again and
again, and written only where it is not as it should be.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from preflight_computedomain.api.names import DEVICE, DRIVER, slice_name
from preflight_computedomain.api.types import Slice, SliceSpec

_ATTRIBUTES: Final = {"type": {"string": "channel"}, "id": {"int": 0}}


def channel(clique: str, driver: str) -> list[dict[str, Any]]:
    """The devices of a node in ``clique``; none without one, as no pod could have the channel."""
    if not clique:
        return []
    known = {"cliqueID": {"string": clique}, "driverVersion": {"version": driver}}
    return [{"name": DEVICE, "attributes": {**_ATTRIBUTES, **known}}]


def body(
    node: str,
    node_uid: str,
    devices: list[dict[str, Any]],
    generation: int = 1,
    resource_version: str = "",
) -> dict[str, Any]:
    """The slice to create, or with ``resource_version`` to update; it ends with its Node."""
    metadata: dict[str, Any] = {
        "name": slice_name(node),
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
        ],
    }
    if resource_version:
        metadata["resourceVersion"] = resource_version
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def wanted(
    node: str, node_uid: str, devices: list[dict[str, Any]], there: Slice | None
) -> dict[str, Any] | None:
    """The slice to write instead of ``there``, in its next generation; None where it is right."""
    if there is None:
        return body(node, node_uid, devices)
    about, spec = there.metadata, there.spec
    change = body(node, node_uid, devices, spec.pool.generation, about.resource_version)
    owners = [(own.kind, own.name, own.uid) for own in about.owner_references if own.controller]
    if spec != msgspec.convert(change["spec"], SliceSpec):
        change["spec"]["pool"]["generation"] += 1
    elif owners == [("Node", node, node_uid)]:
        return None
    return change
