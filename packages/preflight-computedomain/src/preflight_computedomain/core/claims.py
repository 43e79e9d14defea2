"""What a claim asks of this node's driver: its allocation and configurations, judged.

Pure, and never raises: whatever stands in a claim ends in a :class:`ChannelRequest` or in a
:class:`Refusal`. These are the checks 1 to 4 of Prepare; they need nothing but the claim.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from preflight_kube.text import one_line

from preflight_computedomain.api.names import (
    CHANNEL_CONFIG,
    DAEMON_CONFIG,
    DEVICE,
    DRIVER,
    fits_as_name,
    fits_as_namespace,
    fits_as_uid,
)
from preflight_computedomain.api.opaque_config import ConfigInvalid, channel_config, is_daemon
from preflight_computedomain.api.types import (
    AllocationConfig,
    AllocationResult,
    ResourceClaim,
    ResourceClaimStatus,
)

__all__ = ["NO_DAEMONS", "REASONS", "ChannelRequest", "KubeletClaim", "Refusal", "read", "unusable"]

NO_DAEMONS: Final = (
    "ComputeDomain daemon claims are not supported under the HostManagedIMEX feature gate"
)
REASONS: Final[Mapping[str, str]] = {
    "bad-name": "the kubelet's request names no possible claim",
    "gone": "the claim has been deleted",
    "other-claim": "another claim has the name by now",
    "unreadable": "the claim's status cannot be read",
    "no-allocation": "the claim has no allocation",
    "results": "the claim does not ask for exactly one device of this driver on this node",
    "device": "the device is not on this node",
    "daemon": "the claim is a daemon's, of driver-managed IMEX",
    "config": "the configuration is missing, there twice, or wrong",
    "allocation-mode": "the allocationMode is another than Single",
    "no-domain": "the ComputeDomain has been deleted or belongs to another namespace",
    "no-clique": "the node has no NVLink clique",
    "aborted": "the claim's preparation was aborted",
    "channel-in-use": "another claim has channel 0 of the node",
    "ended": "the kubelet has unprepared the claim in the meantime",
    "undone": "another plugin of the node has just unprepared the claim",
    "api-server": "the claim or its ComputeDomain could not be read",
    "lock": "the plugin's folder is locked by another process",
    "checkpoint": "the checkpoint cannot be read",
    "driver": "the NVIDIA driver is not loaded, is being loaded anew, NVML does not answer, or a GPU has not joined its NVLink fabric",
    "disk": "the node's disk refuses, or does not answer in time",
    "internal": "an error of the driver's own, which its log describes",
}
"""Why a claim is not prepared, in a word for metrics and logs, and what it means."""
_CLAIM: Final = "FromClaim"
_STATUS: Final = msgspec.json.Decoder(ResourceClaimStatus)


@dataclass(frozen=True, slots=True)
class KubeletClaim:
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{one_line(self.namespace, 63)}/{one_line(self.name, 253)}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a claim is not prepared. ``permanent``: no use in waiting for it within a call.
    ``reason``: one of :data:`REASONS`.
    """

    reason: str
    sentence: str
    permanent: bool = True

    def told(self, ref: KubeletClaim, node: str) -> str:
        """The answer to the kubelet, which shows it in an Event of the pod."""
        return f"{DRIVER}: {ref}: {self.sentence} (node {node})."


@dataclass(frozen=True, slots=True)
class ChannelRequest:
    """Channel 0 for a claim. ``request``: its base name. ``domain``: uid of its ComputeDomain.
    ``status``: the claim's, as JSON.
    """

    ref: KubeletClaim
    request: str
    domain: str
    status: bytes


def unusable(ref: KubeletClaim) -> Refusal | None:
    """A refusal where the kubelet's words cannot name a claim: they become part of a path and of a
    file's name.
    """
    for field, fits in (
        ("namespace", fits_as_namespace(ref.namespace)),
        ("name", fits_as_name(ref.name)),
        ("uid", fits_as_uid(ref.uid)),
    ):
        if not fits:
            shown = one_line(getattr(ref, field), 80)
            return Refusal(
                "bad-name",
                f"field {field} of the kubelet's request is {shown!r}, which cannot be a claim's",
            )
    return None


def read(ref: KubeletClaim, claim: ResourceClaim | None, node: str) -> ChannelRequest | Refusal:
    """``claim``: what the API server has under ``ref``'s name now."""
    if claim is None:
        return Refusal(
            "gone",
            "the claim has been deleted; delete the pod, so that it is made anew with its claim",
        )
    if claim.metadata.uid != ref.uid:
        found = one_line(claim.metadata.uid, 80)
        return Refusal(
            "other-claim",
            f"is another claim by now ({found}, not {ref.uid}); delete the pod, so that it gets the new one",
        )
    status = bytes(claim.status)
    try:
        allocation = _STATUS.decode(status).allocation
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return Refusal(
            "unreadable",
            f"field status cannot be read ({one_line(str(error), 120)}); make the claim anew",
        )
    if allocation is None:
        return Refusal(
            "no-allocation", "field status.allocation is missing; let the scheduler place the pod"
        )
    ours = tuple(one for one in allocation.devices.results if one.driver == DRIVER)
    here = tuple(one for one in ours if one.pool == node)
    if len(here) != 1:
        return _not_one(ours, here)
    return _configured(ref, here[0], allocation.devices.config, status)


def _not_one(ours: Sequence[AllocationResult], here: Sequence[AllocationResult]) -> Refusal:
    shown = ", ".join(
        f"{one_line(one.device, 60)} of {one_line(one.pool, 80)}" for one in (here or ours)[:5]
    )
    return Refusal(
        "results",
        f"field status.allocation.devices.results has {len(here)} devices of this driver on this node ({shown or 'none'}), and must "
        f"have one; ask for one device of class compute-domain-default-channel.nvidia.com",
    )


def _configured(
    ref: KubeletClaim, result: AllocationResult, configs: Sequence[AllocationConfig], status: bytes
) -> ChannelRequest | Refusal:
    mine = [one for one in configs if _applies(one, result)]
    of_claim = [one for one in mine if one.source == _CLAIM]
    chosen = of_claim or mine
    parameters = [bytes(one.opaque.parameters) for one in chosen if one.opaque is not None]
    daemons = any(map(is_daemon, parameters))
    if daemons or result.device.startswith("daemon-"):
        found = f"kind {DAEMON_CONFIG}" if daemons else f"device {one_line(result.device, 80)}"
        return Refusal(
            "daemon",
            f"{NO_DAEMONS} (request {one_line(result.request, 130)} has {found}); delete the pod, which driver-managed IMEX has left, "
            f"or use the ResourceClaimTemplate that a ComputeDomain makes",
        )
    if result.device != DEVICE:
        shown = one_line(result.device, 80)
        return Refusal(
            "device",
            f"device {shown} is not on this node, which offers {DEVICE} alone; let the scheduler choose anew",
        )
    if len(parameters) != 1:
        return Refusal(
            "config",
            f"request {one_line(result.request, 130)} has {len(parameters) or 'no'} configurations of driver {DRIVER}, and must have one "
            f"{CHANNEL_CONFIG}; use the ResourceClaimTemplate that a ComputeDomain makes",
        )
    try:
        config = channel_config(parameters[0])
    except ConfigInvalid as error:
        return Refusal(
            "config",
            f"in the configuration of request {one_line(result.request, 130)} {error}; use the ResourceClaimTemplate that a "
            "ComputeDomain makes",
        )
    if config.mode not in ("", "Single"):
        return Refusal(
            "allocation-mode",
            f'host-managed IMEX supports only allocationMode "Single" (channel 0); got {one_line(json.dumps(config.mode, ensure_ascii=False), 60)}; make the '
            "ComputeDomain anew with spec.channel.allocationMode: Single",
        )
    return ChannelRequest(ref, result.base, config.domain, status)


def _applies(config: AllocationConfig, result: AllocationResult) -> bool:
    if config.opaque is None or config.opaque.driver != DRIVER:
        return False
    return (
        not config.requests or result.request in config.requests or result.base in config.requests
    )
