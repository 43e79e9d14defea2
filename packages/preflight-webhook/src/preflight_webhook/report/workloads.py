"""Kubernetes objects in files or of a cluster, as `explain` takes them: the pods that they make,
and what those need.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
from preflight_kube.api.workloads.model import Object, map_of, maps, name_of
from preflight_kube.api.workloads.table import KINDS, kind_of, templates
from preflight_kube.cli import commands
from preflight_kube.cli.commands import BadInput
from preflight_proto.policy import KIND as POLICY
from preflight_proto.policy import PreflightConfig

from preflight_webhook.core.detect.devices import DeviceClaim, Ref, read_claim, ref

__all__ = ["Object"]

_CONFINING: Final = frozenset({"baseline", "restricted"})


class FoundPod(NamedTuple):
    """One pod or pod template. ``claims``: what is known of those that it names; ``confined``: its
    namespace allows no hostPath; ``policies``: the PreflightConfigs of its namespace; ``labels``:
    of its namespace, None where they are not known."""

    what: str
    namespace: str
    pod: Object
    claims: dict[Ref, DeviceClaim | None]
    confined: bool
    policies: tuple[PreflightConfig, ...] = ()
    labels: dict[str, str] | None = None


def objects_in(file: str) -> list[Object]:
    """The objects in a file, a list's one by one. Raises
    :class:`~preflight_kube.cli.commands.BadInput`.
    """
    objects: list[Object] = commands.manifests(file)
    if not all(isinstance(item, dict) for item in objects):
        raise BadInput(
            f"{commands.named(file)}: has a document that is no object; give objects with kind and metadata."
        )
    return objects


def found_in(objects: Iterable[Object], where: str) -> tuple[list[FoundPod], list[str]]:
    """(the pods that the objects make, one sentence for each object that cannot be read).

    Claims, templates, namespaces and PreflightConfigs among them are taken into account.
    """
    objects, problems = list(objects), []
    known: dict[tuple[str, Ref], DeviceClaim | None] = {}
    policies: dict[str, list[PreflightConfig]] = {}
    labels: dict[str, dict[str, str]] = {}
    pods = []
    for item in objects:
        namespace, name = _place(item)
        try:
            if item.get("kind") in {"ResourceClaim", "ResourceClaimTemplate"}:
                known[namespace, Ref(f"{item['kind'].lower()}s", name)] = read_claim(item)
            elif item.get("kind") == POLICY:
                policies.setdefault(namespace, []).append(_policy(item))
            elif item.get("kind") == "Namespace":
                given = map_of(map_of(item.get("metadata")).get("labels"))
                labels[name] = {str(key): str(value) for key, value in given.items()}
        except (ValueError, TypeError, AttributeError) as error:
            problems.append(
                f"{item.get('kind')} {name or '(no name)'}: cannot be read ({error}); correct it."
            )
    for item in objects:
        namespace, name = _place(item)
        kind = kind_of(item)
        if kind is None:
            continue
        here = {ref: claim for (at, ref), claim in known.items() if at == namespace}
        level = labels.get(namespace, {}).get("pod-security.kubernetes.io/enforce")
        what = f"{kind.title} {name or '(no name)'}"
        own, around = tuple(policies.get(namespace, ())), labels.get(namespace)
        try:
            for suffix, pod in templates(item, objects):
                pods.append(
                    FoundPod(what + suffix, namespace, pod, here, level in _CONFINING, own, around)
                )
        except ValueError as error:
            problems.append(f"{what}: {error}.")
    if not pods and not problems:
        kinds = ", ".join(sorted({str(item.get("kind")) for item in objects})) or "nothing"
        problems.append(f"{where}: no pod in it (found {kinds}); give one of {', '.join(KINDS)}.")
    return pods, problems


def references(pod: Object) -> list[Ref | None]:
    """By each entry of a pod's claims, the claim or template that it names."""
    entries = maps(map_of(pod.get("spec")).get("resourceClaims"))
    keys = "resourceClaimName", "resourceClaimTemplateName"
    return [ref(*[str(entry.get(key) or "") for key in keys]) for entry in entries]


def _policy(item: Object) -> PreflightConfig:
    try:
        return msgspec.json.decode(msgspec.json.encode(item), type=PreflightConfig)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def _place(item: Object) -> tuple[str, str]:
    return str(map_of(item.get("metadata")).get("namespace") or "default"), name_of(item)
