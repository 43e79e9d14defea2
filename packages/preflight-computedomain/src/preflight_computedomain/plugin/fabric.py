"""What NVML says of each GPU's NVLink fabric, and the clique of the node that follows.

Pure. It is the state of the fabric, not of IMEX.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from preflight_kube.text import one_line

__all__ = ["COMPLETED", "NOT_SUPPORTED", "FabricBroken", "FabricInfo", "clique"]

NOT_SUPPORTED: Final = 0
COMPLETED: Final = 3
"""States of a GPU's registration (NVML_GPU_FABRIC_STATE_*); 1 is not started, 2 in progress."""
_SUCCESS: Final = 0


class FabricBroken(Exception):
    """The node's GPUs do not belong to one clique; one sentence. The plugin refuses to start with
    it.
    """


@dataclass(frozen=True, slots=True)
class FabricInfo:
    """One GPU: its UUID, and the fields of ``nvmlGpuFabricInfo``. ``cluster``: 16 bytes.

    A GPU or a driver without a fabric has the state :data:`NOT_SUPPORTED`.
    """

    gpu: str
    state: int = NOT_SUPPORTED
    status: int = 0
    cluster: bytes = bytes(16)
    clique: int = 0


def clique(gpus: Sequence[FabricInfo], *, crash: bool = True) -> str:
    """``<cluster uuid>.<clique id>``, or empty where the node is in no clique.

    In none is a GPU whose fabric is not supported, or whose cluster is zero once it has registered
    (NVLink in one node only). ``crash`` (the gate CrashOnNVLinkFabricErrors): raise
    :class:`FabricBroken` for a GPU whose registration has not completed or has failed, instead of
    leaving it out. More than one clique always raises.
    """
    found: dict[tuple[str, int], str] = {}
    for gpu in gpus:
        name = one_line(gpu.gpu, 60)
        if gpu.state == NOT_SUPPORTED:
            continue
        if gpu.state != COMPLETED or gpu.status != _SUCCESS:
            if crash:
                what = (
                    f"status {gpu.status}"
                    if gpu.state == COMPLETED
                    else f"state {gpu.state}, not {COMPLETED}"
                )
                raise FabricBroken(
                    f"GPU {name}: its registration with the NVLink fabric has {what}; refusing to start: repair the fabric "
                    "manager, or set featureGates.CrashOnNVLinkFabricErrors=false."
                )
            continue
        if len(gpu.cluster) != 16 or gpu.cluster == bytes(16):
            continue
        found.setdefault((str(uuid.UUID(bytes=gpu.cluster)), gpu.clique), name)
    if len(found) > 1:
        shown = ", ".join(
            f"{cluster}.{ident} (GPU {gpu})" for (cluster, ident), gpu in sorted(found.items())[:4]
        )
        raise FabricBroken(
            f"GPUs of this node are in {len(found)} NVLink cliques: {shown}; put all of them into one."
        )
    return "".join(f"{cluster}.{ident}" for cluster, ident in found)
