"""The decision of Prepare: what a claim asks of this node, and whether it can have it. Pure.

Never raises: whatever stands in a claim ends in a :class:`ChannelRequest` or a :class:`Refusal`.
The checks 1 to 4 of Prepare need nothing but the claim; 5 to 7 are :func:`decide`'s.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec
from preflight_kube.text import one_line

from preflight_computedomain.api import names
from preflight_computedomain.api.checkpoint import ABORTED, COMPLETED, Channel, Entry
from preflight_computedomain.api.opaque_config import ConfigInvalid, channel_config, is_daemon
from preflight_computedomain.api.types import (
    AllocationResult,
    DeviceConfig,
    ResourceClaim,
    ResourceClaimStatus,
)

NO_DAEMONS: Final = (
    "ComputeDomain daemon claims are not supported under the HostManagedIMEX feature gate"
)
_CLAIM: Final = "FromClaim"
IN_USE: Final = "channel-in-use"
NO_CLIQUE: Final = "no-clique"
_ABORTED_FOR: Final = timedelta(seconds=90)
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
    """Why a claim is not prepared. ``reason``: a word for metrics and logs, which README explains.
    ``permanent``: no use in waiting for it.
    """

    reason: str
    sentence: str
    permanent: bool = True

    def told(self, ref: KubeletClaim, node: str) -> str:
        """The answer to the kubelet, which shows it in an Event of the pod."""
        return f"{names.DRIVER}: {ref}: {self.sentence} (node {node})."


@dataclass(frozen=True, slots=True)
class ChannelRequest:
    """Channel 0 for a claim. ``request``: its base name. ``domain``: a uid. ``status``: as JSON."""

    ref: KubeletClaim
    request: str
    domain: str
    status: bytes


def unusable(ref: KubeletClaim) -> Refusal | None:
    """A refusal where the kubelet's words, which become part of a path, cannot name a claim."""
    for field, fits in (
        ("namespace", names.fits_as_namespace(ref.namespace)),
        ("name", names.fits_as_name(ref.name)),
        ("uid", names.fits_as_uid(ref.uid)),
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
        other = one_line(claim.metadata.uid, 80)
        return Refusal(
            "other-claim",
            f"is another claim by now ({other}, not {ref.uid}); delete the pod, so that it gets the new one",
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
    ours = tuple(result for result in allocation.devices.results if result.driver == names.DRIVER)
    here = tuple(result for result in ours if result.pool == node)
    if len(here) != 1:
        return _not_one(ours, here)
    return _configured(ref, here[0], allocation.devices.config, status)


def _not_one(ours: Sequence[AllocationResult], here: Sequence[AllocationResult]) -> Refusal:
    shown = ", ".join(
        f"{one_line(result.device, 60)} of {one_line(result.pool, 80)}"
        for result in (here or ours)[:5]
    )
    return Refusal(
        "results",
        f"field status.allocation.devices.results has {len(here)} devices of this driver on this node ({shown or 'none'}), and must "
        f"have one; ask for one device of class compute-domain-default-channel.nvidia.com",
    )


def _configured(
    ref: KubeletClaim, result: AllocationResult, configs: Sequence[DeviceConfig], status: bytes
) -> ChannelRequest | Refusal:
    mine = [config for config in configs if _applies(config, result)]
    of_claim = [config for config in mine if config.source == _CLAIM]
    chosen = of_claim or mine
    parameters = [bytes(config.opaque.parameters) for config in chosen if config.opaque is not None]
    daemons = any(map(is_daemon, parameters))
    if daemons or result.device.startswith("daemon-"):
        kind = f"kind {names.DAEMON_CONFIG}" if daemons else f"device {one_line(result.device, 80)}"
        return Refusal(
            "daemon",
            f"{NO_DAEMONS} (request {one_line(result.request, 130)} has {kind}); delete the pod, which driver-managed IMEX has left, "
            f"or use the ResourceClaimTemplate that a ComputeDomain makes",
        )
    if result.device != names.DEVICE:
        shown = one_line(result.device, 80)
        return Refusal(
            "device",
            f"device {shown} is not on this node, which offers {names.DEVICE} alone; let the scheduler choose anew",
        )
    if len(parameters) != 1:
        return Refusal(
            "config",
            f"request {one_line(result.request, 130)} has {len(parameters) or 'no'} configurations of driver {names.DRIVER}, and must have one "
            f"{names.CHANNEL_CONFIG}; use the ResourceClaimTemplate that a ComputeDomain makes",
        )
    try:
        domain, mode = channel_config(parameters[0])
    except ConfigInvalid as error:
        return Refusal(
            "config",
            f"in the configuration of request {one_line(result.request, 130)} {error}; use the ResourceClaimTemplate that a "
            "ComputeDomain makes",
        )
    if mode not in ("", "Single"):
        return Refusal(
            "allocation-mode",
            f'host-managed IMEX supports only allocationMode "Single" (channel 0); got {one_line(json.dumps(mode, ensure_ascii=False), 60)}; make the '
            "ComputeDomain anew with spec.channel.allocationMode: Single",
        )
    return ChannelRequest(ref, result.base, domain, status)


def _applies(config: DeviceConfig, result: AllocationResult) -> bool:
    if config.opaque is None or config.opaque.driver != names.DRIVER:
        return False
    return (
        not config.requests or result.request in config.requests or result.base in config.requests
    )


def known(entries: Mapping[str, Entry], ref: KubeletClaim) -> Channel | Refusal | None:
    """Decide by the checkpoint alone: a channel, a refusal, or None: the claim must be read."""
    entry = entries.get(ref.uid)
    if entry is None or entry.state != COMPLETED:
        return None
    if (channel := entry.channel(ref.uid)) is not None:
        return channel
    why = f"{NO_DAEMONS} (the checkpoint has this one as prepared)"
    if b'"daemon":null' in bytes(entry.devices):
        why = "the checkpoint has the claim as prepared without a channel, as driver-managed IMEX does on a node without an NVLink clique"
    return Refusal("daemon", f"{why}; delete the pod, which driver-managed IMEX has left")


def in_use(entries: Mapping[str, Entry], uid: str) -> Refusal | None:
    """The check 7: channel 0 is prepared for another claim."""
    holders = sorted(it for it, entry in entries.items() if it != uid and entry.channel(it))
    if not holders:
        return None
    theirs, kept = holders[0], entries[holders[0]]
    name = "of an unknown name"
    if kept.name:
        name = f"{one_line(kept.namespace, 63)}/{one_line(kept.name, 253)}"
    return Refusal(
        IN_USE,
        f"channel 0 of this node is prepared for claim {name} ({one_line(theirs, 80)}); delete its pod, or run this one elsewhere",
        permanent=False,
    )


def decide(
    request: ChannelRequest,
    domains: Collection[str],
    clique: str,
    entries: Mapping[str, Entry],
    now: datetime,
) -> Channel | Refusal | None:
    """None: prepare it now; else as :func:`known`, of which a channel is the same device again.

    ``domains``: uids of the namespace's ComputeDomains. ``clique``: the node's, empty for none.
    """
    if (decided := known(entries, request.ref)) is not None:
        return decided
    entry = entries.get(request.ref.uid)
    if entry is not None and entry.state == ABORTED and _still_aborted(entry, request, now):
        return Refusal(
            "aborted",
            "its preparation was aborted; delete the pod, so that its claim is allocated anew",
        )
    if request.domain not in domains:
        return Refusal(
            "no-domain",
            f"domainID {one_line(request.domain, 80)} is not a ComputeDomain of namespace {request.ref.namespace}: it has been deleted or "
            "belongs to another namespace; make the ComputeDomain and the pod anew",
        )
    if not clique:
        return Refusal(
            NO_CLIQUE,
            "host-managed IMEX requires an NVLink clique on this node, but NVML reports none; run the pod on a node of a multi-node "
            "NVLink system, or repair its fabric manager",
        )
    return in_use(entries, request.ref.uid)


def alone(request: ChannelRequest, granted: Collection[str], clique: str) -> Refusal | None:
    """Where cliques are exclusive: a refusal unless the ComputeDomain has the node's for itself."""
    if clique in granted:
        return None
    return Refusal(
        "clique-in-use",
        f"its ComputeDomain does not have the NVLink clique {one_line(clique, 64)} of this node for itself (exclusiveCliques): another one is active "
        "there, or the controller has not said yet; end the other one's pods, or run this one in another clique",
        permanent=False,
    )


def _still_aborted(entry: Entry, request: ChannelRequest, now: datetime) -> bool:
    if entry.aborted_at is None or not timedelta(0) <= now - entry.aborted_at < _ABORTED_FOR:
        return False
    try:
        return bool(json.loads(bytes(entry.status)) == json.loads(request.status))
    except (ValueError, RecursionError):
        return bytes(entry.status) == request.status
