"""What healthy hardware reaches, by model, number of GPUs, link class and size. The table itself is
``floors.toml``.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, Final

from preflight_proto.settings import size_bytes

FEWER: Final = 0.5
"""Of a whole board's floor by rings, for fewer GPUs of the same board: each has the same port,
whoever takes part.
"""
MESH: Final = 4
"""GPUs of a board without switches: each has a third of its port for each of the others."""


class LinkClass(StrEnum):
    """What joins the pairs of a pod's GPUs: all by NVLink, all by PCIe, some by either, or nobody
    can tell.
    """

    NVLINK = "nvlink"
    PCIE = "pcie"
    MIXED = "mixed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Floor:
    """One row; bandwidths in GB/s. ``no_nvls`` is the floor of rings where the hardware would have
    NVLS.

    ``sources`` are independent publications of the figure; with fewer than two the row is
    ``advisory`` and fails nobody by itself. ``algorithm`` is how NCCL went where the figure comes
    from.
    """

    models: tuple[str, ...]
    gpus: int
    link: LinkClass
    uniform: bool
    size: int
    expected: float
    floor: float
    sources: tuple[str, ...]
    algorithm: str
    no_nvls: float | None = None

    @property
    def advisory(self) -> bool:
        """Whether one source alone gives this floor, so that it fails no node."""
        return len(self.sources) < 2

    @property
    def source(self) -> str:
        """The sources in words."""
        return "; ".join(self.sources)

    def joined(self, link: LinkClass) -> bool:
        """Whether these links are the row's: where a driver denies peer-to-peer access on a board
        of NVSwitches, that is the fault.
        """
        return self.uniform or self.link is link


@cache
def table() -> tuple[Floor, ...]:
    """All rows, in the file's order."""
    document = tomllib.loads((files(__package__) / "floors.toml").read_text())
    return tuple(_row(row) for row in document["floor"])


def find(
    model: str, gpus: int, link: LinkClass, size: int, *, direct: bool = False
) -> Floor | None:
    """The row for exactly this hardware and ``size``; None where nobody has published a figure.

    Fewer GPUs of a board whose pairs are joined alike by design are held to half of the whole
    board's floor by rings; where their links go ``direct`` from one to the other, to as much of it
    as they have of their ports.
    """
    rows = [
        row
        for row in table()
        if row.size == size and row.joined(link) and _named(model, row.models)
    ]
    if (own := next((row for row in rows if row.gpus == gpus), None)) is not None:
        return own
    whole = next((row for row in rows if row.uniform and row.gpus > gpus >= 2), None)
    if whole is None:
        return None
    rings = whole.no_nvls if whole.no_nvls is not None else whole.floor
    port = min((gpus - 1) / (MESH - 1), 1.0) if direct else 1.0
    floor = round(FEWER * port * rings, 1)
    share = "half" if port == 1.0 else f"{FEWER * port:.0%}"
    derived = tuple(
        f"{share} of the floor of {whole.gpus} by rings: {source}" for source in whole.sources
    )
    return replace(
        whole,
        gpus=gpus,
        expected=round(port * rings, 1),
        floor=floor,
        no_nvls=None,
        sources=derived,
    )


def uniform(model: str) -> bool:
    """Whether every pair of this model's GPUs is joined alike by design, so that pairs may be
    compared.
    """
    return any(row.uniform and _named(model, row.models) for row in table())


def _named(model: str, models: tuple[str, ...]) -> bool:
    """Whole product names, or beginnings of one that end in a star; the maker's own name and letter
    case aside.
    """
    name = _plain(model)
    return any(
        name.startswith(_plain(pattern[:-1])) if pattern.endswith("*") else name == _plain(pattern)
        for pattern in models
    )


def _plain(name: str) -> str:
    return re.sub(r"^(?:NVIDIA|TESLA)\s+", "", re.sub(r"[\s_]+", " ", name.upper().strip()))


def _row(row: dict[str, Any]) -> Floor:
    lists = {name: tuple(row[name]) for name in ("models", "sources")}
    return Floor(
        **{**row, **lists, "link": LinkClass(row["link"]), "size": size_bytes(row["size"])}
    )
