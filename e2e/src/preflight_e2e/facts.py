"""A node's facts: what its node.json says, made from a healthy node and a scenario's changes."""

from __future__ import annotations

import hashlib
from typing import Any

__all__ = ["GPUS", "node_json", "uuids"]

GPUS = 8
MODEL = "NVIDIA H100 80GB HBM3"


def uuids(node: str) -> list[str]:
    """The UUIDs of a node's GPUs by index: the same whenever the node has the same name."""
    return [_uuid(node, index) for index in range(GPUS)]


def node_json(node: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Facts of ``node``. GPUs named by index in ``changes`` (`gpu`, `hidden`) are written as UUIDs."""
    mine = uuids(node)
    engine = {"state": "ok", "version": "4.4.2", "seconds": 0.2, **changes.get("engine", {})}
    engine["hidden"] = [mine[index] for index in engine.get("hidden", [])]
    engine["faults"] = [
        {"uuid": mine[f["gpu"]], **{k: v for k, v in f.items() if k != "gpu"}} for f in engine.get("faults", [])
    ]
    gpus = [{"uuid": uuid, "name": MODEL, "pci": f"00000000:{0x1B + 16 * i:02X}:00.0"} for i, uuid in enumerate(mine)]
    return {
        "gpus": gpus,
        "driver": changes.get("driver", "ok"),
        "engine": engine,
        "connector": {"mode": "ok", **changes.get("connector", {})},
    }


def _uuid(node: str, index: int) -> str:
    digest = hashlib.sha256(f"{node}/{index}".encode()).hexdigest()
    return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
