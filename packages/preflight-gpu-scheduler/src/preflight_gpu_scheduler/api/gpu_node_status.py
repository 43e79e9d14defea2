"""GpuNodeStatus: the GPUs of one node as its agent, or a person, wrote them; and what the Node says
against them: conditions from HealthEvents, the operator's annotation.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from preflight_kube.api.node_health import cut_short, gpus_named, makes_sick

from preflight_gpu_scheduler.api import messages, names
from preflight_gpu_scheduler.api.types import Metadata, Node

Health = Literal["Healthy", "Unhealthy", "Unknown"]
MOST_DEVICES: Final = 256
CONFLICT_DEVICE_PLUGIN: Final = "device-plugin"
CONFLICT_DRA: Final = "dra-driver"
MOST_XIDS: Final = 64
_MOST_TEXT: Final = 256
_MOST_ENTRIES: Final = 2048
"""Pods and XIDs of all devices of a node: no node has so many, and all nodes' are kept."""


class Device(msgspec.Struct, rename="camel", frozen=True, kw_only=True, omit_defaults=True):
    """One GPU. ``bandwidth_gbps``: GB/s in one direction. ``in_use_by``: uids of pods.
    ``processes``: how many compute processes run on it, None where the agent cannot know.
    ``xids``: those since the node's boot, or the GPU's reset. ``recovery``: what the driver asks
    for, as NVML numbers it. Only ``id`` is required: statuses may be written by hand."""

    id: Annotated[int, Meta(ge=0, le=names.MOST_ID)]
    uuid: Annotated[str, Meta(max_length=128)] = ""
    name: Annotated[str, Meta(max_length=_MOST_TEXT)] = ""
    pci_bus_id: Annotated[str, Meta(max_length=64)] = ""
    island: Annotated[str, Meta(max_length=128)] = ""
    bandwidth_gbps: Annotated[float, Meta(ge=0, le=100_000)] = msgspec.field(
        name="bandwidthGBps", default=0.0
    )
    health: Health = "Healthy"
    reason: Annotated[str, Meta(max_length=_MOST_TEXT)] = ""
    mig: bool = False
    in_use_by: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=64)] = ()
    processes: Annotated[int, Meta(ge=0)] | None = None
    xids: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=MOST_XIDS)] = ()
    recovery: Annotated[int, Meta(ge=0)] | None = None

    @property
    def usable(self) -> bool:
        """Tell whether it may be given away: healthy, and not cut into slices."""
        return self.health == "Healthy" and not self.mig


class InventoryStatus(
    msgspec.Struct, rename="camel", frozen=True, kw_only=True, omit_defaults=True
):
    """``observed_time``: RFC 3339; only whether it changes is read, so that no two clocks are
    compared. ``reason``: why nothing is known of the GPUs now. ``total``: None where they have
    never been known. ``boot_id``: the kernel's, of the boot that the XIDs belong to.
    """

    total: Annotated[int, Meta(ge=0)] | None = None
    reason: Annotated[str, Meta(max_length=_MOST_TEXT)] = ""
    boot_id: Annotated[str, Meta(max_length=64)] = msgspec.field(name="bootID", default="")
    observed_time: str | None = None
    devices: Annotated[tuple[Device, ...], Meta(max_length=MOST_DEVICES)] = ()
    conflicts: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=16)] = ()


class Inventory(InventoryStatus, frozen=True, kw_only=True):
    """The contents of one status. ``problems``: why nothing of it can be used, a sentence each."""

    node: str = ""
    problems: tuple[str, ...] = ()

    @property
    def uuids(self) -> dict[int, str]:
        """By id; empty where none is known."""
        return {device.id: device.uuid for device in self.devices}


def shared(conflicts: Collection[str]) -> str:
    """Why a node with these conflicts takes no pods of ours."""
    who = "a DRA driver" if set(conflicts) == {CONFLICT_DRA} else "a device plugin"
    return f"{who} hands out the GPUs of this node, too: no pod with a GpuClaim is placed here; take it off this node"


class _Status(msgspec.Struct, frozen=True):
    status: Inventory


class RawStatus(msgspec.Struct, frozen=True):
    """A GpuNodeStatus before it is read."""

    metadata: Metadata
    spec: Any = None
    status: msgspec.Raw = msgspec.Raw(b"{}")

    def read(self) -> Inventory:
        """Read what the status says of the GPUs. Never raises: one that cannot be used says so in
        ``problems`` and has no devices. Two devices with one id, or one UUID, are a contradiction:
        which of them a lease would lock cannot be known.
        """
        # By type, and not as plain objects first: a page has many, and one may have a megabyte.
        node, text = self.metadata.name, bytes(self.status)
        whole = b'{"status":%s}' % (b"{}" if text == b"null" else text)
        try:
            inventory = msgspec.json.decode(whole, type=_Status).status
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Inventory(node=node, problems=(messages.misfit(error, "the status"),))
        wrong = []
        named = self.spec.get("nodeName") if isinstance(self.spec, dict) else None
        if named and named != node:
            both = (
                f"is {named!s:.253}, and the object is named {node}; both must be the node's name"
            )
            wrong.append(f"spec.nodeName: {both}.")
        count = sum(len(device.in_use_by) + len(device.xids) for device in inventory.devices)
        if count > _MOST_ENTRIES:
            most = f"more than the {_MOST_ENTRIES} that are kept of a node; write fewer"
            wrong.append(f"status.devices: has {count} pods and XIDs, {most}.")
        ids = [str(device.id) for device in inventory.devices]
        uuids = [device.uuid for device in inventory.devices if device.uuid]
        for what, values in (("id", ids), ("uuid", uuids)):
            if twice := sorted({value for value in values if values.count(value) > 1}):
                which = f"the {what} {', '.join(twice)} is there more than once"
                wrong.append(f"status.devices: {which}; each GPU has its own.")
        devices = () if wrong else tuple(sorted(inventory.devices, key=lambda device: device.id))
        return msgspec.structs.replace(inventory, node=node, devices=devices, problems=tuple(wrong))


def complaints(node: Node, node_conditions: Collection[str]) -> dict[str, str]:
    """Why GPUs of the node are not given, by UUID; by an empty one why none of it is. A condition
    that holds and whose message names GPUs is about those; one that matches ``node_conditions`` and
    names none, or was cut short, is about all.
    """
    against: dict[str, str] = {}
    for condition in node.status.conditions or ():
        why = f"node condition {condition.type}"[:200]
        named = gpus_named(condition.message)
        of_node = not named and makes_sick(condition.type, condition.status, node_conditions)
        for uuid in (*named, *([""] if of_node or cut_short(condition.message) else [])):
            against.setdefault(uuid, why)
    for uuid in node.annotation(names.UNHEALTHY_ANNOTATION).split(","):
        if uuid.strip():
            against.setdefault(uuid.strip(), f"annotation {names.UNHEALTHY_ANNOTATION}")
    return against
