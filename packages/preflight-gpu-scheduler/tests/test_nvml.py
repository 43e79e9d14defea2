"""What the agent's reader makes of a driver's library in C, and of one GPU that is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from preflight_testing.fakes import DRIVERS, NVML, NvmlError, build_nvml, nvml_node

PROGRAM = """
import json
from preflight_gpu_scheduler.nvml import Nvml, NvmlFailed

try:
    print(json.dumps([
        [one.uuid, one.answers, one.processes, len(one.place.links), one.mig, list(one.xids)]
        for one in Nvml().facts()
    ]))
except NvmlFailed as error:
    print(json.dumps(str(error)))
"""
Read = Callable[..., Any]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    made = {driver: tmp_path_factory.mktemp(f"nvml{driver}") for driver in DRIVERS}
    try:
        for driver, folder in made.items():
            build_nvml(NVML, folder / "libnvidia-ml.so.1", driver=driver)
    except NvmlError as error:
        pytest.skip(str(error))
    return made


@pytest.fixture
def read(folders: dict[int, Path], tmp_path: Path) -> Read:
    def of(node: dict[str, Any], driver: int = DRIVERS[-1]) -> Any:
        (tmp_path / "node.json").write_text(json.dumps(node))
        environ = {
            **os.environ,
            "LD_LIBRARY_PATH": str(folders[driver]),
            "FAKE_NODE_JSON": str(tmp_path / "node.json"),
            "NVIDIA_VISIBLE_DEVICES": "all",
        }
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    return of


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_branch_of_the_driver_is_read(read: Read, driver: int) -> None:
    seen = read(nvml_node("h100"), driver)
    processes = None if driver < 510 else 0
    assert seen == [[f"GPU-{i}", True, processes, 18, False, []] for i in range(8)]


def test_an_xid_is_remembered_of_its_gpu(read: Read) -> None:
    seen = read(nvml_node("h100", {5: {"xid": 79}}))
    assert [one[0] for one in seen if one[5] == [79]] == ["GPU-5"]


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetP2PStatus",
        "nvmlDeviceGetRemappedRows",
        "*",
    ],
)
@pytest.mark.parametrize("model", ["h100", "l40s"])
def test_one_lost_gpu_is_one_lost_gpu(read: Read, model: str, call: str) -> None:
    seen = read(nvml_node(model, {3: {"faults": f"{call}=15"}}))
    well = [uuid for uuid, answers, *_ in seen if answers]
    others = [f"GPU-{i}" for i in range(8) if i != 3]
    assert [uuid for uuid in well if uuid != "GPU-3"] == others
    if call != "nvmlDeviceGetP2PStatus":  # which others ask, too
        assert well == others


def test_a_driver_that_is_being_reloaded_is_no_lost_gpu(read: Read) -> None:
    node = nvml_node("h100")
    for gpu in node["gpus"]:
        gpu["faults"] = "nvmlDeviceGetUUID=1"
    assert read(node) == "NVML cannot be read (Uninitialized); is the driver being reloaded?"
