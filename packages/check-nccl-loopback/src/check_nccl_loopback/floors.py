"""What healthy hardware reaches, by model, number of GPUs, link class and size. The table itself is ``floors.toml``."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["Floor", "LinkClass", "find", "table", "uniform"]


class LinkClass(StrEnum):
    """What joins the pairs of a pod's GPUs: all by NVLink, all by PCIe, some by either, or nobody can tell."""

    NVLINK = "nvlink"
    PCIE = "pcie"
    MIXED = "mixed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Floor:
    """One row; bandwidths in GB/s. ``no_nvls`` holds for rings where the hardware would have NVLS."""

    model: str
    gpus: int
    link: LinkClass
    uniform: bool
    size: int
    expected: float
    floor: float
    source: str
    no_nvls: float | None = None

    def fits(self, model: str, gpus: int, link: LinkClass) -> bool:
        alike = self.uniform or self.link is link
        return alike and self.gpus == gpus and re.search(self.model, model) is not None


@cache
def table() -> tuple[Floor, ...]:
    """All rows, in the file's order."""
    raw = tomllib.loads((files(__package__) / "floors.toml").read_text())
    return tuple(_row(dict(row)) for row in raw["floor"])


def find(model: str, gpus: int, link: LinkClass, size: int) -> Floor | None:
    """The row for exactly this hardware and ``size``; None where nobody has published a figure."""
    return next((row for row in table() if row.size == size and row.fits(model, gpus, link)), None)


def uniform(model: str) -> bool:
    """Whether every pair of this model's GPUs is joined alike by design, so that pairs may be compared."""
    return any(row.uniform and re.search(row.model, model) for row in table())


def _row(row: dict[str, Any]) -> Floor:
    number, unit = re.fullmatch(r"(\d+)([MG])", row.pop("size")).groups()  # type: ignore[union-attr]
    size = int(number) << {"M": 20, "G": 30}[unit]
    return Floor(**{**row, "link": LinkClass(row["link"]), "size": size})
