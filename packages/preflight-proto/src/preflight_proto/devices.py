"""What a resource claim (DRA) asks for, when that is GPUs, and when an extended resource may
be: one reader and one rule for the webhooks, which decide by it, and for the gang controller's
audit, which looks at what came of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

GROUP: Final = "resource.k8s.io"
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""Those of the API of claims whose shape is known, newest first."""

IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
"""With a device class's name behind it, an extended resource that every class has, wherever
DRAExtendedResource is on (Kubernetes 1.36: by default): a pod gets such devices without a claim."""

OTHER_RESOURCES: Final = (
    "nvidia.com/hostdev*",
    "nvidia.com/mlnx*",
    "nvidia.com/*sriov*",
    "nvidia.com/*rdma*",
    "nvidia.com/*roce*",
)
"""NVIDIA's extended resources that are no GPUs (globs): the usual names of network devices."""


def may_be_gpus(resource: str, others: Iterable[str]) -> bool:
    """Whether an extended resource that nobody has named as a GPU may be one all the same: it is
    NVIDIA's, as `nvidia.com/pgpu`, and not among ``others`` (globs).
    """
    return resource.startswith("nvidia.com/") and not any(
        fnmatchcase(resource, glob) for glob in others
    )


def is_for_gpus(
    alternatives: Iterable[str | None], classes: Collection[str], *, admin: bool
) -> bool:
    """Whether a request gives a pod GPUs, or may.

    ``alternatives``: device classes of those that the scheduler may take, or has taken;
    ``classes``: the device classes of GPUs; ``admin``: whether it asks for administrative access
    (``adminAccess``), which gives a pod no device of its own.
    """
    return not admin and any(name in classes for name in alternatives)


class DeviceRequest(NamedTuple):
    """One request of a claim. ``classes``: of its alternatives (one where there are none).
    ``amount``: of devices, None when it is not known beforehand. ``admin``: whether it asks for
    administrative access, which no alternative can.
    """

    classes: tuple[str, ...]
    amount: int | None
    admin: bool


def requests_of(
    claim: Mapping[str, Any], met: Collection[str] | None = None
) -> Iterator[DeviceRequest]:
    """The requests of a ResourceClaim or ResourceClaimTemplate in the shape of any version: v1beta1
    has no `exactly`. Never raises.

    ``met``: `request`, or `request/alternative`, as an allocation names them: of others there are
    no classes. None: the scheduler may yet take any.
    """
    spec = _map(claim.get("spec"))
    requests = _map((_map(spec.get("spec")) or spec).get("devices")).get("requests")
    for request in map(_map, requests if isinstance(requests, list) else ()):
        name, first = request.get("name"), request.get("firstAvailable")
        several = [(f"{name}", _map(request.get("exactly")) or request)]
        if isinstance(first, list) and first:
            several = [(f"{name}/{option.get('name')}", option) for option in map(_map, first)]
        taken = [option for each, option in several if met is None or each in met]
        amounts = {_amount(option) for option in taken}
        yield DeviceRequest(
            tuple(str(option.get("deviceClassName") or "") for option in taken),
            amounts.pop() if len(amounts) == 1 else None,
            not first and several[0][1].get("adminAccess") is True,
        )


def request_in(version: str, name: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A request of a claim, in the shape of ``version``, for the devices that ``asked`` says."""
    return {"name": name, **asked} if version == "v1beta1" else {"name": name, "exactly": asked}


def _amount(request: Mapping[str, Any]) -> int | None:
    if request.get("allocationMode", "ExactCount") != "ExactCount":
        return None
    count = request.get("count", 1)
    return count if isinstance(count, int) else None


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
