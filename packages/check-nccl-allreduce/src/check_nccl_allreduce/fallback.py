"""A gang that went by TCP although its nodes have adapters that do better. Pure.

NCCL tries its ways one after another and takes sockets where none works, without a warning. The
gang runs, at a tenth of its speed, and pairs would show nodes that are alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from .control.messages import Hello, VerdictMessage, among
from .control.rounds import LaunchRound
from .failures import MULTI_NODE_NVLINK

_TCP: Final = ("Socket", "(tcp", "(sockets")
_LOOK: Final = {
    "ib": "look for libibverbs and its driver in the image, NCCL_IB_HCA, and the container's memlock limit",
    "roce": "look for libibverbs and its driver in the image, NCCL_IB_HCA and NCCL_IB_GID_INDEX, and the container's memlock limit",
    "efa": "look for libfabric and aws-ofi-nccl (libnccl-net.so) in the image or on LD_LIBRARY_PATH",
    "tcpxo": "look for the plugin's folder among the check's mounts, LD_LIBRARY_PATH, and the daemon beside the workload",
}


def chosen(environ: Mapping[str, str]) -> bool:
    """Whether the workload has set NCCL to go by TCP: then nothing has fallen back."""
    return environ.get("NCCL_NET", "").lower() == "socket" or environ.get(
        "NCCL_IB_DISABLE", "0"
    ) not in {"", "0"}


def verdict(
    hellos: Mapping[int, Hello], last: LaunchRound, base: VerdictMessage
) -> VerdictMessage | None:
    """What the launch that ``base`` is about says of its transport; None where nothing fell back,
    or it has not ended well.
    """
    nodes = {hello.node for hello in hellos.values()}
    if base.code not in {"OK", "LOW_BANDWIDTH"} or len(nodes) < 2:
        return None
    if any(MULTI_NODE_NVLINK in result.networks for result in last.results.values()):
        # NVLink carries the data, whatever NCCL has for the rest. That the nodes could use it says
        # nothing: NCCL may not, as without memory of CUDA's newer kind (NCCL_CUMEM_ENABLE).
        return None
    fallen = {
        rank: " and ".join(result.networks)
        for rank, result in sorted(last.results.items())
        if hellos[rank].rdma
        and any(part in network for network in result.networks for part in _TCP)
    }
    if not fallen:
        return None
    first = hellos[min(fallen)]
    who = among([hellos[rank].who for rank in fallen], len(hellos))
    look = _LOOK.get(first.nic.partition(" ")[0], "look for NCCL's network plugin in the image")
    reason = (
        f"NCCL went by TCP (network {fallen[first.rank]}) in {who}, although the pod may use {first.nic or 'RDMA adapters'}, "
        f"and reached {base.metadata.get('measured_gbps', '')} GB/s; {look}."
    )
    return VerdictMessage(
        "failed", "TRANSPORT_FALLBACK", reason, base.measured, base.expected, base.metadata
    )


def noted(last: LaunchRound, message: VerdictMessage) -> VerdictMessage:
    """The verdict with the networks that NCCL took in its details."""
    networks = sorted({network for result in last.results.values() for network in result.networks})
    if not networks:
        return message
    return msgspec.structs.replace(
        message, metadata=message.metadata | {"transport": ", ".join(networks)}
    )
