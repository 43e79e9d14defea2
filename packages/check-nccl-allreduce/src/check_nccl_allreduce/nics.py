"""Which fabric a node stands on, from what the kernel says of its network adapters. Pure.

A tree is the files that :mod:`.sysfs` has read, by path. Only adapters that the pod may use count: a container sees the node's ``/sys`` whole,
and a character device for each adapter that it was given. What is not certain has no name, and then no floor of the table applies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = [
    "APERTURES",
    "IMEX",
    "PORTS",
    "UVERBS",
    "VERBS",
    "Adapters",
    "Port",
    "kind_of",
    "ports",
    "reaches",
    "recognise",
]

PORTS: Final = "sys/class/infiniband"
VERBS: Final = "sys/class/infiniband_verbs"
"""``uverbsN/ibdev`` names the adapter that a character device belongs to."""
UVERBS: Final = "dev/infiniband"
APERTURES: Final = "dev/aperture_devices"
"""One entry for each adapter of GPUDirect-TCPXO (Google's a3-mega, which mounts the folder into pods)."""
IMEX: Final = "dev/nvidia-caps-imex-channels"
"""A channel in it lets the pod reach GPUs of other nodes by NVLink."""

_AMAZON: Final = "0x1d0f"
_ACTIVE: Final = "ACTIVE"
_TCPXO: Final = (8, 200)
"""Adapters of an a3-mega node and what each carries in Gbit/s, by Google's documentation of the machine type."""


@dataclass(frozen=True, slots=True)
class Port:
    """One port. ``kind``: ib, roce or efa; ``rate`` in Gbit/s; ``model``: PCI vendor and device, ports of one model are siblings."""

    device: str
    number: str
    kind: str
    model: str
    state: str
    rate: float
    usable: bool

    @property
    def name(self) -> str:
        return f"{self.device}:{self.number}"


@dataclass(frozen=True, slots=True)
class Adapters:
    """What a node brings. ``fabric`` as ``floors.toml`` calls it, empty where unknown; ``nic``: what the adapters can do, whatever they do now.

    ``rdma``: whether the pod may use one that works, so that TCP would be a fallback. ``imex``: whether it may reach other nodes by NVLink.
    ``findings``: ports that are down or slower than their siblings.
    """

    fabric: str = ""
    nic: str = ""
    rdma: bool = False
    imex: bool = False
    findings: tuple[str, ...] = ()


def reaches(tree: Mapping[str, str]) -> bool:
    """Whether this pod may reach GPUs of other nodes by NVLink."""
    return any(path.startswith(f"{IMEX}/channel") for path in tree)


def kind_of(fabric: str) -> str:
    """``ib``, ``roce``, ``efa``, ``tcpxo``, ``mnnvl``: the class of a fabric, whose name begins with it; empty for none."""
    return fabric.partition("-")[0]


def recognise(tree: Mapping[str, str], hca: str = "") -> Adapters:
    """The node's adapters. ``hca``: the workload's NCCL_IB_HCA, which leaves NCCL some of them."""
    imex = reaches(tree)
    if apertures := len({path.split("/")[2] for path in tree if path.startswith(f"{APERTURES}/")}):
        count, rate = _TCPXO
        known = apertures == count
        return Adapters(f"tcpxo-{count}x{rate}" if known else "", f"tcpxo {apertures}", rdma=True, imex=imex)
    usable = [port for port in ports(tree) if port.usable and _selected(port, hca)]
    active = [port for port in usable if port.state == _ACTIVE]
    if not active:
        return Adapters(imex=imex, findings=_findings(usable))
    groups: dict[str, list[Port]] = {}
    for port in active:
        groups.setdefault(port.model, []).append(port)
    main = max(groups.values(), key=lambda one: (sum(port.rate for port in one), one[0].model))
    best = max(port.rate for port in main)
    siblings = [port for port in usable if port.model == main[0].model]
    return Adapters(
        fabric=f"{main[0].kind}-{len(main)}x{best:g}",
        nic=f"{main[0].kind} {len(siblings)}x{best:g}",
        rdma=True,
        imex=imex,
        findings=_findings(usable),
    )


def ports(tree: Mapping[str, str]) -> list[Port]:
    """All ports that the kernel lists, in order of their names."""
    open_to_us = {
        name
        for path, name in tree.items()
        if path.startswith(f"{VERBS}/") and path.endswith("/ibdev") and f"{UVERBS}/{path.split('/')[3]}" in tree
    }
    found = []
    for path in sorted(tree):
        match = re.fullmatch(rf"{PORTS}/([^/]+)/ports/([^/]+)/rate", path)
        if match is None:
            continue
        device, number = match.groups()
        vendor, model = (tree.get(f"{PORTS}/{device}/device/{what}", "") for what in ("vendor", "device"))
        layer, state = (tree.get(f"{PORTS}/{device}/ports/{number}/{what}", "") for what in ("link_layer", "state"))
        kind = "efa" if vendor == _AMAZON else "ib" if layer == "InfiniBand" else "roce" if layer == "Ethernet" else ""
        rate = re.match(r"[\d.]+", tree[path])
        if kind and rate is not None:
            now = state.rpartition(":")[2].strip()
            whole = f"{kind} {vendor}:{model}"
            found.append(Port(device, number, kind, whole, now, float(rate[0]), device in open_to_us))
    return found


def _selected(port: Port, hca: str) -> bool:
    """Whether NCCL_IB_HCA leaves this port: a list of names or their beginnings, ``=`` for whole names, ``^`` for all but these."""
    if not hca or port.kind == "efa":
        return True
    but_not, exact = hca.startswith("^"), hca.lstrip("^").startswith("=")
    listed = False
    for entry in hca.lstrip("^=").split(","):
        name, _, number = entry.strip().partition(":")
        same = port.device == name if exact else bool(name) and port.device.startswith(name)
        listed = listed or (same and number in {"", port.number})
    return listed is not but_not


def _findings(usable: Sequence[Port]) -> tuple[str, ...]:
    found = []
    for port in usable:
        siblings = [one for one in usable if one.model == port.model and one.state == _ACTIVE]
        best = max((one.rate for one in siblings), default=0.0)
        if port.state != _ACTIVE:
            found.append(f"{port.name} is {port.state or 'in an unknown state'}, not {_ACTIVE}")
        elif port.rate < best:
            found.append(f"{port.name} runs at {port.rate:g} Gbit/s, its siblings at {best:g}")
    return tuple(found)
