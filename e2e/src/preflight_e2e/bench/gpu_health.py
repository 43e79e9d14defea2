"""How soon a sick GPU is given to nobody any more, and a well one again: an agent on the fake NVML,
and what the extender's filter says of its node.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from preflight_testing.fakes import NVML, NvmlError, build_nvml

from .gpu_nodes import GPUS, Nodes, ThreadedClient, pod
from .load import BenchError, until

Json = dict[str, Any]
Passes = Callable[[Json], bool]
NODE: Final = "with-an-agent"
TURNS: Final = 24
"""How often a GPU turns sick, and well again; each of them as often as the others."""
UUIDS: Final = [f"GPU-{n:08x}" for n in range(GPUS)]


def driver(folder: Path) -> dict[str, str]:
    """The environment of an agent that sees :data:`GPUS` GPUs on one NVLink island. Raises
    BenchError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        build_nvml(NVML, folder / "libnvidia-ml.so.1")
    except NvmlError as error:
        raise BenchError(str(error)) from None
    gpus = [
        {"uuid": uuid, "name": "NVIDIA H100", "pci": f"00000000:{n:02X}:00.0", "link": "nvlink"}
        for n, uuid in enumerate(UUIDS)
    ]
    (folder / "node.json").write_text(json.dumps({"gpus": gpus}))
    return {
        "LD_LIBRARY_PATH": str(folder),
        "FAKE_NODE_JSON": str(folder / "node.json"),
        "NVIDIA_VISIBLE_DEVICES": ",".join(UUIDS),
    }


def asked_about(cluster: Nodes) -> tuple[Json, Json]:
    """Two pods that are asked about: one that wants every GPU of the node, and one that wants all
    but one.
    """
    cluster.claim("all-but-one", GPUS - 1)
    every, others = cluster.pods(
        [pod("wants-all", "eight", GPUS), pod("wants-others", "all-but-one", GPUS - 1)]
    )
    return every, others


def turns(api: ThreadedClient, passes: Passes, asked: Sequence[Json]) -> Json:
    """Seconds from a node condition that names a GPU to the answer that does not count on that GPU,
    and from its clearing to the one that does; the longest of :data:`TURNS` each.

    Raises BenchError where another GPU goes with it.
    """
    every, others = asked
    ready = {"type": "Ready", "status": "True"}
    until(lambda: passes(every), "the agent's node is passed")
    longest = {True: 0.0, False: 0.0}
    for n in range(TURNS):
        sick = {
            "type": "GpuXidError",
            "status": "True",
            "reason": "DCGM_FR_XID_ERROR",
            "message": f"fatal GPU_UUID:{UUIDS[n % GPUS]} ;",
        }
        for well, conditions in ((False, [ready, sick]), (True, [ready])):
            began = time.monotonic()
            api.patch(f"/api/v1/nodes/{NODE}/status", {"status": {"conditions": conditions}})
            until(lambda: passes(every) is well, "filter follows the condition", pause=0.01)  # noqa: B023 (called at once)
            longest[well] = max(longest[well], time.monotonic() - began)
            if not passes(others):
                raise BenchError("one GPU is sick, and no seven are given any more.")
    return {"health_s": round(longest[False], 3), "well_again_s": round(longest[True], 3)}
