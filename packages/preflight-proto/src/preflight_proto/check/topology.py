"""Which NCCL topology file this pod gets: what is read from the environment and the image for :func:`.nccl.choose_topology`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from .nccl import Topology, choose_topology
from .node import instance_type
from .settings import Parser
from .verdict import Inconclusive

__all__ = ["FOLDER", "files", "find", "mapping"]

FOLDER: Final = "/opt/nvsentinel/nccl-topologies"
"""Where an image keeps topology files, by ADR-026."""

Pairs = Sequence[tuple[str, str]]
"""Instance types, and the names of their files."""


def mapping() -> Parser[tuple[tuple[str, str], ...]]:
    """A variable's value, instance-type=file after instance-type=file."""

    def parse(raw: str) -> tuple[tuple[str, str], ...]:
        pairs = [item.split("=", 1) for item in raw.split(",") if item.strip()]
        if any(len(pair) != 2 or not pair[0].strip() or "/" in pair[1] for pair in pairs):
            raise ValueError
        return tuple((pair[0].strip(), pair[1].strip()) for pair in pairs)

    return Parser(
        parse,
        "a list of instance-type=file",
        "e.g. Standard_ND96isr_H100_v5=azure-ndv5.xml",
        lambda pairs: ",".join("=".join(pair) for pair in pairs),
    )


async def find(
    environ: Mapping[str, str], pairs: Pairs, folder: str, *, kind: str, kind_path: str, fallback: bool
) -> Topology:
    """The workload's own file, else that of the instance type (``kind``, else what the file ``kind_path`` says), else none.

    Raises :class:`Inconclusive` ``NO_TOPOLOGY`` for none where NCCL may not find out for itself (``fallback``).
    """
    users = environ.get("NCCL_TOPO_FILE", "")
    if not users and not kind and kind_path:
        kind = await instance_type(kind_path)
    chosen = choose_topology(users, kind, dict(pairs), files(folder), folder)
    if chosen.path is None and not fallback:
        raise Inconclusive(
            "NO_TOPOLOGY",
            f'no topology file for instance type "{kind}", and NCCL is not to find out for itself; map it in ncclTopology.instanceTypeMapping.',
        )
    return chosen


def files(folder: str) -> frozenset[str]:
    """The names of the files in ``folder``; none when there is no such folder."""
    try:
        return frozenset(entry.name for entry in Path(folder).iterdir())
    except OSError:
        return frozenset()
