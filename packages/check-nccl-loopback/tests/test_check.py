"""The check as a process, on a simulated node: the fakes of e2e stand for nccl-tests and
nvidia-smi.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from check_nccl_loopback.settings import Settings
from preflight_proto.check.settings import SettingsError, read
from preflight_proto.check.testing import CheckRun, FakeConnector, run_check

TOOLS = Path(__file__).resolve().parents[3] / "e2e" / "fakes" / "bin"
H100 = "NVIDIA H100 80GB HBM3"
HEALTHY = {
    "tests": "2.17.6",
    "rings": 380.0,
    "nvls": 478.0,
    "knee_mib": 27,
    "memory_gib": 80,
    "shm_mib": 1,
}

Go = Callable[..., CheckRun]


@pytest.fixture
def go(connector: FakeConnector, tmp_path: Path) -> Go:
    """Run the check on ``count`` GPUs of a node with the facts given, listed by nvidia-smi."""

    def run(
        count: int = 8, model: str = H100, path: str = "", before: str = "", **facts: Any
    ) -> CheckRun:
        variables = {name: facts.pop(name) for name in list(facts) if name.isupper()}
        gpus = [
            {"uuid": f"GPU-{i}", "name": model, "pci": f"00000000:{i:02X}:00.0", "link": "nvlink"}
            for i in range(count)
        ]
        node = tmp_path / "node.json"
        node.write_text(json.dumps({"gpus": gpus, "nccl": {**HEALTHY, **facts}}))
        given = {
            "PATH": path or f"{TOOLS}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "FAKE_NODE_JSON": str(node),
            "NVIDIA_VISIBLE_DEVICES": ",".join(str(gpu["uuid"]) for gpu in gpus),
            "EXPECTED_GPUS": str(count),
            **variables,
        }
        ran = run_check(
            [sys.executable, "-c", f"{before}\nfrom check_nccl_loopback.check import main; main()"],
            connector,
            tmp_path,
            given,
            check="nccl-loopback",
        )
        assert "Traceback" not in ran.stderr
        return ran

    return run


def fatal(connector: FakeConnector) -> list[tuple[str, ...]]:
    return [
        (e.check_name, e.error_code[0], *(x.entity_value for x in e.entities_impacted))
        for e in connector.events
        if e.is_fatal
    ]


@pytest.mark.parametrize("tests", ["2.11.0", "2.17.6"])
def test_healthy_gpus_pass_whatever_the_age_of_nccl_tests(
    go: Go, connector: FakeConnector, tests: str
) -> None:
    ran = go(tests=tests)
    assert (ran.exit_code, ran.result.code, ran.result.expected) == (0, "OK", 466.0)
    assert ran.result.measured is not None
    assert ran.result.measured > 440
    cleared = {e.check_name for e in connector.events if e.is_healthy}
    assert cleared == {
        f"NCCLLoopbackTest{test}" for test in ("", "Bandwidth", "Data", "Device", "Presence")
    }
    assert {e.agent for e in connector.events} == {"preflight-nccl-loopback"}
    assert {(e.component_class, bool(e.entities_impacted)) for e in connector.events} == {
        ("Node", False),
        ("GPU", True),
    }


def test_one_gpu_is_skipped_with_the_reason(go: Go, connector: FakeConnector) -> None:
    ran = go(1)
    assert (ran.exit_code, ran.result.outcome, ran.result.code) == (0, "skipped", "ONE_GPU")
    assert connector.events == []
    assert "nothing to measure" in ran.lines[-1]


def test_a_slow_gpu_is_named_with_one_fatal_event(go: Go, connector: FakeConnector) -> None:
    ran = go(ports=[{"gpu": "GPU-3", "gbps": 120}])
    assert (ran.exit_code, ran.result.code, ran.result.subject) == (1, "SLOW_GPU", "GPU-3")
    assert fatal(connector) == [("NCCLLoopbackTestBandwidth", "SLOW_GPU", "GPU-3")]


LIMITED = """
from preflight_proto.check import throttling
reads = iter(range(1000))
def read():
    number = next(reads)
    return throttling.Periods(100 * number, 60 * number)
throttling.read = read
"""


def test_a_node_that_is_slow_for_want_of_cpu_is_not_blamed(
    go: Go, connector: FakeConnector
) -> None:
    ran = go(ports=[{"gpu": "GPU-3", "gbps": 120}], before=LIMITED)
    assert (ran.result.outcome, ran.result.code) == ("inconclusive", "CPU_THROTTLED")
    assert "60% of the time" in ran.result.reason
    assert fatal(connector) == []


def test_a_run_that_fails_and_one_that_passes_leave_nothing_standing(
    go: Go, connector: FakeConnector
) -> None:
    go(ports=[{"gpu": "GPU-3", "gbps": 120}])
    raised = {
        (e.check_name, str(e.entities_impacted)) for e in connector.events if not e.is_healthy
    }
    connector.batches.clear()
    go()
    assert raised <= {
        (e.check_name, str(e.entities_impacted)) for e in connector.events if e.is_healthy
    }


def test_a_threshold_far_below_the_floor_is_obeyed_with_a_warning(go: Go) -> None:
    ran = go(rings=150.0, nvls=0, NCCL_LOOPBACK_THRESHOLD_GBPS="10")
    assert (ran.exit_code, ran.result.code) == (0, "OK")
    assert any(line.startswith("warning: NCCL_LOOPBACK_THRESHOLD_GBPS is 10") for line in ran.lines)


def test_full_shared_memory_is_inconclusive_and_names_the_fix(
    go: Go, connector: FakeConnector
) -> None:
    ran = go(shm_mib=1 << 30)
    assert (ran.exit_code, ran.result.outcome, ran.result.code) == (1, "inconclusive", "SHM_FULL")
    assert fatal(connector) == []
    assert "volume at /dev/shm" in ran.lines[-1]
    assert any("failed to extend /dev/shm/nccl-" in line for line in ran.lines)


@pytest.mark.parametrize("on_inconclusive", ["", "allow"])
def test_without_the_tool_the_image_is_misconfigured(
    go: Go, connector: FakeConnector, on_inconclusive: str
) -> None:
    ran = go(NCCL_LOOPBACK_TOOL="no-such-perf", ON_INCONCLUSIVE=on_inconclusive)
    assert (ran.exit_code, ran.result.outcome, ran.result.code) == (
        2,
        "misconfigured",
        "TOOL_MISSING",
    )
    assert "no-such-perf is not on PATH in the image preflight-nccl-loopback" in ran.lines[-1]
    assert connector.events == []


def test_a_tool_whose_library_is_missing_is_named(go: Go, tmp_path: Path) -> None:
    tool = tmp_path / "all_reduce_perf"
    says = "all_reduce_perf: error while loading shared libraries: libnccl.so.2: cannot open shared object file"
    tool.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit 127\n")
    tool.chmod(0o755)
    ran = go(NCCL_LOOPBACK_TOOL=str(tool))
    assert (ran.exit_code, ran.result.code) == (2, "TOOL_BROKEN")
    assert "libnccl.so.2" in ran.lines[-1]


def test_a_hang_is_ended_in_time_and_accuses_nobody(go: Go, connector: FakeConnector) -> None:
    ran = go(state="hang", CHECK_TIMEOUT="3s")
    assert (ran.exit_code, ran.result.outcome, ran.result.code) == (
        1,
        "inconclusive",
        "CHECK_TIMEOUT",
    )
    assert fatal(connector) == []


def test_fewer_gpus_in_cuda_than_in_the_driver_accuse_nobody(
    go: Go, connector: FakeConnector
) -> None:
    assert go(visible=7).result.code == "GPU_COUNT"
    assert fatal(connector) == []


def test_the_operators_variables_are_apart_by_spaces_and_may_have_commas() -> None:
    given = {"PREFLIGHT_LOOPBACK_ENV": "NCCL_P2P_DISABLE=1 NCCL_ALGO=Ring,Tree"}
    found = read(Settings, given).environment
    assert found == (("NCCL_P2P_DISABLE", "1"), ("NCCL_ALGO", "Ring,Tree"))


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES=0,1", "NCCL_TESTS_DEVICE=1"])
def test_the_operators_variables_do_not_say_which_gpus_take_part(variable: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read(Settings, {"PREFLIGHT_LOOPBACK_ENV": f"NCCL_ALGO=Ring {variable}"})
    assert "without CUDA_VISIBLE_DEVICES and NCCL_TESTS_*" in refused.value.problems[0]


def test_the_tool_gets_no_secret_of_the_container(go: Go, tmp_path: Path) -> None:
    tool = tmp_path / "spy"
    tool.write_text(
        f'#!/bin/sh\ncase "$*" in *-h*) ;; *) env > {tmp_path}/env.txt;; esac\nexec {TOOLS}/all_reduce_perf "$@"\n'
    )
    tool.chmod(0o755)
    ran = go(
        NCCL_LOOPBACK_TOOL=str(tool),
        API_TOKEN="secret",
        UCX_TLS="tcp",
        OMPI_MCA_btl="tcp",
        LD_PRELOAD="",
        NCCL_IB_HCA="mlx5",
    )
    given = {line.partition("=")[0] for line in (tmp_path / "env.txt").read_text().splitlines()}
    assert ran.result.code == "OK"
    assert given <= {
        "PATH",
        "PWD",
        "SHLVL",
        "_",
        "OLDPWD",
        "LANG",
        "LC_ALL",
        "TMPDIR",
        "HOME",
        "NCCL_CONF_FILE",
        "LD_LIBRARY_PATH",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "NCCL_DEBUG",
        "CUDA_VISIBLE_DEVICES",
    }


@pytest.mark.parametrize("tests", ["2.13.11", "2.19.6"])
def test_the_sweep_of_the_adr_is_run_and_its_json_read_and_removed(
    go: Go, tmp_path: Path, tests: str
) -> None:
    ran = go(tests=tests, TMPDIR=str(tmp_path))
    assert (ran.exit_code, ran.result.code) == (0, "OK")
    [line] = [line for line in ran.lines if line.startswith("measurement: ")]
    measured = json.loads(line.removeprefix("measurement: "))
    assert (measured["model"], measured["gpus"], measured["links"], measured["size"]) == (
        H100,
        "8",
        "nvlink",
        "1G",
    )
    assert next(iter(measured["curve"])) == "8"
    assert {"256M", "1G"} <= set(measured["curve"])
    assert ran.result.details == {
        key: measured[key]
        for key in ("model", "gpus", "links", "size", "nccl", "nccl_tests")
        if key in measured
    }
    assert not list(tmp_path.glob("preflight-*"))


def test_a_built_in_topology_file_is_chosen_by_instance_type(go: Go, tmp_path: Path) -> None:
    (tmp_path / "p5.xml").write_text("<system/>")
    ran = go(
        NODE_INSTANCE_TYPE="p5.48xlarge",
        PREFLIGHT_TOPOLOGY_DIR=str(tmp_path),
        PREFLIGHT_TOPOLOGY_MAP="p5.48xlarge=p5.xml",
    )
    assert any(
        f"topology: {tmp_path}/p5.xml for the instance type p5.48xlarge" in line
        for line in ran.lines
    )


def test_a_poisoned_environment_changes_nothing(go: Go) -> None:
    ran = go(
        NCCL_COMM_ID="10.0.0.1:1",
        NCCL_TESTS_MIN_BW="9999",
        NCCL_DEBUG_FILE="/nowhere",
        CUDA_VISIBLE_DEVICES="0",
    )
    assert (ran.exit_code, ran.result.code) == (0, "OK")


def test_bad_variables_exit_2_and_say_what_to_set(go: Go) -> None:
    ran = go(NCCL_LOOPBACK_SIZE="big", NCCL_LOOPBACK_THRESHOLD_GBPS="fast")
    assert ran.exit_code == 2
    assert ran.lines[:2] == [
        'misconfigured: NCCL_LOOPBACK_THRESHOLD_GBPS: "fast" is not a number of GB/s; set e.g. 150, or remove it to use the built-in behaviour.',
        'misconfigured: NCCL_LOOPBACK_SIZE: "big" is not a size from 1M to 64G; set e.g. 1G or 256M, or remove it to use 1G.',
    ]


def test_mig_devices_are_skipped(go: Go, connector: FakeConnector, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(
        "#!/bin/sh\necho '0, MIG-1, A100, 0:1'\necho '1, MIG-2, A100, 0:1'\n"
    )
    (tools / "nvidia-smi").chmod(0o755)
    ran = go(2, path=f"{tools}:{TOOLS}:{Path(sys.executable).parent}:/usr/bin:/bin")
    assert (ran.exit_code, ran.result.outcome, ran.result.code) == (0, "skipped", "MIG")
