"""What a person sees of all GPUs: a row a node, a cell a GPU; and of one pod: its claim, its
leases, what it waits for. Pure.
"""

from __future__ import annotations

from datetime import datetime

from preflight_gpu_scheduler.api import messages
from preflight_gpu_scheduler.api.gpu_node_status import Device
from preflight_gpu_scheduler.api.types import Lease, Pod
from preflight_gpu_scheduler.core.lease_state import LeaseState as What
from preflight_gpu_scheduler.core.lease_state import judge
from preflight_gpu_scheduler.core.snapshot import GpuSnapshot, Key

__all__ = ["pod_text", "table"]


def table(seen: GpuSnapshot, now: datetime) -> str:
    """Devices by island, islands apart. A cell is the pod that has the GPU, ``-`` where it is free,
    or what is wrong with it. How long a reservation lasts yet follows from ``now``: for people, as
    clocks may differ.
    """
    rows = []
    for node, found in sorted(seen.inventories.items()):
        if found.problems:
            rows.append((node, f"not valid: {' '.join(found.problems)}"))
            continue
        islands: dict[str, list[str]] = {}
        leases = dict(seen.leases_on(node))
        for device in found.devices:
            islands.setdefault(device.island or "no island", []).append(
                _cell(seen, device, leases.get(device.id), now)
            )
        why = seen.view(node).blocked
        cells = (
            "  ".join(f"[{island}: {' '.join(those)}]" for island, those in islands.items())
            or "no devices"
        )
        rows.append((node, f"{cells}{f'  ({why})' if why else ''}"))
    if not rows:
        return "no GpuNodeStatus"
    width = max(len(node) for node, _ in rows)
    return "\n".join(f"{node.ljust(width)}  {cells}" for node, cells in rows)


def _cell(seen: GpuSnapshot, device: Device, lease: Lease | None, now: datetime) -> str:
    said = f"{device.id}:"
    if lease is None:
        return said + ("-" if device.usable else _sick(device))
    if not lease.ours:
        return f"{said}somebody else's Lease {lease.metadata.name}"
    pod = lease.pod or ("", "")
    state = judge(lease, seen.look(pod))
    words = {
        What.HELD: "/".join(pod),
        What.RESERVED: f"reserved for {'/'.join(pod)}{_left(lease, now)}",
        What.VOID: f"being taken back from {'/'.join(pod)}",
        What.LINGERING: f"of {'/'.join(pod)}, which is gone, and may still run",
        What.UNSURE: f"of {'/'.join(pod)}, which is not seen",
    }
    told = words.get(state, "free again")
    return said + told + ("" if device.usable else f" ({_sick(device)})")


def _left(lease: Lease, now: datetime) -> str:
    lasts, since = lease.spec.lease_duration_seconds, lease.spec.renew_time
    if lasts is None or since is None:
        return ""
    try:
        left = lasts - (now - datetime.fromisoformat(since)).total_seconds()
    except (TypeError, ValueError):  # no time, or one without its zone
        return ""
    return f" for {min(max(left, 0), lasts):.0f} s"


def _sick(device: Device) -> str:
    return (
        "MIG" if device.mig else f"{device.health}{f': {device.reason}' if device.reason else ''}"
    )


def pod_text(seen: GpuSnapshot, key: Key) -> str:
    """Empty where there is no such pod."""
    pod = seen.pod(key)
    if pod is None:
        return ""
    lines = [f"pod       {key[0]}/{key[1]} ({_phase(pod)})"]
    claim = seen.claim_of(pod)
    if claim is None:
        why = "not found" if _absent(seen, pod) else "not valid"
        lines.append(f"claim     {pod.claim or 'none'}: {why}")
    else:
        devices = claim.spec.devices
        gang = f", gang {claim.spec.gang_ref}" if claim.spec.gang_ref else ""
        lines.append(f"claim     {claim.name}: {devices.count} GPUs, {devices.policy}{gang}")
    leases = sorted(seen.held_by(pod.metadata.uid), key=lambda one: one.metadata.name)
    lines += [
        f"lease     {one.metadata.name}: {judge(one, seen.look(key)).value}" for one in leases
    ]
    if pod.allocated is not None:
        lines.append(f"has       {pod.allocated}")
    if (why := _waits(seen, pod)) != "":
        lines.append(f"waits     {why}")
    return "\n".join(lines)


def _absent(seen: GpuSnapshot, pod: Pod) -> bool:
    return seen.refusal_of(pod) == messages.CLAIM_NOT_FOUND


def _phase(pod: Pod) -> str:
    return f"bound to {pod.spec.node_name}" if pod.bound else "gated" if pod.gated else "not bound"


def _waits(seen: GpuSnapshot, pod: Pod) -> str:
    claim = seen.claim_of(pod)
    if pod.bound or pod.ended:
        return ""
    if claim is None:
        return f"for GpuClaim {pod.claim}{'' if _absent(seen, pod) else ' to become valid'}"
    if claim.gang is not None and pod.reserved is None:
        return f"for its gang {claim.spec.gang_ref} to be reserved whole"
    if pod.gated:
        return "for the controller to open its gate"
    return "for the scheduler; `kubectl describe pod` says what it found"
