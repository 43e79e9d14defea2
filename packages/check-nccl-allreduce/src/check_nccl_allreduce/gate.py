"""The gang's bandwidth against its floor: where it stands, and whether a topology file, or a way by
TCP, is why; in words. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from . import domains, equipment, floors
from .control.messages import Hello, LaunchOrder, VerdictMessage, among
from .control.rounds import LaunchRound
from .failures import MULTI_NODE_NVLINK
from .localise import Zone
from .settings import Settings, show_size

_TCP: Final = ("Socket", "(tcp", "(sockets")
_LOOK: Final = {
    "ib": "look for libibverbs and its driver in the image, NCCL_IB_HCA, and the container's memlock limit",
    "roce": "look for libibverbs and its driver in the image, NCCL_IB_HCA and NCCL_IB_GID_INDEX, and the container's memlock limit",
    "efa": "look for libfabric and aws-ofi-nccl (libnccl-net.so) in the image or on LD_LIBRARY_PATH",
    "tcpxo": "look for the plugin's folder among the check's mounts, LD_LIBRARY_PATH, and the daemon beside the workload",
}


@dataclass(frozen=True)
class FloorComparison:
    """The measurement (GB/s) against its floor; ``source``: of the floor, or why there is none."""

    zone: Zone
    busbw: float
    source: str
    floor: float | None = None
    expected: float | None = None


def compare_with_floor(
    settings: Settings, hellos: Mapping[int, Hello], last: LaunchRound
) -> FloorComparison:
    """A launch of which every member has reported."""
    start = last.order
    busbw = floors.bus_bandwidth(
        start.size, [result.times for result in last.results.values()], start.world
    )
    row = table_row(hellos, start)
    if settings.threshold is not None:
        floor = expected = settings.threshold
        source, decides = "NCCL_ALLREDUCE_THRESHOLD_GBPS", True
    elif row is not None:
        floor, expected = row.floor, row.expected
        source, decides = f"the table ({row.source})", row.corroborated
    else:
        return FloorComparison(Zone.UNKNOWN, busbw, no_row(hellos, start))
    zone = Zone.BETWEEN if busbw < max(floor, 0.9 * expected) else Zone.PASSED
    if busbw < floor and decides:
        zone = Zone.BELOW
    return FloorComparison(zone, busbw, source, floor, expected)


def verdict(settings: Settings, hellos: Mapping[int, Hello], last: LaunchRound) -> VerdictMessage:
    """What the gang's bandwidth alone says: OK or LOW_BANDWIDTH."""
    start = last.order
    shape = f"{start.world} ranks on {len(hellos)} members, {show_size(start.size)} per rank, {start.backend}"
    gate = compare_with_floor(settings, hellos, last)
    busbw, floor, expected, source = gate.busbw, gate.floor, gate.expected, gate.source
    measured, size = gbps(busbw), show_size(start.size)
    reached = f"{measured} GB/s bus bandwidth"
    metadata = {"measured_gbps": measured, "ranks": str(start.world), "size": size}
    outcome, code = "passed", "OK"
    if floor is None or expected is None:
        reason = f"{reached}, every element right, {shape}; no floor: {source}."
        return VerdictMessage(outcome, code, reason, float(measured), None, metadata)
    metadata |= {"floor_gbps": f"{floor:g}", "expected_gbps": f"{expected:g}", "source": source}
    if gate.zone is Zone.BELOW:
        outcome, code, less = "failed", "LOW_BANDWIDTH", (1 - busbw / floor) * 100
        more = f", {expected:g} expected" if expected > floor else ""
        reason = f"{reached} is {less:.0f} % below the floor of {floor:g} GB/s from {source}{more}, {shape}."
    else:
        note = f"{expected:g} expected"
        if busbw < floor:
            note = f"below the floor of {floor:g}, which fails nobody by itself as one source alone says what is healthy"
        elif gate.zone is Zone.BETWEEN:
            note = f"less than 90 % of the {expected:g} expected, but above the floor of {floor:g}"
        reason = f"{reached} ({note}, from {source}), every element right, {shape}."
    return VerdictMessage(outcome, code, reason, float(measured), expected, metadata)


def fabric_of(hellos: Mapping[int, Hello]) -> str | None:
    """The fabric that all members share, empty where it is unknown; None where theirs differ.

    Members whose adapters can do the same share one, whatever they do now: a node with a dead port
    is held against what its peers have.
    """
    if _one_nvlink_domain(hellos):
        return "mnnvl"
    fabrics = {hello.fabric for hello in hellos.values()}
    if len(fabrics) == 1:
        return fabrics.pop()
    [*able] = {equipped.nic for equipped in equipment.of_gang(hellos).values()}
    if len(able) > 1 or not able[0]:
        return None
    return max(fabrics, key=lambda fabric: (floors.wire(fabric) or 0.0, fabric))


def _one_nvlink_domain(hellos: Mapping[int, Hello]) -> bool:
    named = {hello.nvlink or hello.topology.get(domains.NVLINK, "") for hello in hellos.values()}
    return len(named) == 1 and "" not in named and all(hello.imex for hello in hellos.values())


def table_row(hellos: Mapping[int, Hello], start: LaunchOrder) -> floors.FloorRow | None:
    """What the table says of this gang; None where it knows nothing of it, or the measurement is
    none of the table's.
    """
    kinds = {(hello.model, hello.workers) for hello in hellos.values()}
    fabric = ring_fabric(hellos, start)
    if len(kinds) > 1 or fabric is None:
        return None
    [(model, gpus)] = kinds
    nodes = len({hello.node for hello in hellos.values()})
    return floors.find(model, gpus, fabric, nodes, start.size)


def ring_fabric(hellos: Mapping[int, Hello], start: LaunchOrder) -> str | None:
    """The fabric whose wire the probes' rings are held against; None where a variable may bend
    them, or NCCL does not carry them.

    Between nodes of one NVLink domain rings pass no adapter, and no wire is known.
    """
    if start.backend != "nccl" or any(hello.unusual for hello in hellos.values()):
        return None
    return fabric_of(hellos)


def no_row(hellos: Mapping[int, Hello], start: LaunchOrder) -> str:
    """Why the table says nothing."""
    if start.backend != "nccl":
        return f"{start.backend} has none"
    if unusual := sorted({name for hello in hellos.values() for name in hello.unusual}):
        return f"the workload sets {', '.join(unusual)}"
    shared = fabric_of(hellos)
    if shared is None or len({(hello.model, hello.workers) for hello in hellos.values()}) > 1:
        return "the members' hardware differs"
    hello = hellos[0]
    fabric = f"the fabric {shared}" if shared else "an unknown fabric (NCCL_ALLREDUCE_FABRIC)"
    return f"none is known for {hello.workers} x {hello.model} on {fabric}"


def gbps(value: float) -> str:
    """Two decimals, and three digits where that would be too few."""
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def fallen_back(
    hellos: Mapping[int, Hello], last: LaunchRound, base: VerdictMessage
) -> VerdictMessage | None:
    """The verdict on a launch, of which ``base`` is that by its bandwidth, that went by TCP where
    its nodes have adapters that do better; None where it did not, or has not ended well.

    NCCL tries its ways one after another and takes sockets where none works, without a warning. The
    gang runs, at a tenth of its speed, and pairs would show nodes that are alike.
    """
    nodes = {hello.node for hello in hellos.values()}
    if base.code not in {"OK", "LOW_BANDWIDTH"} or len(nodes) < 2:
        return None
    if any(MULTI_NODE_NVLINK in result.networks for result in last.results.values()):
        # NVLink carries the data, whatever NCCL has for the rest. That the nodes could use it says
        # nothing: NCCL may not, as without memory of CUDA's newer kind (NCCL_CUMEM_ENABLE).
        return None
    fallen = {
        rank: " and ".join(result.networks)
        for rank, result in sorted(last.results.items())
        if hellos[rank].rdma
        and any(part in network for network in result.networks for part in _TCP)
    }
    if not fallen:
        return None
    first = hellos[min(fallen)]
    who = among([hellos[rank].who for rank in fallen], len(hellos))
    look = _LOOK.get(first.nic.partition(" ")[0], "look for NCCL's network plugin in the image")
    reason = (
        f"NCCL went by TCP (network {fallen[first.rank]}) in {who}, although the pod may use {first.nic or 'RDMA adapters'}, "
        f"and reached {base.metadata.get('measured_gbps', '')} GB/s; {look}."
    )
    return VerdictMessage(
        "failed", "TRANSPORT_FALLBACK", reason, base.measured, base.expected, base.metadata
    )


def with_networks(last: LaunchRound, message: VerdictMessage) -> VerdictMessage:
    """The verdict with the networks that NCCL took in its details."""
    networks = sorted({network for result in last.results.values() for network in result.networks})
    if not networks:
        return message
    return msgspec.structs.replace(
        message, metadata=message.metadata | {"transport": ", ".join(networks)}
    )


def may_be_its_file(
    hellos: Mapping[int, Hello], last: LaunchRound, verdict: VerdictMessage
) -> bool:
    """Tell whether this launch, whose ``verdict`` that is, may be slow for a topology file.

    One launch without any file shows it, before pairs are measured. Whose file it is makes no
    difference: a mapping can be as wrong as a workload, and the loopback check does not ask either.
    Pairs are then measured without it too, so that what they show is the hardware's.
    """
    return (
        verdict.code == "LOW_BANDWIDTH"
        and not last.order.without_topology_file
        and any(hello.topology_file for hello in hellos.values())
    )


def untried(hellos: Mapping[int, Hello], slow: VerdictMessage) -> VerdictMessage:
    """The verdict on a slow launch when there was no time for another."""
    files = _files(hellos)
    note = f"whether the reason is {files} is not known, as CHECK_TIMEOUT left no time for a launch without it"
    return _noted(slow, note, files=files)


def compared(
    hellos: Mapping[int, Hello], slow: VerdictMessage, last: LaunchRound, verdict: VerdictMessage
) -> tuple[VerdictMessage, bool]:
    """(the verdict of both launches, whether it stands and no pair is to be measured).

    ``slow``: of the launch with the file. ``last`` is the one without, and ``verdict`` what it says
    by itself.
    """
    files, without = _files(hellos), verdict.metadata.get("measured_gbps", "")
    if verdict.outcome == "passed":
        # Of what failed the gang this is the cause, and no node's doing.
        slow = msgspec.structs.replace(slow, code="TOPOLOGY_FILE")
        note = f"{without} without NCCL's topology file; the nodes are healthy: correct or remove {files}"
        return _noted(slow, note, ", but ", files=files, without_file_gbps=without), True
    if verdict.code == "LOW_BANDWIDTH":
        note = f"without NCCL's topology file it is {without}, so the cause is not {files}"
        return _noted(slow, note, files=files, without_file_gbps=without), False
    if last.left or last.lost or verdict.code == "WRONG_DATA" or verdict.blamed:
        return verdict, False  # true with and without a file
    # NCCL may need the file here: what pairs without it would say of the nodes is not to be
    # trusted.
    note = f"whether the reason is {files} is not known, and no pairs were measured, as a launch without it failed ({verdict.reason.rstrip('.')})"
    return _noted(slow, note, files=files), True


def _noted(slow: VerdictMessage, note: str, by: str = "; ", **metadata: str) -> VerdictMessage:
    reason = f"{slow.reason.rstrip('.')}{by}{note}."
    return msgspec.structs.replace(slow, reason=reason, metadata=slow.metadata | metadata)


def _files(hellos: Mapping[int, Hello]) -> str:
    """Every topology file, whose it is, and which members had it."""
    having: dict[str, list[str]] = defaultdict(list)
    for _, hello in sorted(hellos.items()):
        if hello.topology_file:
            having[hello.topology_file].append(hello.who)
    return "; ".join(f"{file} ({among(who, len(hellos))})" for file, who in having.items())
