"""Which pods ask for GPUs in an opted-in namespace and carry no check, and why that may be.

Pure. The admission webhook is the only moment at which a pod can get its checks; what slipped past it stays unchecked until it is
created anew.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final

import msgspec
from preflight_proto import names

__all__ = ["LEFT_OUT", "Namespace", "Unchecked", "opted_in", "why_unchecked"]

LEFT_OUT: Final = f"!{names.CHECKED_LABEL}"
"""The label selector of pods without checks."""

_MIRROR: Final = "kubernetes.io/config.mirror"  # the API server's picture of a pod that the kubelet has from a file


class _About(msgspec.Struct, rename="camel", gc=False):
    name: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deletion_timestamp: datetime | None = None


class Namespace(msgspec.Struct, gc=False):
    metadata: _About


class _Resources(msgspec.Struct, gc=False):
    limits: dict[str, str] = {}
    requests: dict[str, str] = {}


class _Container(msgspec.Struct, gc=False):
    resources: _Resources = msgspec.field(default_factory=_Resources)


class _Spec(msgspec.Struct, rename="camel", gc=False):
    containers: list[_Container] = []
    init_containers: list[_Container] = []


class _Status(msgspec.Struct, gc=False):
    phase: str = "Pending"


class Unchecked(msgspec.Struct, gc=False):
    """A pod that :data:`LEFT_OUT` selects."""

    metadata: _About
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


def opted_in(namespace: Namespace, listed: Collection[str], excluded: Collection[str]) -> bool:
    """Whether the pods of a namespace are to be checked: it is labelled or listed, and neither excluded nor switched off."""
    label = namespace.metadata.labels.get(names.NAMESPACE_LABEL)
    if namespace.metadata.name in excluded or label == names.NAMESPACE_DISABLED:
        return False
    return label == names.NAMESPACE_ENABLED or namespace.metadata.name in listed


def why_unchecked(pod: Unchecked, gpus: Collection[str]) -> str | None:
    """Why a pod of an opted-in namespace may have no checks; None where it needs none.

    ``static-pod``: admission cannot change it. ``asked-for-none``: by its annotation. ``not-started``: it can be created anew, and
    nothing is lost. ``running``: it was admitted before the opt-in, or while no webhook answered.
    """
    if pod.metadata.deletion_timestamp is not None or pod.status.phase in {"Succeeded", "Failed"}:
        return None
    if not any(
        _some(asked.get(name, ""))
        for container in [*pod.spec.containers, *pod.spec.init_containers]
        for asked in (container.resources.limits, container.resources.requests)
        for name in gpus
    ):
        return None
    if _MIRROR in pod.metadata.annotations:
        return "static-pod"
    if pod.metadata.annotations.get(names.CHECKS_ANNOTATION, "every").strip() == "":
        return "asked-for-none"
    return "not-started" if pod.status.phase == "Pending" else "running"


def _some(quantity: str) -> bool:
    return any(digit in "123456789" for digit in quantity)
