"""Dynamic resource allocation: which of a pod's claims are for GPUs, which for network devices, and for how many.

Reads `resource.k8s.io` v1, v1beta2 and v1beta1 alike; what differs is where a request holds its device class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from .config import Config
from .objects import ClaimEntry

__all__ = ["GROUP", "VERSIONS", "Claim", "Devices", "Ref", "Request", "detects", "devices", "once", "read", "ref"]

GROUP: Final = "/apis/resource.k8s.io"
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""Those whose shape is known, newest first."""

CLAIMS: Final = "resourceclaims"
TEMPLATES: Final = "resourceclaimtemplates"


class Ref(NamedTuple):
    """A claim or a template in the pod's namespace; ``plural`` is the resource's."""

    plural: str
    name: str

    @property
    def kind(self) -> str:
        return "ResourceClaim" if self.plural == CLAIMS else "ResourceClaimTemplate"


class Request(NamedTuple):
    """One request of a claim. ``classes``: of its alternatives (one where there are none). ``amount``: of devices, None when it
    is not known beforehand."""

    classes: tuple[str, ...]
    amount: int | None
    admin: bool


Claim = tuple[Request, ...]


class Devices(NamedTuple):
    """What a claim gives. ``gpus``: how many, None when that is not known beforehand."""

    gpu: bool
    network: bool
    gpus: int | None


def ref(entry: ClaimEntry) -> Ref | None:
    """What an entry of `spec.resourceClaims` names, or None when that is nothing known here."""
    if entry.resource_claim_template_name:
        return Ref(TEMPLATES, entry.resource_claim_template_name)
    return Ref(CLAIMS, entry.resource_claim_name) if entry.resource_claim_name else None


def detects(config: Config) -> bool:
    """Whether claims matter at all here."""
    return bool(config.gpu_detection.device_classes or config.network_detection.device_classes)


def read(made: Mapping[str, Any]) -> Claim:
    """The requests of a ResourceClaim or ResourceClaimTemplate as the API server gives it. Never raises."""
    spec = _map(made.get("spec"))
    if "spec" in spec:  # a template's
        spec = _map(spec["spec"])
    requests = _map(spec.get("devices")).get("requests")
    return tuple(_request(_map(request)) for request in (requests if isinstance(requests, list) else []))


@lru_cache(maxsize=1024)
def once(claim: Claim) -> Claim:
    """The first of equal claims: ten thousand pods mostly ask for the same few things."""
    return claim


@lru_cache(maxsize=1024)
def devices(claim: Claim, config: Config) -> Devices:
    """What the configured device classes make of ``claim``. Administrative access gives a pod no device of its own."""
    own = [request for request in claim if not request.admin]
    gpus = [request for request in own if _all_of(request, config.gpu_detection.device_classes)]
    network = any(_all_of(request, config.network_detection.device_classes) for request in own)
    counts = [request.amount for request in gpus]
    known = [count for count in counts if count is not None]
    return Devices(bool(gpus), network, sum(known) if len(known) == len(counts) else None)


def _all_of(request: Request, classes: tuple[str, ...]) -> bool:
    """Whichever alternative the scheduler takes, it is of these classes."""
    return bool(request.classes) and all(name in classes for name in request.classes)


def _request(request: Mapping[str, Any]) -> Request:
    alternatives = request.get("firstAvailable")
    if isinstance(alternatives, list) and alternatives:
        made = [_map(one) for one in alternatives]
        counts = {_count(one) for one in made}
        return Request(tuple(_classes(made)), counts.pop() if len(counts) == 1 else None, admin=False)
    exactly = _map(request.get("exactly")) or request  # v1beta1 has no `exactly`
    return Request(tuple(_classes([exactly])), _count(exactly), exactly.get("adminAccess") is True)


def _classes(requests: list[Mapping[str, Any]]) -> Iterator[str]:
    return (str(request.get("deviceClassName", "")) for request in requests)


def _count(request: Mapping[str, Any]) -> int | None:
    if request.get("allocationMode", "ExactCount") != "ExactCount":
        return None
    count = request.get("count", 1)
    return count if isinstance(count, int) else None


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
