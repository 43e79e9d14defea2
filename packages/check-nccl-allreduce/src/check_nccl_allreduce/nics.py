"""Which fabric a node stands on, from what the kernel says of its network adapters. Pure.

A tree is the files that :mod:`.sysfs` has read, by path. Only adapters that the pod may use count:
a container sees the node's ``/sys`` whole, and a character device for each adapter that it was
given. What is not certain has no name, and then no floor of the table applies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from .ports import PortFault, bounded

PORTS: Final = "sys/class/infiniband"
VERBS: Final = "sys/class/infiniband_verbs"
"""``uverbsN/ibdev`` names the adapter that a character device belongs to."""
UVERBS: Final = "dev/infiniband"
APERTURES: Final = "dev/aperture_devices"
"""One entry for each adapter of GPUDirect-TCPXO (Google's a3-mega mounts the folder into pods)."""
IMEX: Final = "dev/nvidia-caps-imex-channels"
"""A channel in it lets the pod reach GPUs of other nodes by NVLink."""
PCIE: Final = ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")
"""What the kernel says of an adapter's own PCIe link, now and at best."""
ADAPTER: Final = ("vendor", "device", "sriov_numvfs", *PCIE)
"""And of the whole adapter."""

NET: Final = "sys/class/net"
_AMAZON: Final = "0x1d0f"
_KINDS: Final = {"InfiniBand": "ib", "Ethernet": "roce"}
_VIRTUAL: Final = ("1012", "1014", "1016", "1018", "101a", "101c", "101e", "a2d3")
"""PCI devices of Mellanox that are virtual functions, as the kernel's mlx5 driver lists them."""
_ACTIVE: Final = "ACTIVE"
_MOST_LISTED: Final = 64
"""Names of ports that a message takes."""
_LANES: Final = 32
_TCPXO: Final = (8, 200)
"""Adapters of an a3-mega node and what each carries in Gbit/s, by Google's documentation."""


@dataclass(frozen=True, slots=True)
class Port:
    """One port. ``kind``: ib, roce or efa; ``rate`` in Gbit/s; ``model``: PCI vendor and device,
    ports of one model are siblings.

    ``physical``: its physical state. ``pcie``: lanes and GT/s of the adapter's PCIe link, now and
    at best; None where the kernel does not say.
    """

    device: str
    number: str
    kind: str
    model: str
    state: str
    rate: float
    usable: bool
    physical: str = ""
    pcie: tuple[tuple[int, float], tuple[int, float]] | None = None
    split: bool = False
    """Whether its adapter has virtual functions, which others may use."""

    @property
    def name(self) -> str:
        """As ``NCCL_IB_HCA`` writes it."""
        return f"{self.device}:{self.number}"

    @property
    def shared(self) -> bool:
        """Whether others' virtual functions may be on it, or it is one: each function counts its
        own bytes alone, and that it carries none says nothing of the others.
        """
        vendor, _, device = self.model.rpartition(" ")[2].partition(":0x")
        return self.split or (vendor == "0x15b3" and device in _VIRTUAL)


@dataclass(frozen=True, slots=True)
class Adapters:
    """What a node brings. ``fabric`` as ``floors.toml`` calls it, empty where unknown; ``nic``:
    what the adapters can do, whatever they do now.

    ``rdma``: whether the pod may use one that works, so that TCP would be a fallback. ``imex``:
    whether it may reach other nodes by NVLink. ``findings``: ports that are down or slower than
    their siblings, in words; ``faults``: these, and ports whose adapter's PCIe link could do more.
    ``watched``: the ports that the workload uses; ``listed``: the names of all ports of their model
    that the kernel lists, the pod's or not; empty where it hides some from this pod.
    """

    fabric: str = ""
    nic: str = ""
    rdma: bool = False
    imex: bool = False
    findings: tuple[str, ...] = ()
    faults: tuple[PortFault, ...] = ()
    watched: tuple[Port, ...] = ()
    listed: tuple[str, ...] = ()


def reaches(tree: Mapping[str, str]) -> bool:
    """Whether this pod may reach GPUs of other nodes by NVLink."""
    return any(path.startswith(f"{IMEX}/channel") for path in tree)


def kind_of(fabric: str) -> str:
    """The class of a fabric, with which its name begins: ``ib``, ``roce``, ``efa`` …; or empty."""
    return fabric.partition("-")[0]


def able(nic: str) -> tuple[str, int, float] | None:
    """Kind, number and rate (Gbit/s) of what :attr:`Adapters.nic` says; None of anything else."""
    match = re.fullmatch(r"([a-z]{1,8}) ([0-9]{1,4})x([0-9]{1,6}(?:\.[0-9]{1,3})?)", nic, re.ASCII)
    return (match[1], int(match[2]), float(match[3])) if match else None


def recognize(tree: Mapping[str, str], hca: str = "") -> Adapters:
    """The node's adapters. ``hca``: the workload's NCCL_IB_HCA, which leaves NCCL some of them."""
    imex = reaches(tree)
    if apertures := len({path.split("/")[2] for path in tree if path.startswith(f"{APERTURES}/")}):
        count, rate = _TCPXO
        usual = apertures == count
        return Adapters(
            f"tcpxo-{count}x{rate}" if usual else "", f"tcpxo {apertures}", rdma=True, imex=imex
        )
    known = ports(tree)
    usable = [port for port in known if port.usable and _selected(port, hca)]
    faults = _faults(usable)
    adapters = Adapters(imex=imex, findings=_findings(usable, faults))
    rates: dict[str, float] = {}
    for port in usable:
        if port.state == _ACTIVE:
            rates[port.model] = rates.get(port.model, 0.0) + port.rate
    watched, listed = usable, known if usable and _lists_all(tree) else []
    if rates:
        main = max(rates, key=lambda model: (rates[model], model))
        watched, listed = ([p for p in those if p.model == main] for those in (usable, listed))
        names = {port.name for port in watched}
        faults.sort(key=lambda fault: fault.port not in names)  # a message may take the first alone
        adapters = replace(adapters, findings=_findings(usable, faults))
        faults = [fault for fault in faults if fault.port in names]
        active = [port.rate for port in watched if port.state == _ACTIVE]
        kind, best = watched[0].kind, max(active)
        fabric, nic = f"{kind}-{len(active)}x{best:g}", f"{kind} {len(watched)}x{best:g}"
        adapters = replace(adapters, fabric=fabric, nic=nic, rdma=True)
    return replace(
        adapters,
        faults=bounded(faults),
        watched=tuple(watched),
        listed=tuple(port.name for port in listed[:_MOST_LISTED]),
    )


def ports(tree: Mapping[str, str]) -> list[Port]:
    """All ports that the kernel lists, in order of their names."""
    open_to_us = {name for file, name in _verbs(tree).items() if f"{UVERBS}/{file}" in tree}
    places = (re.fullmatch(rf"{PORTS}/([^/]+)/ports/([^/]+)/rate", path) for path in sorted(tree))
    known = (_port(tree, place[1], place[2], open_to_us) for place in places if place)
    return [port for port in known if port is not None]


def _port(tree: Mapping[str, str], device: str, number: str, open_to_us: set[str]) -> Port | None:
    """One port; None where its kind or its rate is not known."""
    here = f"{PORTS}/{device}/ports/{number}"
    about = {name: tree.get(f"{PORTS}/{device}/device/{name}", "") for name in ADAPTER}
    layer = tree.get(f"{here}/link_layer", "")
    kind = "efa" if about["vendor"] == _AMAZON else _KINDS.get(layer, "")
    rate = re.match(r"[\d.]+", tree[f"{here}/rate"])
    if not kind or rate is None:
        return None
    state, physical = (
        tree.get(f"{here}/{name}", "").rpartition(":")[2].strip()
        for name in ("state", "phys_state")
    )
    return Port(
        device,
        number,
        kind,
        f"{kind} {about['vendor']}:{about['device']}",
        state,
        float(rate[0]),
        usable=device in open_to_us,
        physical=physical,
        pcie=_pcie([about[name] for name in PCIE]),
        split=about["sriov_numvfs"] not in {"", "0"},
    )


def _verbs(tree: Mapping[str, str]) -> dict[str, str]:
    """By the name of each adapter's character device, the adapter."""
    matches = ((re.fullmatch(rf"{VERBS}/([^/]+)/ibdev", path), name) for path, name in tree.items())
    return {match[1]: name for match, name in matches if match}


def _lists_all(tree: Mapping[str, str]) -> bool:
    """Tell whether every adapter with a character device is listed. Where adapters belong to one
    network namespace each (``rdma system``: netns exclusive) a pod sees its own alone, and has lost
    none of the others.
    """
    listed = {path.split("/")[3] for path in tree if path.startswith(f"{PORTS}/")}
    return listed.issuperset(_verbs(tree).values())


def _pcie(texts: Sequence[str]) -> tuple[tuple[int, float], tuple[int, float]] | None:
    """Of speeds such as ``32.0 GT/s PCIe`` and widths; a virtual function's and an unplugged
    adapter's are not figures, or none that are possible.
    """
    speeds = [re.match(r"[0-9]{1,3}(?:\.[0-9])? GT/s", text, re.ASCII) for text in texts[:2]]
    widths = [int(text) if re.fullmatch(r"[0-9]{1,2}", text, re.ASCII) else 0 for text in texts[2:]]
    if not all(speeds) or not all(0 < width <= _LANES for width in widths):
        return None
    now, best = (float(speed[0].split()[0]) for speed in speeds if speed)
    return (widths[0], now), (widths[1], best)


def _selected(port: Port, hca: str) -> bool:
    """Whether NCCL_IB_HCA leaves this port: a list of names or their beginnings, ``=`` for whole
    names, ``^`` for all but these.
    """
    if not hca or port.kind == "efa":
        return True
    but_not, exact = hca.startswith("^"), hca.lstrip("^").startswith("=")
    listed = False
    for entry in hca.lstrip("^=").split(","):
        name, _, number = entry.strip().partition(":")
        same = port.device == name if exact else bool(name) and port.device.startswith(name)
        listed = listed or (same and number in {"", port.number})
    return listed is not but_not


def _faults(usable: Sequence[Port]) -> list[PortFault]:
    """Of ports not active, slower than active siblings, or behind a PCIe link below its best. That
    a state cannot be read is none.
    """
    faults = []
    for port in usable:
        active = [p.rate for p in usable if p.model == port.model and p.state == _ACTIVE]
        best = max(active, default=0.0)
        if port.state not in {"", _ACTIVE}:
            how = f" ({port.physical})" if port.physical and port.physical != "LinkUp" else ""
            now = f"is {port.state}{how}"
            faults.append(PortFault(port.name, "state", now, f"not {_ACTIVE}"))
        elif port.state and port.rate < best:
            now = f"runs at {port.rate:g} Gbit/s"
            faults.append(PortFault(port.name, "rate", now, f"its siblings at {best:g}"))
        if port.pcie is not None:
            (width, speed), (most, fastest) = port.pcie
            if width < most or speed < fastest:
                now = f"has a PCIe link of {width} lanes at {speed:g} GT/s"
                faults.append(
                    PortFault(port.name, "pcie", now, f"and can do {most} at {fastest:g}")
                )
    return faults


def _findings(usable: Sequence[Port], faults: Sequence[PortFault]) -> tuple[str, ...]:
    """In words; of PCIe links only those that siblings have better, else the slots are so."""
    slow = {fault.port for fault in faults if fault.kind == "pcie"}
    models = {port.model for port in usable if port.pcie is not None and port.name not in slow}
    mixed = {port.name for port in usable if port.model in models}
    return tuple(fault.sentence for fault in faults if fault.kind != "pcie" or fault.port in mixed)
