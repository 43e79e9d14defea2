"""What makes NCCL go through a node's own NICs where it would stay inside the node. Pure.

With peer access and shared memory off, NCCL's only way from one GPU to another is its network: GPU
→ NIC → switch or loopback → NIC → GPU. Read by NCCL as a process makes its first communicator, so a
hairpin takes workers of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["LEAST_WORKERS", "VARIABLES", "back", "workers"]

VARIABLES: Final = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_COLLNET_ENABLE": "0",
}
LEAST_WORKERS: Final = 2
"""A hairpin has two ends."""


def workers(backend: str, here: int, node: int) -> int:
    """How many workers a member has in its node's hairpin, of ``here`` in all its pods' ``node``; 0
    where there can be none.

    gloo's are processes, as many as wanted; NCCL's have a GPU each, and one GPU makes no hairpin.
    """
    if node >= LEAST_WORKERS:
        return here
    return LEAST_WORKERS if backend == "gloo" else 0


def back(environ: Mapping[str, str]) -> dict[str, str | None]:
    """The same variables as they were: None unsets one."""
    return {name: environ.get(name) for name in VARIABLES}
