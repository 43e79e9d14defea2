"""A node's GpuNodeStatus from what NVML, the Node and its pods say. Pure: the agent asks, and
writes. An id belongs to a UUID: a lease locks the one, and a variable names the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from preflight_gpu_scheduler.api import gpu_node_status as inventory
from preflight_gpu_scheduler.api.gpu_node_status import Device, Health, InventoryStatus
from preflight_gpu_scheduler.api.names import MOST_ID, PLUGIN_RESOURCES
from preflight_gpu_scheduler.api.types import Node, Pod

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that a program causes by itself, as NVIDIA's device plugin counts them: the GPU is well."""
RECOVERY_XID: Final = 154
"""Says that what the driver asks for has changed, to nothing too; what it is is read itself."""
_DRAIN_P2P, _RECOVER_IMEX = 3, 5  # nvml.h: nvmlDeviceGpuRecoveryAction_t; all others are resets
LOST: Final = "NVML does not list it any more"
SILENT: Final = "NVML does not answer"


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One NVLink that is up, and ends at a GPU (``remote``: its PCI bus id) or a switch.
    ``bandwidth``: GB/s in one direction."""

    ends: Literal["gpu", "switch"]
    remote: str = ""
    bandwidth: float = 0.0


def bus_id(text: str) -> str:
    """`domain:bus:device.function` with a domain of four digits, as the kernel; NVML has eight."""
    domain, colon, rest = text.strip().lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest}" if colon else domain


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """NVML's word on one GPU now. ``links``: those that are up. ``pcie``: GB/s in one direction.
    ``numa``: the NUMA node, where it is known. ``placed``: False where not all of these are known.
    ``answers``: False where the GPU is lost (fallen off the bus). ``ecc_pending``: uncorrectable
    errors wait for a reset; ``remap_failed``: a row could not be remapped. ``xids``: those seen
    since the last status. ``recovery``: nvml.h's nvmlDeviceGpuRecoveryAction_t, None of a driver
    without it. ``processes``: None where they cannot be decided. ``unknown``: why it is not known
    whether the GPU may be given."""

    uuid: str
    pci_bus_id: str = ""
    links: tuple[Link, ...] = ()
    pcie: float = 0.0
    numa: int | None = None
    name: str = ""
    answers: bool = True
    ecc_pending: bool = False
    remap_failed: bool = False
    xids: tuple[int, ...] = ()
    recovery: int | None = None
    mig: bool = False
    processes: int | None = None
    placed: bool = True
    unknown: str = ""


def health(facts: Facts, complaint: str) -> tuple[Health, str]:
    """The worst of what NVML and the node say, and why; Healthy has no reason."""
    known = set() if facts.recovery is None else {RECOVERY_XID}
    critical = sorted(set(facts.xids) - APPLICATION_XIDS - known)
    drains = facts.recovery == _DRAIN_P2P
    signs = (
        (not facts.answers, "NVML says that the GPU is lost"),
        (facts.ecc_pending, "uncorrectable memory errors wait for a reset"),
        (facts.remap_failed, "a memory row could not be remapped"),
        (bool(critical), f"XID {', '.join(map(str, critical[:8]))}"),
        (drains, "the driver asks that its traffic with other GPUs ends"),
        (_asks_reset(facts.recovery), "the driver asks for a reset or a restart"),
        (bool(complaint), complaint),
    )
    sick: list[tuple[Health, str]] = [("Unhealthy", why) for true, why in signs if true]
    return (*sick, ("Unknown" if facts.unknown else "Healthy", facts.unknown))[0]


def _asks_reset(recovery: int | None) -> bool:
    """Tell whether the driver asks for a reset or a restart. IMEX is the nodes', and no GPU's."""
    return recovery not in {None, 0, _DRAIN_P2P, _RECOVER_IMEX}


def ids(known: Mapping[str, int], uuids: Sequence[str]) -> dict[str, int]:
    """The id of each of ``uuids``: the one it has in ``known``, else the lowest that nobody has."""
    taken = set(known.values())
    numbers: dict[str, int] = {}
    fresh = (number for number in range(MOST_ID + 1) if number not in taken)
    for uuid in uuids:
        number = known.get(uuid)
        number = next(fresh, None) if number is None else number
        if number is not None:
            numbers[uuid] = number
    return numbers


def status(
    previous: InventoryStatus,
    facts: Sequence[Facts] | None,
    complaints: Mapping[str, str],
    pods: Iterable[Pod],
    node: str,
    *,
    holders: Mapping[int, str],
    conflicts: Sequence[str] = (),
    observed: str,
    boot: str = "",
) -> InventoryStatus:
    """``facts``: None while NVML cannot be read: then nothing is known, and nothing given.
    ``holders``: the uid in each GPU's Lease; only that pod's word is believed.

    A GPU that is not listed any more keeps its place and its id, as Unhealthy, until no pod has it
    and another GPU is in its slot, or all that are listed are others. XIDs are remembered until the
    node's next ``boot``, or until a driver that asked for a reset of the GPU no longer does.
    """
    pods, by_id = tuple(pods), {device.id: device for device in previous.devices if device.uuid}
    old = {device.uuid: device for device in by_id.values()}  # an id is one GPU's, whatever it says
    says = claimed(pods, node)
    users = {gpu: (uid,) for gpu, uids in says.items() if (uid := holders.get(gpu)) in uids}
    base = InventoryStatus(observed_time=observed, conflicts=tuple(conflicts))
    if facts is None:
        silent = tuple(_with(device, "Unknown", SILENT, users) for device in previous.devices)
        return msgspec.structs.replace(
            base,
            total=len(silent) or None,  # of a node that has never been read; not 0
            reason=SILENT,
            boot_id=previous.boot_id,
            devices=silent,
        )
    listed = {gpu.uuid: gpu for gpu in facts}
    slots = {bus_id(gpu.pci_bus_id) for gpu in facts if gpu.answers}
    another = bool(listed) and listed.keys().isdisjoint(old)  # machine, of the same name
    gone = [
        device
        for uuid, device in old.items()
        if uuid not in listed
        and (users.get(device.id) or not (another or bus_id(device.pci_bus_id) in slots))
    ]
    kept = {uuid: it.id for uuid, it in old.items() if uuid in listed or it in gone}
    for pod in pods:  # the memory where the status is lost
        has = pod.placed if pod.claim and pod.spec.node_name == node and not pod.ended else None
        if has is not None and len(pod.uuids) == len(has.ids):
            for uuid, number in zip(pod.uuids, has.ids, strict=True):
                if uuid not in kept and number not in kept.values():
                    kept[uuid] = number
    ordered = sorted(listed.values(), key=lambda gpu: bus_id(gpu.pci_bus_id))
    numbers = ids(kept, [gpu.uuid for gpu in ordered])
    numbered = [gpu for gpu in ordered if gpu.uuid in numbers]
    placed = (gpu for gpu in numbered if gpu.answers and (gpu.placed or gpu.uuid not in old))
    where = islands({numbers[gpu.uuid]: gpu for gpu in placed})
    devices = [_with(device, "Unhealthy", LOST, users) for device in gone]
    for sampled in numbered:
        number = numbers[sampled.uuid]
        before = old.get(sampled.uuid) or Device(id=number)
        island, bandwidth = where.get(number, (before.island, before.bandwidth_gbps))
        forgiven = boot != previous.boot_id or (
            _asks_reset(before.recovery) and sampled.recovery == 0
        )
        xids = sorted({*sampled.xids, *(() if forgiven else before.xids)})[: inventory.MOST_XIDS]
        gpu = msgspec.structs.replace(sampled, xids=tuple(xids))
        state, why = health(gpu, complaints.get(gpu.uuid) or complaints.get("", ""))
        device = Device(
            id=number,
            uuid=gpu.uuid,
            name=gpu.name[:256],
            pci_bus_id=bus_id(gpu.pci_bus_id or before.pci_bus_id),
            island=island,
            bandwidth_gbps=bandwidth,
            health=state,
            reason=why[:256],
            mig=gpu.mig,
            in_use_by=users.get(number, ()),
            processes=gpu.processes,
            xids=gpu.xids,
            recovery=before.recovery if gpu.recovery is None else gpu.recovery,
        )
        devices.append(device)
    return msgspec.structs.replace(
        base,
        total=len(devices),
        devices=tuple(sorted(devices, key=lambda device: device.id)),
        boot_id=boot,
    )


def _with(device: Device, state: Health, why: str, users: Mapping[int, tuple[str, ...]]) -> Device:
    return msgspec.structs.replace(
        device, health=state, reason=why, in_use_by=users.get(device.id, ()), processes=None
    )


def claimed(pods: Iterable[Pod], node: str) -> dict[int, set[str]]:
    """Uids, by id, of the pods that have not ended and say that they were given it here."""
    claims: dict[int, set[str]] = {}
    for pod in pods:
        allocated = pod.allocated
        if pod.spec.node_name != node or pod.ended or allocated is None or allocated.node != node:
            continue
        for gpu in allocated.ids:
            claims.setdefault(gpu, set()).add(pod.uid)
    return claims


def conflicts(node: Node, drivers: Collection[str]) -> tuple[str, ...]:
    """Name who else hands out GPUs here: a device plugin (allocatable above 0, under any of its
    names), or a DRA driver (``drivers`` of the node's ResourceSlices).
    """
    plugin = any(
        resource.startswith(PLUGIN_RESOURCES) and str(amount) not in {"0", ""}
        for resource, amount in (node.status.allocatable or {}).items()
    )
    dra = "gpu.nvidia.com" in drivers
    both = ((inventory.CONFLICT_DEVICE_PLUGIN, plugin), (inventory.CONFLICT_DRA, dra))
    return tuple(name for name, there in both if there)


def changed(old: InventoryStatus, new: InventoryStatus) -> bool:
    """Tell whether more than the heartbeat differs: that is written at once."""
    return msgspec.structs.replace(old, observed_time=new.observed_time) != new


def islands(places: Mapping[int, Facts]) -> dict[int, tuple[str, float]]:
    """(island, GB/s in one direction) by id.

    GPUs are of one NVLink island when links that are up, by either end's word, lead from one to the
    other, over others too; those with a link to an NVSwitch are all of one. An island is named
    after its lowest id.
    """
    by_bus = {bus_id(place.pci_bus_id): gpu for gpu, place in places.items()}
    groups = {gpu: {gpu} for gpu in places}
    switched = [
        gpu for gpu, place in places.items() if any(link.ends == "switch" for link in place.links)
    ]
    pairs: list[tuple[int, int | None]] = [(switched[0], gpu) for gpu in switched]
    for gpu, place in places.items():
        to_gpus = (link for link in place.links if link.ends == "gpu")
        pairs += [(gpu, by_bus.get(bus_id(link.remote))) for link in to_gpus]
    for gpu, peer in pairs:
        if peer is not None and groups[gpu] is not groups[peer]:
            joined = groups[gpu] | groups[peer]
            groups.update(dict.fromkeys(joined, joined))
    placed: dict[int, tuple[str, float]] = {}
    for gpu, place in places.items():
        if len(groups[gpu]) > 1 or gpu in switched:
            speed = sum(link.bandwidth for link in place.links)
            placed[gpu] = (f"nvlink-{min(groups[gpu])}", speed)
        else:
            alone = f"gpu-{gpu}" if place.numa is None else f"{place.numa}"
            placed[gpu] = (f"pcie-{alone}", place.pcie)
    return placed
