"""What Prepare does about a claim: from the checkpoint, the judged claim and the node's facts to
one decision.

Pure. The checks 5 to 7 of Prepare, and what a checkpoint's entry means.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from preflight_kube.text import one_line

from preflight_computedomain.api.checkpoint import ABORTED, COMPLETED, Entry
from preflight_computedomain.core.claims import NO_DAEMONS, ChannelRequest, KubeletClaim, Refusal

__all__ = [
    "IN_USE",
    "NO_CLIQUE",
    "AlreadyPrepared",
    "Prepare",
    "decide",
    "holder",
    "in_use",
    "known",
]

IN_USE: Final = "channel-in-use"
NO_CLIQUE: Final = "no-clique"
_ABORTED_FOR: Final = timedelta(seconds=90)


@dataclass(frozen=True, slots=True)
class AlreadyPrepared:
    """The claim is prepared: the same devices again, and its CDI file where that is missing or
    differs.
    """

    entry: Entry


@dataclass(frozen=True, slots=True)
class Prepare:
    """Prepare it now."""

    request: ChannelRequest


def known(entries: Mapping[str, Entry], ref: KubeletClaim) -> AlreadyPrepared | Refusal | None:
    """What the checkpoint alone decides; None where the claim itself must be read."""
    entry = entries.get(ref.uid)
    if entry is None or entry.state != COMPLETED:
        return None
    if not entry.channel:
        return Refusal(
            "daemon",
            f"{NO_DAEMONS} (the checkpoint has this one as prepared); delete the pod, which driver-managed IMEX has left",
        )
    return AlreadyPrepared(entry)


def holder(entries: Mapping[str, Entry], uid: str) -> tuple[str, Entry] | None:
    """The other claim that channel 0 is prepared for, with its uid."""
    for other, entry in sorted(entries.items()):
        if other != uid and entry.state == COMPLETED and entry.channel:
            return other, entry
    return None


def in_use(entries: Mapping[str, Entry], uid: str) -> Refusal | None:
    """The check 7: channel 0 is prepared for another claim."""
    if (other := holder(entries, uid)) is None:
        return None
    theirs, kept = other
    name = (
        f"{one_line(kept.namespace, 63)}/{one_line(kept.name, 253)}"
        if kept.name
        else "of an unknown name"
    )
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
) -> Prepare | AlreadyPrepared | Refusal:
    """``domains``: uids of the ComputeDomains in the claim's namespace. ``clique``: the node's,
    empty for none. ``now``: UTC.
    """
    if (said := known(entries, request.ref)) is not None:
        return said
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
    return in_use(entries, request.ref.uid) or Prepare(request)


def _still_aborted(entry: Entry, request: ChannelRequest, now: datetime) -> bool:
    if entry.aborted_at is None or not timedelta(0) <= now - entry.aborted_at < _ABORTED_FOR:
        return False
    try:
        return bool(json.loads(entry.status) == json.loads(request.status))
    except (ValueError, RecursionError):
        return entry.status == request.status
