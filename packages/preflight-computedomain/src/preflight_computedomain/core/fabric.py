"""What NVML says of each GPU's NVLink fabric, and the clique of the node that follows.

Pure. It is the state of the fabric, not of IMEX.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from preflight_kube.text import one_line

__all__ = [
    "COMPLETED",
    "NOT_SUPPORTED",
    "FabricBroken",
    "FabricInfo",
    "clique",
    "unjoined",
    "unwell",
]

NOT_SUPPORTED: Final = 0
COMPLETED: Final = 3
"""States of a GPU's registration (NVML_GPU_FABRIC_STATE_*); 1 is not started, 2 in progress."""
_SUCCESS: Final = 0
_STATES: Final = {1: "has not started", 2: "is in progress"}
_HEALTH: Final = (
    (0, 0x3, 1, "its bandwidth is degraded"),
    (2, 0x3, 1, "a route of it is being recovered"),
    (4, 0x3, 1, "a route of it is unhealthy"),
    (6, 0x3, 1, "it recovers from a timeout"),
    *((8, 0xF, wrong, "its configuration is incorrect") for wrong in range(2, 16)),
)
"""nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*: shift, width, the value that is bad, what it means."""


class FabricBroken(Exception):
    """The node's GPUs do not belong to one clique; one sentence. The plugin refuses to start with
    it.
    """


@dataclass(frozen=True, slots=True)
class FabricInfo:
    """One GPU: its UUID, and the fields of ``nvmlGpuFabricInfo``. ``cluster``: 16 bytes.
    ``health``: the mask, 0 where the driver has none.

    A GPU or a driver without a fabric has the state :data:`NOT_SUPPORTED`.
    """

    gpu: str
    state: int = NOT_SUPPORTED
    status: int = 0
    cluster: bytes = bytes(16)
    clique: int = 0
    health: int = 0


def unjoined(gpus: Sequence[FabricInfo]) -> str:
    """Of the first GPU that has a fabric and has not joined it, what its registration does; empty
    where all have.
    """
    for gpu in gpus:
        if gpu.state == NOT_SUPPORTED or (gpu.state == COMPLETED and gpu.status == _SUCCESS):
            continue
        what = _STATES.get(gpu.state, f"is in state {gpu.state}")
        if gpu.state == COMPLETED:
            what = f"ended with status {gpu.status}"
        return f"GPU {one_line(gpu.gpu, 60)}: its registration with the NVLink fabric {what}"
    return ""


def unwell(gpus: Sequence[FabricInfo]) -> str:
    """What the health masks say against the fabric; empty where nothing does. Whoever has joined
    stays in the clique: how bad it is for a job shows in the job, or in a check.
    """
    return "; ".join(
        f"GPU {one_line(gpu.gpu, 60)}: {what}"
        for gpu in gpus
        if gpu.state == COMPLETED
        for shift, width, bad, what in _HEALTH
        if gpu.health >> shift & width == bad
    )


def clique(gpus: Sequence[FabricInfo], *, crash: bool = True) -> str:
    """``<cluster uuid>.<clique id>``, or empty where the node is in no clique.

    In none is a GPU whose fabric is not supported, or whose cluster is zero once it has registered
    (NVLink in one node only). ``crash`` (the gate CrashOnNVLinkFabricErrors): raise
    :class:`FabricBroken` for a GPU whose registration has not completed or has failed, instead of
    leaving it out. More than one clique always raises.
    """
    if crash and (wrong := unjoined(gpus)):
        raise FabricBroken(
            f"{wrong}; refusing to start: repair the fabric manager, or set featureGates.CrashOnNVLinkFabricErrors=false."
        )
    found: dict[tuple[str, int], str] = {}
    for gpu in gpus:
        if gpu.state != COMPLETED or gpu.status != _SUCCESS:
            continue
        if len(gpu.cluster) != 16 or gpu.cluster == bytes(16):
            continue
        name = one_line(gpu.gpu, 60)
        found.setdefault((str(uuid.UUID(bytes=gpu.cluster)), gpu.clique), name)
    if len(found) > 1:
        shown = ", ".join(
            f"{cluster}.{ident} (GPU {gpu})" for (cluster, ident), gpu in sorted(found.items())[:4]
        )
        raise FabricBroken(
            f"GPUs of this node are in {len(found)} NVLink cliques: {shown}; put all of them into one."
        )
    return "".join(f"{cluster}.{ident}" for cluster, ident in found)
