"""What is ours in a pod: names under our prefixes. What a user writes there is untrusted and taken
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from preflight_kube.api.workloads.model import map_of
from preflight_proto.names import (
    CHECKED_LABEL,
    CONTAINER_PREFIX,
    PREFIX,
    VOLUME_PREFIX,
    container_name,
)

from preflight_webhook.api.review import decode_mounts, decode_security, shown
from preflight_webhook.api.types import Pod
from preflight_webhook.config.config import Config

_PREFIX: Final = VOLUME_PREFIX.encode()
_PULL: Final = "imagePullPolicy"
_PROFILE: Final = f"container.apparmor.security.beta.kubernetes.io/{CONTAINER_PREFIX}"
"""How annotations begin that name a check's AppArmor profile, as before Kubernetes 1.30."""
_COPIED: Final = ", or copy a checked pod with its labels (kubectl debug --copy-to … --keep-labels)"
_ADDED: Final = {
    "requests": ("ephemeral-storage",),
    "limits": ("ephemeral-storage",),
    "securityContext": ("runAsUser", "runAsGroup", "seLinuxOptions"),
}
"""What the API server's own admission adds to containers that do not say it: LimitRanger, and the
one of OpenShift. None of it lets a check pass that would not.
"""


def traces(pod: Pod) -> tuple[bool, bool]:
    """(whether the pod carries anything under a reserved name, whether it may mount a volume of
    ours). One pass, as it is asked of every pod, and most say nothing of us.
    """
    spec, metadata = pod.spec, pod.metadata
    named = mounted = False
    for containers in (spec.containers, spec.init_containers):
        for container in containers or ():
            named = named or container.name.startswith(CONTAINER_PREFIX)
            mounted = mounted or _may_mount(bytes(container.volume_mounts))
    for volume in spec.volumes or ():
        named = named or volume.name.startswith(VOLUME_PREFIX)
    for entries in (metadata.labels, metadata.annotations):
        if entries and not named and PREFIX in "\n".join(entries):
            named = any(key.startswith(PREFIX) for key in entries)
    return named, mounted


def _may_mount(raw: bytes) -> bool:
    return _PREFIX in raw or b"\\" in raw  # an escape could spell it


def profiled(pod: Pod) -> bool:
    """Tell whether a profile of AppArmor that the pod's author chose would hold for a check."""
    raw = bytes(pod.spec.security_context)
    own = decode_security(raw) if b"Localhost" in raw or b"\\" in raw else None
    if own and map_of(own.get("appArmorProfile")).get("type") == "Localhost":
        return True
    named = pod.metadata.annotations or {}
    return _PROFILE in "\n".join(named) and any(
        named[key].startswith("localhost/") for key in named if key.startswith(_PROFILE)
    )


def misuse(pod: Pod, config: Config) -> str | None:
    """Why the pod must be refused: what cannot be taken out without breaking it. One sentence, or
    None.

    An init container with the name of a configured check may be our own of a pass before, where the
    pod has our label: it is rebuilt whoever wrote it. Any other under the prefix is the user's, and
    he counts on it.

    Raises :class:`BadReview` when it is not a pod.
    """
    seen = pod.metadata.labels is not None and CHECKED_LABEL in pod.metadata.labels
    sections = {"containers": pod.spec.containers, "initContainers": pod.spec.init_containers}
    for section, containers in sections.items():
        for container in containers or ():
            if container.name.startswith(CONTAINER_PREFIX):
                known = container.name in {container_name(check.name) for check in config.checks}
                if section == "containers" or not seen or not known:
                    return _reserved(container.name, section, known=known)
                continue
            raw = bytes(container.volume_mounts)
            for mount in (decode_mounts(raw) if _may_mount(raw) else None) or ():
                if (volume := str(mount.get("name"))).startswith(VOLUME_PREFIX):
                    return (
                        f'spec.{section}: container "{container.name}" mounts the volume "{shown(volume, 64)}", which belongs to the preflight checks '
                        "(through it a workload could report about the node); remove the mount, or give your own volume another name."
                    )
    return None


def _reserved(name: str, section: str, *, known: bool) -> str:
    none, copied = "", ""
    if section == "initContainers":
        none = "" if known else " and no configured check has it"
        copied = _COPIED if known else ""
    return f'spec.{section}: the name "{name[:80]}" is reserved for preflight checks ("{CONTAINER_PREFIX}…"){none}; rename the container{copied}.'


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


def accepted(wanted: dict[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The pod as it is ``wanted``, with what the API server's own admission has written into our
    containers as they are ``now``: in the end it refuses a pod without that.
    """
    sent = {each.get("name"): each for each in now["spec"].get("initContainers") or ()}
    for built in wanted["spec"].get("initContainers") or ():
        if not str(built.get("name", "")).startswith(CONTAINER_PREFIX):
            continue
        there = sent.get(built["name"]) or {}
        if there.get(_PULL) == "Always":  # AlwaysPullImages
            built[_PULL] = "Always"
        _add(built, there, "securityContext")
        for side in ("requests", "limits"):
            _add(built["resources"], map_of(there.get("resources")), side)
    return wanted


def _add(to: dict[str, Any], sent: Mapping[str, Any], key: str) -> None:
    ours, there = map_of(to.get(key)), map_of(sent.get(key))
    if more := {name: there[name] for name in _ADDED[key] if name in there and name not in ours}:
        to[key] = {**ours, **more}
