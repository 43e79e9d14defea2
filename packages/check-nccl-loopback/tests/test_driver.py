"""The check beside a driver: an NVML in C says what of a GPU is sick, missing or sliced, before,
under and after the load.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pynvml
import pytest
from preflight_proto.check.testing import CheckRun, FakeConnector, run_check
from preflight_testing.fakes import FAKES

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None,
    reason="no C compiler here: the NVML stand-in cannot be built",
)
H100 = "NVIDIA H100 80GB HBM3"
FACTS = {
    "tests": "2.19.6",
    "rings": 380.0,
    "nvls": 478.0,
    "knee_mib": 27,
    "memory_gib": 80,
    "shm_mib": 1,
}
HEALTHY = {
    "remap_pending": 0,
    "remap_failed": 0,
    "ecc": 0,
    "links": 18,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_generation": 5,
    "pcie_generation_max": 5,
    "pcie_replays_grow": 0,
    "link_recovery_grows": 0,
    "processes": 0,
    "reasons": 0,
    "recovery_action": 0,
    "sram_threshold": 0,
    "fabric_state": 3,
    "fabric_status": 0,
    "fabric_clique": 0,
    "fabric_health": 0,
}

Go = Callable[..., CheckRun]


@pytest.fixture
def go(connector: FakeConnector, tmp_path: Path, library: Path) -> Go:
    """Run the check on eight GPUs; ``sick`` is what the driver says of GPU 3 besides, ``every`` of
    all of them, and ``nccl`` what nccl-tests finds.
    """

    def run(
        sick: dict[str, Any],
        *,
        count: int = 8,
        every: Mapping[str, Any] = MappingProxyType({}),
        nccl: dict[str, Any] | None = None,
        **variables: str,
    ) -> CheckRun:
        gpus = [
            {
                "uuid": f"GPU-{i}",
                "name": H100,
                "pci": f"00000000:{i:02X}:00.0",
                "link": "nvlink",
                "serial": f"165000{i}",
            }
            | {
                name: str(value)
                for name, value in (HEALTHY | dict(every) | (sick if i == 3 else {})).items()
            }
            for i in range(count)
        ]
        node = tmp_path / "node.json"
        node.write_text(json.dumps({"gpus": gpus, "nccl": {**FACTS, **(nccl or {})}}))
        given = {
            "PATH": f"{FAKES}/bin:{Path(sys.executable).parent}:/usr/bin:/bin",
            "LD_LIBRARY_PATH": str(library),
            "FAKE_NODE_JSON": str(node),
            "NVIDIA_VISIBLE_DEVICES": ",".join(str(gpu["uuid"]) for gpu in gpus),
            "EXPECTED_GPUS": str(count),
            **variables,
        }
        return run_check(
            [sys.executable, "-c", "from check_nccl_loopback.check import main; main()"],
            connector,
            tmp_path,
            given,
            check="nccl-loopback",
        )

    return run


def raised(connector: FakeConnector) -> list[tuple[object, ...]]:
    return [
        (
            e.check_name.removeprefix("NCCLLoopbackTest"),
            e.error_code[0],
            e.is_fatal,
            *(x.entity_value for x in e.entities_impacted),
        )
        for e in connector.events
        if not e.is_healthy
    ]


def test_a_healthy_driver_changes_nothing_and_clears_the_scan(
    go: Go, connector: FakeConnector
) -> None:
    ran = go({})
    assert (ran.exit_code, ran.result.code, raised(connector)) == (0, "OK", [])
    assert "NCCLLoopbackTestScan" in {event.check_name for event in connector.events}
    assert any("NVML lists 8 GPU(s)" in line for line in ran.lines)


def test_what_the_driver_knows_is_fatal_before_any_load(go: Go, connector: FakeConnector) -> None:
    ran = go({"links_up": 17})
    assert (ran.exit_code, ran.result.code, ran.result.subject) == (1, "NVLINK_DOWN", "GPU-3")
    assert raised(connector) == [("Scan", "NVLINK_DOWN", True, "GPU-3")]
    assert not any(line.startswith("running:") for line in ran.lines)


def test_a_gpu_that_is_gone_once_all_rows_are_there_is_lost(
    go: Go, connector: FakeConnector
) -> None:
    ran = go({"faults": f"nvmlDeviceGetTemperature={pynvml.NVML_ERROR_GPU_IS_LOST}"})
    assert (ran.exit_code, ran.result.code, ran.result.subject) == (1, "GPU_LOST", "GPU-3")
    assert raised(connector) == [("Device", "GPU_LOST", True, "GPU-3")]


@pytest.mark.parametrize(
    ("sick", "code", "outcome"),
    [
        pytest.param(
            {"pcie_generation": 1}, "PCIE_GENERATION", "failed", id="fails in spite of it"
        ),
        pytest.param({"reasons": 0x48}, "HW_THERMAL_SLOWDOWN", "passed", id="is only notable"),
    ],
)
def test_what_is_sampled_under_load_at_full_bandwidth_has_an_event(
    go: Go, connector: FakeConnector, sick: dict[str, int], code: str, outcome: str
) -> None:
    ran = go(sick)
    assert (ran.exit_code, ran.result.outcome) == (int(outcome == "failed"), outcome)
    assert raised(connector) == [("Scan", code, False, "GPU-3")]


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        (
            "nvmlDeviceGetSramEccErrorStatus=crash",
            "nvmlDeviceGetSramEccErrorStatus ended by SIGSEGV",
        ),
        ("nvmlDeviceGetP2PStatus=crash", "nvmlDeviceGetP2PStatus ended by SIGSEGV"),
    ],
)
def test_a_library_that_crashes_costs_what_it_was_asked_and_not_the_check(
    go: Go, connector: FakeConnector, faults: str, says: str
) -> None:
    ran = go({"faults": faults})
    assert (ran.exit_code, ran.result.code, raised(connector)) == (0, "OK", [])
    assert [line for line in ran.lines if "ended by" in line] == [
        f"NVML: {says}; what it would say is not known."
    ]
    cleared = {event.check_name for event in connector.events if event.is_healthy}
    assert "NCCLLoopbackTestScan" not in cleared  # who does not see all clears nothing


def test_a_library_that_crashes_hides_nothing_that_it_has_said(
    go: Go, connector: FakeConnector
) -> None:
    ran = go({"remap_failed": 1, "faults": "nvmlDeviceGetSramEccErrorStatus=crash"})
    assert (ran.exit_code, ran.result.code, ran.result.subject) == (1, "ROW_REMAP_FAILED", "GPU-3")


def test_two_gpus_that_have_a_third_of_their_links_for_each_other_are_healthy(go: Go) -> None:
    board = {"links": 18, "link_ends": 0}
    ran = go({}, every=board, count=2, nccl={"rings": 123.6, "nvls": 0})
    assert (ran.exit_code, ran.result.code) == (0, "OK")
    switched = go({}, every=board | {"link_ends": 2}, count=2, nccl={"rings": 123.6, "nvls": 0})
    assert (switched.exit_code, switched.result.code) == (1, "SLOW_NODE")
