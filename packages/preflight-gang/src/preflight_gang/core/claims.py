"""Dynamic resource allocation, as far as the audit has to know it: whether a pod that carries no
checks has GPUs by it. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from preflight_kube.api.workloads.model import at, maps
from preflight_proto.devices import IMPLICIT, is_for_gpus, requests_of


class _Object(msgspec.Struct, rename="camel", frozen=True, gc=False, kw_only=True):
    pass


class Origin(_Object, frozen=True, kw_only=True):
    """Which of the objects that have had a name this one is."""

    name: str
    uid: str = ""
    creation_timestamp: datetime | None = None


class ResourceClaim(_Object, frozen=True, kw_only=True):
    """What is asked for, and what was allocated; or a template, of which each pod gets a claim."""

    metadata: Origin
    spec: Any = None
    status: Any = None


class _ClassSpec(_Object, frozen=True, kw_only=True):
    extended_resource_name: str | None = None


class DeviceClass(_Object, frozen=True, kw_only=True):
    """A device class, as far as it says which extended resource stands for it."""

    metadata: Origin
    spec: _ClassSpec | None = None


class GpuClaims(msgspec.Struct, frozen=True):
    """Names of a namespace's claims; by name those that give GPUs, and templates of such claims."""

    claims: Collection[str] = frozenset()
    gpu_claims: Mapping[str, Origin] = {}
    gpu_templates: Mapping[str, Origin] = {}


NO_CLAIMS: Final = GpuClaims()


def resource_names(
    named: Iterable[str], classes: Collection[str], found: Iterable[DeviceClass]
) -> frozenset[str]:
    """Extended resources that are GPUs: those ``named``, and those of the device ``classes``."""
    own = (
        one.spec.extended_resource_name
        for one in found
        if one.spec is not None and one.metadata.name in classes
    )
    return frozenset([*named, *(IMPLICIT + one for one in classes), *filter(None, own)])


def gives_gpus(claim: ResourceClaim, classes: Collection[str]) -> bool:
    """Whether a claim has GPUs; while it has nothing yet, whether it may get some.

    Administrative access gives a pod no device of its own.
    """
    met = None
    if (allocation := at(claim.status, ("allocation",))) is not None:
        met = {str(one.get("request")) for one in maps(at(allocation, ("devices", "results")))}
    return any(
        is_for_gpus(request.classes, classes, admin=request.admin)
        for request in requests_of({"spec": claim.spec}, met)
    )
