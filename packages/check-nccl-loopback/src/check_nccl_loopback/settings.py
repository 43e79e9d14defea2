"""The variables of this check."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from preflight_proto import names
from preflight_proto.check import gbps, setting, size, text, whole_number
from preflight_proto.check.settings import Parser
from preflight_proto.check.topology import TopologySettings

_ASSIGNMENTS: Final = r"^\s*(?:(?!CUDA_VISIBLE_DEVICES=|NCCL_TESTS_)[A-Z][A-Z0-9_]*=\S*(?:\s+|$))*$"
"""Any but those that say which GPUs take part, which is the check's to say."""


def _assignments() -> Parser[tuple[tuple[str, str], ...]]:
    def parse(raw: str) -> tuple[tuple[str, str], ...]:
        if not re.search(_ASSIGNMENTS, raw):
            raise ValueError
        return tuple((name, value) for name, _, value in (w.partition("=") for w in raw.split()))

    return Parser(
        parse,
        "a list of NAME=value without CUDA_VISIBLE_DEVICES and NCCL_TESTS_*",
        "e.g. NCCL_P2P_DISABLE=1 NCCL_ALGO=Ring",
        lambda value: " ".join(map("=".join, value)),
        {"pattern": _ASSIGNMENTS},
    )


@dataclass(frozen=True)
class Settings(TopologySettings):
    """The check's variables, read once at the start."""

    threshold: float | None = setting(
        names.ENV_LOOPBACK_THRESHOLD,
        gbps(),
        default=None,
        help="least bus bandwidth in GB/s at the asked size; by default the built-in floor of this hardware, and none where it is unknown",
    )
    size: int = setting(
        "NCCL_LOOPBACK_SIZE",
        size(
            1 << 20, 64 << 30, 64
        ),  # a whole number of floats for each of any number of ranks up to 16
        default=1 << 30,
        help="bytes that are reduced; floors are known for 1G and some for 256M, any other size is measured only",
    )
    iterations: int = setting(
        "NCCL_LOOPBACK_ITERATIONS",
        whole_number(1, 1000),
        default=20,
        help="timed all-reduces of one measurement",
    )
    warmup: int = setting(
        "NCCL_LOOPBACK_WARMUP",
        whole_number(0, 1000),
        default=5,
        help="all-reduces before the clock starts",
    )
    environment: tuple[tuple[str, str], ...] = setting(
        "PREFLIGHT_LOOPBACK_ENV",
        _assignments(),
        default=(),
        help="the operator's variables for every run, separated by spaces, where this hardware needs some; the workload's never decide",
    )
    tool: str = setting(
        "NCCL_LOOPBACK_TOOL",
        text("a program", "a name or path"),
        default="all_reduce_perf",
        help="nccl-tests' all-reduce program",
    )
