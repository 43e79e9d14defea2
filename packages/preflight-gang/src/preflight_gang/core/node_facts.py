"""What is written to a pod about its node: the instance type and the topology labels, which a
container cannot read by itself.

Pure. It is written once, when the pod is bound, and only where a volume of ours shows it to a
container. Where the gang's check alone reads it, it goes with the first roster and costs no write
of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from preflight_kube.api import jsonpatch
from preflight_proto import names

from preflight_gang.api.types import SHOWN, Node, Pod
from preflight_gang.core.membership import gang_check


def missing_annotations(
    pod: Pod, node: Node | None, instance_type: str, topology: Collection[str]
) -> dict[str, str]:
    """The annotations about ``node`` that the pod shows to a container and does not have yet.

    ``instance_type`` and ``topology`` are the names of the node's labels that say so.
    """
    if node is None or pod.metadata.deletion_timestamp is not None:
        return {}
    labels = node.metadata.labels
    place = {key: labels[key] for key in sorted(topology) if labels.get(key)}
    values = {names.TOPOLOGY_ANNOTATION: msgspec.json.encode(place).decode()}
    if kind := labels.get(instance_type):
        values[names.INSTANCE_TYPE_ANNOTATION] = kind
    shown = {key for volume in pod.spec.volumes for key in SHOWN[volume.name]}
    missing = shown - pod.metadata.annotations.keys()
    return {key: value for key, value in sorted(values.items()) if key in missing}


def goes_with_roster(pod: Pod) -> bool:
    """Whether only the gang's check reads about the node, and its first roster is still to come."""
    if pod.metadata.annotations.get(names.ROSTER_ANNOTATION) != "":
        return False
    shown = {volume.name for volume in pod.spec.volumes}
    readers = {
        c.name
        for c in pod.spec.init_containers
        if any(mount.name in shown for mount in c.volume_mounts)
    }
    return readers == {gang_check(pod)}


def facts_patch(pod: Pod, values: Mapping[str, str]) -> list[dict[str, Any]]:
    """The JSON Patch that writes ``values`` to the pod, if it is still this one."""
    same = jsonpatch.test("/metadata/uid", pod.metadata.uid)
    return [same, *jsonpatch.set_annotations(values, annotated=pod.metadata.annotated)]
