"""What the kernel tells of this node's network adapters, read once: for :mod:`.nics`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from . import nics

__all__ = ["snapshot"]

_FILES: Final = (
    f"{nics.PORTS}/*/ports/*/rate",
    f"{nics.PORTS}/*/ports/*/link_layer",
    f"{nics.PORTS}/*/ports/*/state",
    f"{nics.PORTS}/*/device/vendor",
    f"{nics.PORTS}/*/device/device",
    f"{nics.VERBS}/uverbs*/ibdev",
)
_PRESENT: Final = (f"{nics.UVERBS}/uverbs*", f"{nics.APERTURES}/*", f"{nics.IMEX}/channel*")
"""Devices: that they are there is all that counts, and they are not opened."""


def snapshot(root: Path = Path("/")) -> dict[str, str]:
    """By path below ``root``, what each file says. Never raises: what cannot be read is left out."""
    found: dict[str, str] = {}
    for pattern in _FILES:
        for path in _matching(root, pattern):
            try:
                found[str(path.relative_to(root))] = path.read_text(encoding="ascii", errors="replace").strip()
            except OSError:
                continue
    for pattern in _PRESENT:
        found |= {str(path.relative_to(root)): "" for path in _matching(root, pattern)}
    return found


def _matching(root: Path, pattern: str) -> Iterator[Path]:
    try:
        yield from sorted(root.glob(pattern))
    except OSError:
        return
