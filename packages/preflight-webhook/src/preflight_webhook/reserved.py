"""What is ours in a pod: names under our prefixes. What a user writes there is untrusted and taken out."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from preflight_proto.names import CONTAINER_PREFIX, PREFIX, VOLUME_PREFIX

from .objects import Pod
from .review import decode_mounts

__all__ = ["cleaned", "misuse", "present", "suspect"]


def suspect(raw: bytes) -> bool:
    """Whether anything in the pod can bear a reserved name: a quick look, as in most pods nothing does."""
    return b"preflight" in raw or b"\\u" in raw  # an escape could spell it


def present(pod: Pod) -> bool:
    """Whether the pod carries anything under a reserved name; most pods do not."""
    spec, metadata = pod.spec, pod.metadata
    return (
        any(c.name.startswith(CONTAINER_PREFIX) for c in spec.init_containers or ())
        or any(c.name.startswith(CONTAINER_PREFIX) for c in spec.containers)
        or any(v.name.startswith(VOLUME_PREFIX) for v in spec.volumes or ())
        or any(key.startswith(PREFIX) for keys in (metadata.labels, metadata.annotations) for key in keys or ())
    )


def misuse(pod: Pod) -> str | None:
    """Why the pod must be refused: what cannot be taken out without breaking it. One sentence, or None.

    Raises :class:`~.review.BadReview` when it is no pod.
    """
    for container in pod.spec.containers:
        if container.name.startswith(CONTAINER_PREFIX):
            return f'spec.containers: the name "{container.name}" is reserved for preflight checks ("{CONTAINER_PREFIX}…"); rename the container.'
    for section, containers in (
        ("containers", pod.spec.containers),
        ("initContainers", pod.spec.init_containers or []),
    ):
        for container in containers:
            if container.name.startswith(CONTAINER_PREFIX):
                continue
            for mount in decode_mounts(bytes(container.volume_mounts)):
                if mount.name.startswith(VOLUME_PREFIX):
                    return (
                        f'spec.{section}: container "{container.name}" mounts the volume "{mount.name}", which belongs to the preflight checks '
                        "(through it a workload could report about the node); remove the mount, or give your own volume another name."
                    )
    return None


def cleaned(pod: dict[str, Any]) -> dict[str, Any]:
    """A copy of the whole pod without anything under a reserved name."""
    clean = deepcopy(pod)
    spec, metadata = clean["spec"], clean.get("metadata") or {}
    for key, prefix in (("initContainers", CONTAINER_PREFIX), ("volumes", VOLUME_PREFIX)):
        if spec.get(key) is not None:
            spec[key] = [item for item in spec[key] if not str(item.get("name", "")).startswith(prefix)]
    for key in ("labels", "annotations"):
        if metadata.get(key) is not None:
            metadata[key] = {k: v for k, v in metadata[key].items() if not k.startswith(PREFIX)}
    return clean
