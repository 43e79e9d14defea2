"""The gang's bandwidth against its floor: where it stands, and what that is in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import domains, equipment, floors
from .control.messages import Hello, LaunchOrder, VerdictMessage
from .control.rounds import LaunchRound
from .localise import Zone
from .settings import Settings, show_size


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
