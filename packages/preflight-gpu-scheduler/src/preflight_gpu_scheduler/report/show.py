"""What a person sees of all GPUs, and of one pod. Pure."""

from __future__ import annotations

from datetime import datetime

from preflight_gpu_scheduler.api import messages
from preflight_gpu_scheduler.api.claim import Claim
from preflight_gpu_scheduler.api.gpu_node_status import Device
from preflight_gpu_scheduler.api.types import Lease, Pod
from preflight_gpu_scheduler.core.filter_prioritize import user_of
from preflight_gpu_scheduler.core.ledger import LeaseState, judge
from preflight_gpu_scheduler.core.snapshot import GpuSnapshot, Key


def table(seen: GpuSnapshot, now: datetime) -> str:
    """Devices by island, islands apart. A cell is the pod that has the GPU, ``-`` where it is free,
    or what is wrong with it. ``now``: for how long a reservation lasts yet.
    """
    rows = []
    over = {pod.uid for pod in seen.pods.store.values() if pod.ended}
    for node, inventory in sorted(seen.statuses.store.items()):
        if inventory.problems:
            rows.append((node, f"not valid: {' '.join(inventory.problems)}"))
            continue
        islands: dict[str, list[str]] = {}
        leases = dict(seen.leases_on(node))
        for device in inventory.devices:
            user = f"used by {uses}" if (uses := user_of(device, over.__contains__)) else ""
            if device.id in seen.others(node):
                user = "a pod's, whose Lease is lost"
            cell = _cell(seen, device, leases.get(device.id), user, now)
            islands.setdefault(device.island or "no island", []).append(cell)
        cells = [f"[{island}: {' '.join(of_it)}]" for island, of_it in islands.items()]
        why = f"  ({blocked})" if (blocked := seen.view(node).blocked) else ""
        rows.append((node, f"{'  '.join(cells) or 'no devices'}{why}"))
    if not rows:
        return "no GpuNodeStatus"
    width = max(len(node) for node, _ in rows)
    return "\n".join(f"{node.ljust(width)}  {cells}" for node, cells in rows)


def _cell(seen: GpuSnapshot, device: Device, lease: Lease | None, user: str, now: datetime) -> str:
    """``user``: what it is without a Lease."""
    if lease is None:
        state = user
    elif not lease.ours:
        state = f"somebody else's Lease {lease.name}"
    else:
        key = lease.pod or ("", "")
        pod = "/".join(key)
        states = {
            LeaseState.HELD: pod,
            LeaseState.RESERVED: f"reserved for {pod}{_left(lease, now)}",
            LeaseState.VOID: f"being taken back from {pod}",
            LeaseState.LINGERING: f"of {pod}, which is gone, and may still run",
            LeaseState.UNSURE: f"of {pod}, which is not seen",
        }
        state = states.get(judge(lease, seen.look(key)), "free again")
    why = f": {device.reason}" if device.reason else ""
    sick = "" if device.usable else "MIG" if device.mig else f"{device.health}{why}"
    return f"{device.id}:{f'{state} ({sick})' if state and sick else state or sick or '-'}"


def _left(lease: Lease, now: datetime) -> str:
    lasts, since = lease.spec.lease_duration_seconds, lease.spec.renew_time
    if lasts is None or since is None:
        return ""
    left = lasts - (now - datetime.fromisoformat(since)).total_seconds()
    return f" for {min(max(left, 0), lasts):.0f} s"


def pod_text(seen: GpuSnapshot, key: Key) -> str:
    """One fact a line; empty where there is no such pod."""
    pod = seen.pod(key)
    if pod is None:
        return ""
    phase = f"bound to {pod.spec.node_name}" if pod.bound else "gated" if pod.gated else "not bound"
    rows = [("pod", f"{key[0]}/{key[1]} ({phase})")]
    claim, refusal = seen.claim_of(pod), seen.refusal_of(pod)
    if claim is None:
        rows.append(("claim", f"{pod.claim or 'none'}: {refusal.removeprefix('GpuClaim ')}"))
    else:
        devices = claim.spec.devices
        gang = f", gang {claim.spec.gang_ref}" if claim.spec.gang_ref else ""
        rows.append(("claim", f"{claim.name}: {devices.count} GPUs, {devices.policy}{gang}"))
    rows += [
        ("lease", f"{lease.name}: {judge(lease, seen.look(key)).value}")
        for lease in sorted(seen.held_by(pod.uid), key=lambda lease: lease.name)
    ]
    if pod.allocated is not None:
        rows.append(("has", f"{pod.allocated}"))
    if not (pod.bound or pod.ended):
        rows.append(("waits", _waits(pod, claim, refusal)))
    return "\n".join(f"{name:<10}{text}" for name, text in rows)


def _waits(pod: Pod, claim: Claim | None, refusal: str) -> str:
    if claim is None:
        valid = " to become valid" if refusal == messages.CLAIM_NOT_VALID else ""
        return f"for GpuClaim {pod.claim}{valid}"
    if refusal:
        return f"for nothing: {refusal}"
    if claim.gang is not None and pod.reserved is None:
        return f"for its gang {claim.spec.gang_ref} to be reserved whole"
    if pod.gated:
        return "for the controller to open its gate"
    return "for the scheduler; `kubectl describe pod` says what it found"
