"""The variables of this check. What shapes the measurement is rank 0's to say: the others follow
its start message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from preflight_proto import names
from preflight_proto.check import gbps, one_of, setting, size, text, whole_number
from preflight_proto.check.topology import TopologySettings

DEFAULT_SIZE: Final = {"nccl": 4 * 1024**3, "gloo": 8 * 1024**2}
"""Bytes per rank: 4 GiB is ADR-026's; gloo, the stand-in on machines without GPUs, moves a few
hundred MB/s.
"""

_UNITS: Final = {"": 1, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}


def show_size(value: int) -> str:
    """The shortest way to write ``value`` bytes, e.g. ``4Gi``."""
    unit = next(unit for unit in ("Gi", "Mi", "Ki", "") if value % _UNITS[unit] == 0)
    return f"{value // _UNITS[unit]}{unit}"


@dataclass(frozen=True)
class Settings(TopologySettings):
    """The check's variables, read once at the start."""

    threshold: float | None = setting(
        names.ENV_ALLREDUCE_THRESHOLD,
        gbps("300"),
        default=None,
        help="least bus bandwidth in GB/s; unset takes the table of known hardware, and unknown hardware fails only where one node is slow against its peers",
    )
    backend: str = setting(
        "NCCL_ALLREDUCE_BACKEND",
        one_of("auto", "nccl", "gloo"),
        default="auto",
        help="what moves the data; auto is nccl, and gloo only in a pod that was given no GPU (EXPECTED_GPUS=0)",
    )
    size: int | None = setting(
        "NCCL_ALLREDUCE_SIZE",
        size(4096, 64 << 30, 4),  # whole numbers of 4 bytes
        default=None,
        help="bytes that each rank reduces; by default 4Gi with nccl and 8Mi with gloo",
    )
    iterations: int = setting(
        "NCCL_ALLREDUCE_ITERATIONS",
        whole_number(1, 1000),
        default=20,
        help="timed iterations, fewer where CHECK_TIMEOUT is too short for all; the median counts",
    )
    warmup: int = setting(
        "NCCL_ALLREDUCE_WARMUP", whole_number(0, 1000), default=5, help="iterations before them"
    )
    fabric: str = setting(
        "NCCL_ALLREDUCE_FABRIC",
        text("a fabric class", "e.g. ib-8x400, see the README"),
        default="",
        help="the network between the nodes, as the table of known hardware calls it; by default what the node's adapters show, and where they show none no floor of the table applies",
    )
    layout: str = setting(
        "FABRIC_LAYOUT",
        one_of("leaf", "rail"),
        default="",
        help="how the nodes of this cluster are cabled: leaf where all adapters of a node are behind one leaf switch and the nodes' topology labels are known to name the right one (byte counters that pods can read show that nobody else used them), rail where each is behind a leaf of its own; unset is not known, and then as with rail only a fact of its own device blames a node for its network",
    )
    domain_label: str = setting(
        "NCCL_ALLREDUCE_DOMAIN_LABEL",
        text("a node label", "e.g. example.com/rack, one of the gang controller's topologyLabels"),
        default="",
        help="the label whose value names the switch that a node is behind; by default the known one that groups most nodes",
    )
