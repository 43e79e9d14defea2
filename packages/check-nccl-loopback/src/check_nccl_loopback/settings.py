"""The variables of this check."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from preflight_proto import names
from preflight_proto.check import gbps, one_of, setting, text, topology, whole_number
from preflight_proto.check.settings import Parser

__all__ = ["Settings", "size_text"]

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LEAST: Final = 1 << 20
_MOST: Final = 64 << 30


def _size() -> Parser[int]:
    def parse(raw: str) -> int:
        found = re.fullmatch(r"(\d{1,12})([KMG]?)i?B?", raw, re.IGNORECASE)
        if found is None:
            raise ValueError
        value = int(found[1]) * _UNITS[found[2].upper()]
        # a whole number of floats for each of any number of ranks up to 16
        if not _LEAST <= value <= _MOST or value % 64:
            raise ValueError
        return value

    return Parser(parse, "a size from 1M to 64G", "e.g. 1G or 256M", size_text)


def size_text(size: int) -> str:
    """As nccl-tests reads it: 1G, 256M, or the plain number of bytes."""
    for unit in ("G", "M", "K"):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)


@dataclass(frozen=True)
class Settings:
    threshold: float | None = setting(
        names.ENV_LOOPBACK_THRESHOLD,
        gbps(),
        default=None,
        help="least bus bandwidth in GB/s at the asked size; by default the built-in floor of this hardware, and none where it is unknown",
    )
    size: int = setting(
        "NCCL_LOOPBACK_SIZE",
        _size(),
        default=1 << 30,
        help="bytes that are reduced; floors are known for 1G and some for 256M, any other size is measured only",
    )
    iterations: int = setting(
        "NCCL_LOOPBACK_ITERATIONS", whole_number(1, 1000), default=20, help="timed all-reduces of one measurement"
    )
    warmup: int = setting(
        "NCCL_LOOPBACK_WARMUP", whole_number(0, 1000), default=5, help="all-reduces before the clock starts"
    )
    tool: str = setting(
        "NCCL_LOOPBACK_TOOL",
        text("a program", "a name or path"),
        default="all_reduce_perf",
        help="nccl-tests' all-reduce program",
    )
    topology_folder: str = setting(
        "NCCL_LOOPBACK_TOPOLOGIES",
        text("a folder", "a path"),
        default=topology.FOLDER,
        help="where the image keeps topology files",
    )
    topology_mapping: tuple[tuple[str, str], ...] = setting(
        names.ENV_TOPOLOGY_MAP,
        topology.mapping(),
        default=(),
        help="which of them an instance type gets when the workload brings none (NCCL_TOPO_FILE)",
    )
    instance_type: str = setting(
        "NODE_INSTANCE_TYPE",
        text("an instance type", "the node's label node.kubernetes.io/instance-type"),
        default="",
        help=f"the node's instance type, for {names.ENV_TOPOLOGY_MAP}",
    )
    instance_type_path: str = setting(
        names.ENV_INSTANCE_TYPE_PATH,
        text("a path", f"e.g. {names.INSTANCE_TYPE_PATH}"),
        default="",
        help="file with the node's instance type, where NODE_INSTANCE_TYPE is not set",
    )
    topology_fallback: str = setting(
        names.ENV_TOPOLOGY_FALLBACK,
        one_of("true", "false"),
        default="true",
        help="false: without a topology file there is no verdict; true: NCCL then finds out for itself",
    )
