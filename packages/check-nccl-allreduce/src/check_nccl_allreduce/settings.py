"""The variables of this check. What shapes the measurement is rank 0's to say: the others follow its start message."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from preflight_proto import names
from preflight_proto.check import Parser, gbps, one_of, setting, text, whole_number
from preflight_proto.check.topology import TopologySettings

__all__ = ["DEFAULT_SIZE", "Settings", "show_size", "size"]

DEFAULT_SIZE: Final = {"nccl": 4 * 1024**3, "gloo": 8 * 1024**2}
"""Bytes per rank: 4 GiB is ADR-026's; gloo, the stand-in on machines without GPUs, moves a few hundred MB/s."""

_UNITS: Final = {"": 1, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}


def show_size(value: int) -> str:
    """The shortest way to write ``value`` bytes, e.g. ``4Gi``."""
    unit = next(unit for unit in ("Gi", "Mi", "Ki", "") if value % _UNITS[unit] == 0)
    return f"{value // _UNITS[unit]}{unit}"


def size() -> Parser[int]:
    """Bytes, e.g. ``4Gi`` or ``256Mi``; at least 4 KiB and a multiple of 4, the size of one number."""

    def parse(raw: str) -> int:
        match = re.fullmatch(r"([0-9]+)(|Ki|Mi|Gi)", raw, re.ASCII)
        if match is None:
            raise ValueError
        value = int(match[1]) * _UNITS[match[2]]
        if value < 4096 or value % 4 or value > 64 * 1024**3:
            raise ValueError
        return value

    return Parser(parse, "a size from 4Ki to 64Gi", "e.g. 4Gi or 256Mi", show_size)


@dataclass(frozen=True)
class Settings(TopologySettings):
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
        size(),
        default=None,
        help="bytes that each rank reduces; by default 4Gi with nccl and 8Mi with gloo",
    )
    iterations: int = setting(
        "NCCL_ALLREDUCE_ITERATIONS", whole_number(1, 1000), default=20, help="timed iterations; the median counts"
    )
    warmup: int = setting("NCCL_ALLREDUCE_WARMUP", whole_number(0, 1000), default=5, help="iterations before them")
    op: str = setting(
        "NCCL_ALLREDUCE_OP",
        one_of("sum", "max", "min"),
        default="sum",
        help="how the ranks' numbers are reduced: what is exact in any order, so that every bit can be verified; the table of known hardware is of sums",
    )
    fabric: str = setting(
        "NCCL_ALLREDUCE_FABRIC",
        text("a fabric class", "e.g. ib-8x400, see the README"),
        default="",
        help="the network between the nodes, as the table of known hardware calls it; unknown: no floor of the table applies",
    )
    domain_label: str = setting(
        "NCCL_ALLREDUCE_DOMAIN_LABEL",
        text("a node label", "e.g. example.com/rack, one of the gang controller's topologyLabels"),
        default="",
        help="the label whose value names the switch that a node is behind; by default the known one that groups most nodes",
    )
