"""What a member's workload has set for NCCL, as one short digest: nodes with different digests are
not compared. Pure.

A pod may set NCCL_IB_HCA, NCCL_IB_SL or a topology file of its own. Such a setting is harmless
where every member has it. Where one member alone has it, it can make that member's healthy node
slow, so it must never count as evidence about the node.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

PATTERNS: Final = ("NCCL_*", "UCX_*", "OMPI_*", "FI_*", "GLOO_*")
"""Families of variables that steer NCCL, its network plugins and gloo."""
FRESH: Final = {"NCCL_IB_TIMEOUT": "17", "NCCL_IB_RETRY_CNT": "7"}
"""Of fresh workers for probes: 4.096 µs · 2^17 · 8 = 4.3 s until a path that is dead ends in an
error that names it.

Since NCCL 2.23 the default is 20, 34 s, which is longer than any probe. Read once in each process,
so workers that are used again keep theirs.
"""
HAIRPIN: Final = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_COLLNET_ENABLE": "0",
}
"""With peer access and shared memory off, NCCL's only way from one GPU to another is its network:
GPU → NIC → switch or loopback → NIC → GPU. Read by NCCL as a process makes its first communicator,
so a hairpin takes workers of its own."""
_APART: Final = frozenset(
    {"NCCL_TOPO_FILE", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "GLOO_SOCKET_IFNAME"}
)
"""The file is compared by its content; the others are the check's own."""


def digest(environ: Mapping[str, str], own_interface: str) -> str:
    """Of the variables that the workers get, empty where there is none. ``own_interface``: the
    NCCL_SOCKET_IFNAME that the check has chosen, which differs between healthy nodes and is left
    out; empty where the workload set it.
    """
    chosen = sorted(
        (name, value)
        for name, value in environ.items()
        if name not in _APART
        and any(fnmatchcase(name, pattern) for pattern in PATTERNS)
        and not (name == "NCCL_SOCKET_IFNAME" and value == own_interface)
    )
    return short(json.dumps(chosen).encode() if chosen else b"")


def short(data: bytes) -> str:
    """A digest of these data, such as a topology file; empty of none."""
    return hashlib.sha256(data).hexdigest()[:12] if data else ""


def goes_by_tcp(environ: Mapping[str, str]) -> bool:
    """Tell whether the workload has set NCCL to go by TCP: then nothing has fallen back."""
    disabled = environ.get("NCCL_IB_DISABLE", "0") not in {"", "0"}
    return disabled or environ.get("NCCL_NET", "").lower() == "socket"
