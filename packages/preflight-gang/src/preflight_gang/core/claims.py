"""Dynamic resource allocation, as far as the audit has to know it: whether a pod that carries no
checks has GPUs by it.

Pure. Reads `resource.k8s.io` v1, v1beta2 and v1beta1 alike; what differs is where a request holds
its device class.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

import msgspec
from preflight_proto.devices import IMPLICIT, is_for_gpus

__all__ = [
    "GROUP",
    "DeviceClass",
    "GpuClaims",
    "Origin",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "gives_gpus",
    "resource_names",
]

GROUP = "resource.k8s.io"


class _Object(msgspec.Struct, rename="camel", frozen=True, gc=False, kw_only=True):
    pass


class _Exactly(_Object, frozen=True, kw_only=True):
    name: str = ""
    device_class_name: str | None = None
    admin_access: bool | None = None


class _Request(_Exactly, frozen=True, kw_only=True):
    exactly: _Exactly | None = None
    first_available: tuple[_Exactly, ...] | None = None


class _Devices(_Object, frozen=True, kw_only=True):
    requests: tuple[_Request, ...] | None = None


class _Spec(_Object, frozen=True, kw_only=True):
    devices: _Devices | None = None


class _Result(_Object, frozen=True, kw_only=True):
    request: str = ""


class _Given(_Object, frozen=True, kw_only=True):
    results: tuple[_Result, ...] | None = None


class _Allocation(_Object, frozen=True, kw_only=True):
    devices: _Given | None = None


class _Status(_Object, frozen=True, kw_only=True):
    allocation: _Allocation | None = None


class Origin(_Object, frozen=True, kw_only=True):
    """Which of the objects that have had a name this one is."""

    name: str
    uid: str = ""
    creation_timestamp: datetime | None = None


class ResourceClaim(_Object, frozen=True, kw_only=True):
    """A claim as it is now: what was asked for, what was allocated, and to whom it is reserved."""

    metadata: Origin
    spec: _Spec | None = None
    status: _Status | None = None


class _Made(_Object, frozen=True, kw_only=True):
    spec: _Spec | None = None


class ResourceClaimTemplate(_Object, frozen=True, kw_only=True):
    """A template, of which each pod gets a claim of its own."""

    metadata: Origin
    spec: _Made | None = None


class _ClassSpec(_Object, frozen=True, kw_only=True):
    extended_resource_name: str | None = None


class DeviceClass(_Object, frozen=True, kw_only=True):
    """A device class, as far as it says which extended resource stands for it."""

    metadata: Origin
    spec: _ClassSpec | None = None


class GpuClaims(msgspec.Struct, frozen=True):
    """Of one namespace: names of claims; those among them that give GPUs, by name; the templates
    whose claims do, by name.
    """

    claims: Collection[str] = frozenset()
    gpu_claims: Mapping[str, Origin] = {}
    gpu_templates: Mapping[str, Origin] = {}


def resource_names(
    named: Iterable[str], classes: Collection[str], found: Iterable[DeviceClass]
) -> frozenset[str]:
    """Extended resources by which a container asks for GPUs: those ``named``, and by any of the
    device ``classes``.
    """
    own = (
        one.spec.extended_resource_name
        for one in found
        if one.spec is not None and one.metadata.name in classes
    )
    return frozenset(
        [*named, *(IMPLICIT + one for one in classes), *(name for name in own if name)]
    )


def gives_gpus(made: ResourceClaim | ResourceClaimTemplate, classes: Collection[str]) -> bool:
    """Whether a claim has GPUs, or while it has nothing yet, whether it may get some by any of its
    alternatives.

    Administrative access gives a pod no device of its own.
    """
    if isinstance(made, ResourceClaimTemplate):
        return _asks(made.spec.spec if made.spec is not None else None, classes)
    allocation = made.status.allocation if made.status is not None else None
    if allocation is None:
        return _asks(made.spec, classes)
    results = (allocation.devices.results if allocation.devices is not None else None) or ()
    return _asks(made.spec, classes, {result.request for result in results})


def _asks(
    spec: _Spec | None, classes: Collection[str], given: Collection[str] | None = None
) -> bool:
    """``given``: the requests that were met, as `request` or `request/alternative`; None: any may
    be.
    """
    requests = spec.devices.requests if spec is not None and spec.devices is not None else None
    for request in requests or ():
        if request.first_available:
            admin, all_of_it = (
                False,
                [(f"{request.name}/{one.name}", one) for one in request.first_available],
            )
        else:
            asked = request.exactly or request
            admin, all_of_it = bool(asked.admin_access), [(request.name, asked)]
        taken = [one.device_class_name for name, one in all_of_it if given is None or name in given]
        if is_for_gpus(taken, classes, admin=admin):
            return True
    return False
