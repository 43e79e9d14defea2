"""Which GPUs of a node are close to each other: islands from NVLink, else from the PCIe tree, and
how fast the way out of each GPU is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

__all__ = ["Ends", "Link", "Place", "bus_id", "islands"]

Ends = Literal["gpu", "switch", "other"]


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One NVLink that is up. ``remote``: the PCI bus id of the GPU at its other end, where it ends
    at one. ``bandwidth``: GB/s in one direction."""

    ends: Ends
    remote: str = ""
    bandwidth: float = 0.0


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a GPU is. ``links``: those that are up. ``pcie``: GB/s in one direction. ``numa``,
    ``root``: NUMA node and PCIe root, where they are known."""

    pci_bus_id: str
    links: tuple[Link, ...] = ()
    pcie: float = 0.0
    numa: int | None = None
    root: str = ""


def bus_id(text: str) -> str:
    """`domain:bus:device.function` in one spelling: NVML writes a domain of eight digits, the
    kernel one of four.
    """
    domain, colon, rest = text.strip().lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest}" if colon else domain


def islands(places: Mapping[int, Place]) -> dict[int, tuple[str, float]]:
    """(island, GB/s in one direction) by id.

    GPUs are of one NVLink island when links that are up lead from one to the other, over others
    too; those with a link to an NVSwitch are all of one. An island is named after its lowest id. A
    link that only one of its ends reports counts: both ends of a broken one are down.
    """
    by_bus = {bus_id(place.pci_bus_id): gpu for gpu, place in places.items()}
    group = {gpu: gpu for gpu in places}

    def root(gpu: int) -> int:
        while group[gpu] != gpu:
            gpu = group[gpu]
        return gpu

    def join(one: int, other: int) -> None:
        low, high = sorted((root(one), root(other)))
        group[high] = low

    switched = [
        gpu for gpu, place in places.items() if any(link.ends == "switch" for link in place.links)
    ]
    for gpu in switched[1:]:
        join(switched[0], gpu)
    for gpu, place in places.items():
        for link in place.links:
            peer = by_bus.get(bus_id(link.remote)) if link.ends == "gpu" else None
            if peer is not None and peer != gpu:
                join(gpu, peer)
    members: dict[int, list[int]] = {}
    for gpu in places:
        members.setdefault(root(gpu), []).append(gpu)
    found: dict[int, tuple[str, float]] = {}
    for low, gpus in members.items():
        linked = len(gpus) > 1 or low in switched
        for gpu in gpus:
            place = places[gpu]
            speed = sum(link.bandwidth for link in place.links if link.ends != "other")
            found[gpu] = (f"nvlink-{low}", speed) if linked else (_pcie(gpu, place), place.pcie)
    return found


def _pcie(gpu: int, place: Place) -> str:
    if place.numa is not None and place.numa >= 0:
        return f"pcie-{place.numa}"
    return f"pcie-{place.root}" if place.root else f"pcie-gpu-{gpu}"
