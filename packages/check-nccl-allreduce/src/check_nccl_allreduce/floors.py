"""What healthy hardware reaches: ``floors.toml``, and the bandwidth's formula."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import median
from typing import Final

__all__ = ["SIZES", "Row", "bus_bandwidth", "find", "known", "nodes_class", "slowest"]

SIZES: Final = range(4 * 1024**3, 16 * 1024**3 + 1)
"""Bytes per rank for which the rows hold: their own 4 GiB, and what is larger, which is not slower."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; bandwidths in GB/s."""

    model: tuple[str, ...]
    but_not: tuple[str, ...]
    gpus: int
    nodes: str
    fabric: str
    healthy: tuple[float, ...]
    expected: float
    floor: float
    source: str


@cache
def known() -> tuple[Row, ...]:
    data = tomllib.loads(files(__package__).joinpath("floors.toml").read_text(encoding="utf-8"))
    return tuple(
        Row(
            tuple(row["model"]),
            tuple(row.get("not", ())),
            row["gpus"],
            row["nodes"],
            row["fabric"],
            tuple(float(value) for value in row["healthy"]),
            float(row["expected"]),
            float(row["floor"]),
            row["source"],
        )
        for row in data["row"]
    )


def nodes_class(nodes: int) -> str:
    """``2`` or ``3+``: two nodes can exceed what their network cards carry, three cannot."""
    return "2" if nodes == 2 else "3+"


def find(model: str, gpus: int, fabric: str, nodes: int, size: int) -> Row | None:
    """The row for this gang, or None: then nothing is known that could fail it. ``size`` in bytes per rank."""
    if size not in SIZES or nodes < 2 or not fabric:
        return None
    name = model.lower()
    for row in known():
        if (row.gpus, row.nodes, row.fabric) != (gpus, nodes_class(nodes), fabric):
            continue
        if any(part.lower() in name for part in row.model) and not any(part.lower() in name for part in row.but_not):
            return row
    return None


def bus_bandwidth(size: int, times: Sequence[Sequence[float]], world: int) -> float:
    """GB/s (10^9) that each rank's link carries: size / time · 2(w-1)/w.

    ``times``: of each member, the seconds of each iteration. An iteration takes as long as on its slowest rank; the median
    iteration counts.
    """
    return float(size / median(slowest(times)) * 2 * (world - 1) / world / 1e9)


def slowest(times: Sequence[Sequence[float]]) -> list[float]:
    """Of each iteration, the seconds of its slowest member."""
    return [max(iteration) for iteration in zip(*times, strict=True)]
