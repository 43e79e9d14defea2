"""When a request of a resource claim (DRA) is for GPUs, and when an extended resource may be: one
rule for the webhook, which decides by it, and for the gang controller's audit, which looks at what
came of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

__all__ = ["IMPLICIT", "OTHER_RESOURCES", "is_for_gpus", "may_be_gpus", "requests_of"]

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


def requests_of(claim: Mapping[str, Any]) -> Iterator[tuple[list[str], bool]]:
    """The alternatives and the administrative access of each request of a ResourceClaim or
    ResourceClaimTemplate, in the shape of any version. Never raises.
    """
    spec = _map(claim.get("spec"))
    requests = _map((_map(spec.get("spec")) or spec).get("devices")).get("requests")
    for request in map(_map, requests if isinstance(requests, list) else ()):
        first = request.get("firstAvailable")
        asked = _map(request.get("exactly")) or request
        several = (
            [_map(option) for option in first] if isinstance(first, list) and first else [asked]
        )
        admin = several == [asked] and asked.get("adminAccess") is True
        yield [str(option.get("deviceClassName") or "") for option in several], admin


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
