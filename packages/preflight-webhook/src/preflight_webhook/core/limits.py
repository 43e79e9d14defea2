"""How much of everything a pod may have before admission looks at it in earnest. Pure, and cheap
for every pod.

Admission runs before validation and on one core for everybody: what one pod makes it do, all others
wait for. Kubernetes itself bounds a pod only by its bytes. These limits lie far above what
workloads have (tens), and below what costs others a noticeable wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from preflight_kube.admission.limits import CONTAINERS, REQUESTS
from preflight_proto.names import PREFIX

from preflight_webhook.api.review import decode_resources, shown
from preflight_webhook.api.types import Container, Pod, ResourceRequirements

__all__ = ["CONTAINERS"]

RESOURCES: Final = 256
"""Entries of one container's resources: requests, limits and claims together."""
CLAIMS: Final = REQUESTS
"""Resource claims of a pod, each of which may take a request to the API server."""
ENTRIES: Final = 1024
"""Over all containers, of each: variables, envFrom entries, mounts; and of volumes. Variables of
Services are not among them, as the kubelet adds those later."""
SETTINGS_BYTES: Final = 512 * 1024
"""Of all that checks may inherit, together. Linux takes no single variable above 128 KiB."""
OURS: Final = 64
"""Labels and annotations under our own prefix; we write six."""
NAME: Final = 63
"""Characters of a container's name and of a claim's in the pod (DNS label)."""
OBJECT_NAME: Final = 253
"""Characters of an object's name (DNS subdomain)."""
RESOURCE_NAME: Final = 317
"""Characters of a resource's name: a DNS subdomain, a slash, and 63 more."""
ASKED: Final = 4096
"""Characters of the annotation that asks for checks."""

_SHORTEST: Final = 3
"""Bytes that an entry takes at least, with its comma."""
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw] | None)


def of_pod(pod: Pod, *, claims: bool) -> str | None:
    """Why the pod is refused before anything is worked out about it: one sentence, or None.
    ``claims``: whether claims will be looked up.

    Asked of every pod, so what is in order costs next to nothing.
    """
    spec, metadata = pod.spec, pod.metadata
    everyone = (
        [*spec.containers, *spec.init_containers] if spec.init_containers else spec.containers
    )
    if len(everyone) > CONTAINERS:
        return _sentence("spec", f"{len(everyone)} containers and init containers", f"{CONTAINERS}")
    for container in everyone:
        if len(container.name) > NAME:
            return _long("spec: the container name", container.name, NAME)
        if len(container.resources) > RESOURCES and (problem := _of_resources(container)):
            return problem
    if claims and spec.resource_claims:
        if (number := len(spec.resource_claims)) > CLAIMS:
            return _sentence("spec.resourceClaims", f"{number} claims", f"{CLAIMS}")
        for entry in spec.resource_claims:
            if len(entry.name) > NAME:
                return _long("spec.resourceClaims: the name", entry.name, NAME)
            for name in (entry.resource_claim_name, entry.resource_claim_template_name):
                if name is not None and len(name) > OBJECT_NAME:
                    return _long("spec.resourceClaims: the name", name, OBJECT_NAME)
    for secret in spec.image_pull_secrets or ():
        if len(secret.name) > OBJECT_NAME:
            return _long("spec.imagePullSecrets: the name", secret.name, OBJECT_NAME)
    for entries, section in ((metadata.labels, "labels"), (metadata.annotations, "annotations")):
        if (
            entries
            and len(entries) > OURS
            and (number := sum(key.startswith(PREFIX) for key in entries)) > OURS
        ):
            return _sentence(f"metadata.{section}", f'{number} entries under "{PREFIX}"', f"{OURS}")
    return None


def of_asked(annotation: str, asked: str) -> str | None:
    """Why the pod is refused for what it ``asked`` for in ``annotation``: one sentence, or None."""
    if len(asked) <= ASKED:
        return None
    return _sentence(f"annotation {annotation}", f"{len(asked)} characters", f"{ASKED}")


def of_inherited(environments: Iterable[Sequence[bytes]], volumes: int) -> str | None:
    """Why a pod that gets checks which inherit is refused: one sentence, or None.

    ``environments``: of each container env, envFrom, mounts and security context, as they came;
    ``volumes``: how many the pod has.
    """
    if volumes > ENTRIES:
        return _sentence("spec.volumes", f"{volumes} volumes", f"{ENTRIES}")
    everyone = list(environments)
    total = sum([len(raw) for raws in everyone for raw in raws])
    if total <= _SHORTEST * ENTRIES:
        return None
    for i, what in enumerate(("variables (env)", "envFrom entries", "mounts (volumeMounts)")):
        if (number := sum([_count(raws[i]) for raws in everyone])) > ENTRIES:
            return _sentence("spec", f"{number} {what} over all containers", f"{ENTRIES}")
    if total > SETTINGS_BYTES:
        what = "bytes of env, envFrom, volumeMounts and securityContext over all containers"
        return _sentence("spec", f"{total} {what}", f"{SETTINGS_BYTES}")
    return None


def _count(raw: bytes) -> int:
    """The number of entries of a list, none of which is read; 0 where its reader will refuse it."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return len(_LIST.decode(raw) or ())
    return 0


def _of_resources(container: Container) -> str | None:
    raw, where = bytes(container.resources), f'spec: container "{container.name}"'
    # Each entry has a colon of its own, and no name is longer than all of it.
    if raw.count(b":") <= RESOURCES and len(raw) <= RESOURCE_NAME:
        return None
    asked = decode_resources(raw) or ResourceRequirements()
    named = [*(asked.requests or ()), *(asked.limits or ())]
    if (number := len(named) + len(asked.claims or ())) > RESOURCES:
        return _sentence(where, f"{number} entries in its resources", f"{RESOURCES}")
    return next(
        (
            _long(f"{where}: the resource name", name, RESOURCE_NAME)
            for name in named
            if len(name) > RESOURCE_NAME
        ),
        None,
    )


def _long(where: str, name: str, most: int) -> str:
    return f'{where} "{shown(name, 64)}" has {len(name)} characters, more than the {most} that Kubernetes allows; shorten it.'


def _sentence(where: str, count: str, most: str) -> str:
    return f"{where}: {count} are more than the {most} that preflight checks go through; use fewer."
