"""Dynamic resource allocation: which of a pod's claims are for GPUs, which for network devices, and
for how many.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from preflight_kube.api.workloads.model import map_of
from preflight_proto.devices import DeviceRequest, is_for_gpus, requests_of

from preflight_webhook.api.types import ClaimEntry
from preflight_webhook.config.config import Config
from preflight_webhook.core.detect.resources import matches

CLAIMS: Final = "resourceclaims"
TEMPLATES: Final = "resourceclaimtemplates"


class Ref(NamedTuple):
    """A claim or a template in the pod's namespace; ``plural`` is the resource's."""

    plural: str
    name: str

    @property
    def kind(self) -> Literal["ResourceClaim", "ResourceClaimTemplate"]:
        """The object's kind."""
        return "ResourceClaim" if self.plural == CLAIMS else "ResourceClaimTemplate"


class DeviceClaim(NamedTuple):
    """What a claim, or the template of one, asks for. ``uid``: its own; ``used_by``: the pod that
    has it now, empty where none has.
    """

    requests: tuple[DeviceRequest, ...]
    uid: str = ""
    used_by: str = ""


class ClaimDevices(NamedTuple):
    """What a claim gives. ``gpus``: how many, None when that is not known beforehand; ``mirrored``:
    what the checks get as the workload does, and is neither GPU nor network device, such as a
    channel to GPUs of other nodes."""

    gpu: bool
    network: bool
    gpus: int | None
    mirrored: bool = False


def ref(entry: ClaimEntry) -> Ref | None:
    """What an entry of `spec.resourceClaims` names, or None when that is nothing known here."""
    if entry.resource_claim_template_name:
        return Ref(TEMPLATES, entry.resource_claim_template_name)
    return Ref(CLAIMS, entry.resource_claim_name) if entry.resource_claim_name else None


def detects(config: Config) -> bool:
    """Whether claims matter at all here."""
    return bool(
        config.gpu_detection.device_classes
        or config.network_detection.device_classes
        or config.mirror_claims
    )


def read(item: Mapping[str, Any]) -> DeviceClaim:
    """A ResourceClaim or ResourceClaimTemplate as the API server gives it. Never raises."""
    uid = map_of(item.get("metadata")).get("uid")
    return DeviceClaim(
        tuple(requests_of(item)),
        uid if isinstance(uid, str) else "",
        _user(map_of(item.get("status")).get("reservedFor")),
    )


def _user(reserved: Any) -> str:
    """The first of those that a claim is reserved for, which are pods."""
    first = map_of(reserved[0]) if isinstance(reserved, list) and reserved else {}
    return str(first.get("name") or "another") if first else ""


def devices(claim: DeviceClaim | None, config: Config) -> ClaimDevices:
    """What the configured device classes make of ``claim``; None is one that does not exist.
    Administrative access gives a pod no device of its own.

    A request that may be met by GPUs or by something else is for GPUs: the scheduler decides, and
    it may decide for them.
    """
    classes = config.gpu_detection.device_classes
    if claim is None:
        known = bool(classes)  # else no claim is for GPUs
        gpu = known and config.unresolved_claims != "allow"
        return ClaimDevices(gpu=gpu, network=False, gpus=None)
    own = [request for request in claim.requests if not request.admin]
    gpus = [
        request
        for request in claim.requests
        if is_for_gpus(request.classes, classes, admin=request.admin)
    ]
    network = any(_all_like(request, config.network_detection.device_classes) for request in own)
    mirrored = any(_all_like(request, config.mirror_claims) for request in own)
    counts = [request.amount if _all_like(request, classes) else None for request in gpus]
    known_counts = [count for count in counts if count is not None]
    total = sum(known_counts) if len(known_counts) == len(counts) else None
    return ClaimDevices(bool(gpus), network, total, mirrored)


def _all_like(request: DeviceRequest, globs: tuple[str, ...]) -> bool:
    """Whether, whichever alternative the scheduler takes, it is of these classes."""
    return bool(request.classes) and all(matches(name, globs) for name in request.classes)
