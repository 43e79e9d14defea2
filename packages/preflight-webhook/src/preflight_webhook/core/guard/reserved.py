"""What is ours in a pod: names under our prefixes. What a user writes there is untrusted and taken
out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from preflight_proto.names import (
    CHECKED_LABEL,
    CONTAINER_PREFIX,
    PREFIX,
    VOLUME_PREFIX,
    container_name,
)

from preflight_webhook.api.review import decode_mounts, shown
from preflight_webhook.api.types import Pod
from preflight_webhook.config.config import Config

__all__ = ["cleaned", "misuse", "present", "suspected"]

_PREFIX: Final = VOLUME_PREFIX.encode()


def suspected(pod: Pod) -> bool:
    """Whether :func:`misuse` or :func:`present` could find anything. One pass, as it is asked of
    every pod, and most say nothing of us.
    """
    spec, metadata = pod.spec, pod.metadata
    for containers in (spec.containers, spec.init_containers):
        if containers:
            for container in containers:
                raw = bytes(container.volume_mounts)
                if _PREFIX in raw or b"\\" in raw or container.name.startswith(CONTAINER_PREFIX):
                    return True
    if spec.volumes:
        for volume in spec.volumes:
            if volume.name.startswith(VOLUME_PREFIX):
                return True
    for entries in (metadata.labels, metadata.annotations):
        if entries and PREFIX in "\n".join(entries):
            return True
    return False


def present(pod: Pod) -> bool:
    """Whether the pod carries anything under a reserved name."""
    spec, metadata = pod.spec, pod.metadata
    for containers in (spec.containers, spec.init_containers):
        for container in containers or ():
            if container.name.startswith(CONTAINER_PREFIX):
                return True
    for volume in spec.volumes or ():
        if volume.name.startswith(VOLUME_PREFIX):
            return True
    for entries in (metadata.labels, metadata.annotations):
        if any(key.startswith(PREFIX) for key in entries or ()):
            return True
    return False


@lru_cache(maxsize=256)
def _ours(config: Config) -> frozenset[str]:
    return frozenset(container_name(check.name) for check in config.checks)


def misuse(pod: Pod, config: Config) -> str | None:
    """Why the pod must be refused: what cannot be taken out without breaking it. One sentence, or
    None.

    An init container with the name of a configured check may be our own of a pass before, where the
    pod has our label: it is rebuilt whoever wrote it. Any other under the prefix is the user's, and
    he counts on it.

    Raises :class:`BadReview` when it is not a pod.
    """
    spec = pod.spec
    seen = pod.metadata.labels is not None and CHECKED_LABEL in pod.metadata.labels
    for containers in (spec.containers, spec.init_containers):
        for container in containers or ():
            if container.name.startswith(CONTAINER_PREFIX):
                if containers is spec.containers or not seen or container.name not in _ours(config):
                    section = "containers" if containers is spec.containers else "initContainers"
                    return _reserved(container.name, section, known=container.name in _ours(config))
                continue
            raw = bytes(container.volume_mounts)
            if _PREFIX not in raw and b"\\" not in raw:  # an escape could spell it
                continue
            for mount in decode_mounts(raw) or ():
                if mount.name.startswith(VOLUME_PREFIX):
                    section = "containers" if containers is spec.containers else "initContainers"
                    return (
                        f'spec.{section}: container "{container.name}" mounts the volume "{shown(mount.name, 64)}", which belongs to the preflight checks '
                        "(through it a workload could report about the node); remove the mount, or give your own volume another name."
                    )
    return None


def _reserved(name: str, section: str, *, known: bool) -> str:
    none = " and no configured check has it" if section == "initContainers" and not known else ""
    return f'spec.{section}: the name "{name[:80]}" is reserved for preflight checks ("{CONTAINER_PREFIX}…"){none}; rename the container.'


def cleaned(pod: dict[str, Any]) -> dict[str, Any]:
    """The whole pod without anything under a reserved name, to which a patch may be applied;
    entries that it leaves as they were it shares with ``pod``."""
    clean = {**pod, "spec": {**pod["spec"]}}
    spec, metadata = clean["spec"], {**(pod.get("metadata") or {})}
    if pod.get("metadata") is not None:
        clean["metadata"] = metadata
    for key, prefix in (("initContainers", CONTAINER_PREFIX), ("volumes", VOLUME_PREFIX)):
        if spec.get(key) is not None:
            spec[key] = [
                item for item in spec[key] if not str(item.get("name", "")).startswith(prefix)
            ]
    if spec.get("imagePullSecrets") is not None:
        spec["imagePullSecrets"] = [*spec["imagePullSecrets"]]
    for key in ("labels", "annotations"):
        if metadata.get(key) is not None:
            metadata[key] = {k: v for k, v in metadata[key].items() if not k.startswith(PREFIX)}
    return clean
