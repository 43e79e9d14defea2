"""A node's facts: what its node.json says, made from a healthy node and a scenario's changes."""

from __future__ import annotations

import hashlib
from typing import Any

GPUS = 8
MODEL = "NVIDIA H100 80GB HBM3"


def uuids(node: str) -> list[str]:
    """The UUIDs of a node's GPUs by index: the same whenever the node has the same name."""
    return [_uuid(node, index) for index in range(GPUS)]


def node_json(node: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Facts of ``node``. GPUs named by index in ``changes`` (`gpu`, `gpus`, `hidden`, `lost`,
    `ecc`) are written as UUIDs.

    ``gone``: indices of GPUs that the driver cannot reach. ``serials``: whether the driver knows
    serial numbers. ``facts``: [{gpu, …}], what the driver says of one GPU besides
    (fakes/nvml/nvml.c has the names); it takes texts only. ``dra``: {"gpus": [index], "nics":
    number, "channels": 0 or 1}, what pods get by claims there. ``plugin``: "absent" where no device
    plugin hands out GPUs. ``reversed``: whether they stand in the slots, and in NVML's list, from
    the last.
    """
    mine = uuids(node)
    engine = {"state": "ok", "version": "4.4.2", "seconds": 0.2, **changes.get("engine", {})}
    for which in ("hidden", "lost"):
        engine[which] = [mine[index] for index in engine.get(which, [])]
    for what in ("faults", "skips"):  # one without a GPU is nobody's
        listed = [dict(each) for each in engine.get(what, [])]
        for each in listed:
            if "gpu" in each:
                each["uuid"] = mine[each.pop("gpu")]
        engine[what] = listed
    link, dra = changes.get("link", "nvlink"), changes.get("dra", {})
    backwards = changes.get("reversed", False)
    gpus = []
    for i, uuid in enumerate(mine):
        slot = 0x1B + 16 * (GPUS - 1 - i if backwards else i)
        gpu = {"uuid": uuid, "name": changes.get("model", MODEL), "link": link}
        gpu["pci"] = f"00000000:{slot:02X}:00.0"
        if changes.get("serials"):
            gpu["serial"] = f"16505220{i:05d}"
        if i in changes.get("gone", []):
            gpu["lost"] = "Unknown Error"
        gpus.append(gpu)
    for given in changes.get("facts", []):
        gpus[given["gpu"]] |= {name: str(value) for name, value in given.items() if name != "gpu"}
    return {
        "gpus": gpus[::-1] if backwards else gpus,
        "driver": changes.get("driver", "ok"),
        **({"plugin": changes["plugin"]} if "plugin" in changes else {}),
        "engine": engine,
        "connector": {"mode": "ok", **changes.get("connector", {})},
        "nccl": _nccl(mine, changes.get("nccl", {})),
        "dra": {**dra, "gpus": [mine[index] for index in dra.get("gpus", [])]},
        "network": changes.get("network", {}),
    }


def _nccl(mine: list[str], changes: dict[str, Any]) -> dict[str, Any]:
    """What nccl-tests finds on the node. The curve meets the published figures of eight H100: 466
    GB/s at 1 GiB, 370 by rings.
    """
    healthy = {
        "tests": "2.17.6",
        "rings": 380.0,
        "nvls": 478.0,
        "knee_mib": 27,
        "memory_gib": 80,
        "shm_mib": 8,
    }
    facts = {**healthy, **changes}
    for fault in ("ports", "wrong", "crowd"):  # [{gpu, …}]
        facts[fault] = [{**f, "gpu": mine[f["gpu"]]} for f in facts.get(fault, [])]
    facts["pairs"] = [{**f, "gpus": [mine[i] for i in f["gpus"]]} for f in facts.get("pairs", [])]
    facts["hanging"] = [[mine[i] for i in pair] for pair in facts.get("hanging", [])]
    for fault in ("lost", "ecc", "busy", "failing"):  # [index]
        facts[fault] = [mine[i] for i in facts.get(fault, [])]
    return facts


def _uuid(node: str, index: int) -> str:
    digest = hashlib.sha256(f"{node}/{index}".encode()).hexdigest()
    return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
