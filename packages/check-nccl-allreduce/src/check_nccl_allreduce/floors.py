"""What healthy hardware reaches: ``floors.toml``, and the bandwidth's formula."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from statistics import median
from typing import Any, Final

import msgspec

SIZES: Final = range(4 * 1024**3, 16 * 1024**3 + 1)
"""Bytes per rank for which the rows hold: their own 4 GiB, and more, which is not slower."""


class FloorRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table; bandwidths in GB/s."""

    model: tuple[str, ...]
    but_not: tuple[str, ...] = msgspec.field(default=(), name="not")
    gpus: int
    nodes: str
    fabric: str
    healthy: tuple[float, ...]
    expected: float
    floor: float
    source: str

    @property
    def corroborated(self) -> bool:
        """Whether two sources say what is healthy. One alone may have measured something else: its
        floor fails nobody by itself.
        """
        return len(self.source.split(";")) > 1


class Ring(msgspec.Struct, frozen=True, kw_only=True):
    """What a ring between two nodes reaches, as ``share`` of the sum of their adapters' rates."""

    model: tuple[str, ...]
    but_not: tuple[str, ...] = msgspec.field(default=(), name="not")
    gpus: int
    kind: str
    share: float
    healthy: tuple[float, ...]
    source: str


@cache
def _table() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(files(__package__).joinpath("floors.toml").read_text(encoding="utf-8"))


@cache
def known() -> tuple[FloorRow, ...]:
    """The rows of ``floors.toml`` for a gang's own all-reduce, in GB/s of bus bandwidth."""
    return msgspec.convert(_table()["row"], tuple[FloorRow, ...])


@cache
def rings() -> tuple[Ring, ...]:
    """The rows of ``floors.toml`` for rings, as a share of the sum of the adapters' rates."""
    return msgspec.convert(_table()["ring"], tuple[Ring, ...])


def find(model: str, gpus: int, fabric: str, nodes: int, size: int) -> FloorRow | None:
    """The row for this gang, or None: nothing is known. ``size`` in bytes per rank."""
    if size not in SIZES or nodes < 2 or not fabric:
        return None
    # Two nodes can exceed what their network cards carry, three cannot.
    shape = (gpus, "2" if nodes == 2 else "3+", fabric)
    rows = (row for row in known() if (row.gpus, row.nodes, row.fabric) == shape)
    return next((row for row in rows if _is(model, row)), None)


def wire(fabric: str) -> float | None:
    """GB/s (10^9) that a node's adapters carry together, by the fabric's name: ``ib-8x400`` is 400.
    None where the name does not say.
    """
    match = re.fullmatch(r"[a-z]+-(\d+)x(\d+)", fabric)
    return int(match[1]) * int(match[2]) / 8 if match else None


def ring_floor(model: str, gpus: int, fabric: str) -> float | None:
    """GB/s of bus bandwidth that a ring of two such nodes must reach; None if not known."""
    carried, kind = wire(fabric), fabric.partition("-")[0]
    row = next(
        (ring for ring in rings() if (ring.gpus, ring.kind) == (gpus, kind) and _is(model, ring)),
        None,
    )
    return row.share * carried if row is not None and carried is not None else None


def _is(model: str, row: FloorRow | Ring) -> bool:
    name = model.lower()
    return any(part.lower() in name for part in row.model) and not any(
        part.lower() in name for part in row.but_not
    )


def bus_bandwidth(size: int, times: Sequence[Sequence[float]], world: int) -> float:
    """GB/s (10^9) that each rank's link carries: size / time · 2(w-1)/w.

    ``times``: of each member, the seconds of each iteration. An iteration takes as long as on its
    slowest rank; the median iteration counts.
    """
    slowest = [max(iteration) for iteration in zip(*times, strict=True)]
    return float(size / median(slowest) * 2 * (world - 1) / world / 1e9)
