"""The check as a process, on a simulated node: the fakes of e2e stand for nccl-tests and
nvidia-smi, and an NVML in C for the driver. The matrix has what it finds; here is how it goes.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest
from check_nccl_loopback.settings import Settings
from preflight_proto.check.settings import SettingsError, read
from preflight_proto.check.testing import CheckRun, FakeConnector, run_check
from preflight_testing.fakes import FAKES
from preflight_testing.matrix.facts import MODEL, node_json, uuids

TOOLS = FAKES / "bin"
SICK = uuids("node-a")[3]
Go = Callable[..., CheckRun]
needs_a_compiler = pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None,
    reason="no C compiler here: the NVML stand-in cannot be built",
)


@pytest.fixture
def go(connector: FakeConnector, tmp_path: Path, request: pytest.FixtureRequest) -> Go:
    """Run the check on ``count`` GPUs of a node; ``nccl`` is what nccl-tests finds there. With
    ``gpus``, what the driver says of a GPU by its index, NVML lists them, else nvidia-smi does.
    """

    def run(
        gpus: Mapping[int, Mapping[str, object]] | None = None,
        *,
        count: int = 8,
        before: str = "",
        nccl: dict[str, Any] | None = None,
        **variables: str,
    ) -> CheckRun:
        said = [{"gpu": index, **facts} for index, facts in (gpus or {}).items()]
        facts = node_json("node-a", {"facts": said, "nccl": nccl or {}})
        facts["gpus"] = facts["gpus"][:count]
        node = tmp_path / "node.json"
        node.write_text(json.dumps(facts))
        given = {
            "PATH": f"{TOOLS}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "FAKE_NODE_JSON": str(node),
            "NVIDIA_VISIBLE_DEVICES": ",".join(str(gpu["uuid"]) for gpu in facts["gpus"]),
            "EXPECTED_GPUS": str(count),
            **variables,
        }
        if gpus is not None:
            given["LD_LIBRARY_PATH"] = str(request.getfixturevalue("library"))
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


@pytest.mark.parametrize("tests", ["2.11.0", "2.17.6"])
def test_healthy_gpus_pass_whatever_the_age_of_nccl_tests(
    go: Go, connector: FakeConnector, tests: str
) -> None:
    ran = go(nccl={"tests": tests})
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
    ran = go(nccl={"ports": [{"gpu": 3, "gbps": 120}]}, before=LIMITED)
    assert (ran.result.outcome, ran.result.code) == ("inconclusive", "CPU_THROTTLED")
    assert "60% of the time" in ran.result.reason
    assert raised(connector) == [("", "CPU_THROTTLED", False)]


def test_a_tool_whose_library_is_missing_is_named(go: Go, tmp_path: Path) -> None:
    tool = tmp_path / "all_reduce_perf"
    says = "all_reduce_perf: error while loading shared libraries: libnccl.so.2: cannot open shared object file"
    tool.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit 127\n")
    tool.chmod(0o755)
    ran = go(NCCL_LOOPBACK_TOOL=str(tool))
    assert (ran.exit_code, ran.result.code) == (2, "TOOL_BROKEN")
    assert "libnccl.so.2" in ran.lines[-1]


def test_fewer_gpus_in_cuda_than_in_the_driver_accuse_nobody(
    go: Go, connector: FakeConnector
) -> None:
    ran = go(nccl={"visible": 7})
    assert ran.result.code == "GPU_COUNT"
    assert raised(connector) == [("", "GPU_COUNT", False)]
    assert any(line.startswith("| Invalid number of GPUs") for line in ran.lines)


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
        f'#!/bin/sh\ncase "$1" in -h) ;; *) env > {tmp_path}/env.txt;; esac\nexec {TOOLS}/all_reduce_perf "$@"\n'
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
    ran = go(nccl={"tests": tests}, TMPDIR=str(tmp_path))
    assert (ran.exit_code, ran.result.code) == (0, "OK")
    [line] = [line for line in ran.lines if line.startswith("measurement: ")]
    measured = json.loads(line.removeprefix("measurement: "))
    assert (measured["model"], measured["gpus"], measured["links"], measured["size"]) == (
        MODEL,
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


# --- beside a driver


@needs_a_compiler
def test_what_the_driver_knows_is_fatal_before_any_load(go: Go, connector: FakeConnector) -> None:
    ran = go({i: {"links": 18, "links_up": 17 if i == 3 else 18} for i in range(8)})
    assert (ran.exit_code, ran.result.code, ran.result.subject) == (1, "NVLINK_DOWN", SICK)
    assert raised(connector) == [("Scan", "NVLINK_DOWN", True, SICK)]
    assert not any(line.startswith("running:") for line in ran.lines)


@needs_a_compiler
def test_a_gpu_that_is_gone_once_all_rows_are_there_is_lost(
    go: Go, connector: FakeConnector
) -> None:
    ran = go({3: {"faults": f"nvmlDeviceGetTemperature={pynvml.NVML_ERROR_GPU_IS_LOST}"}})
    assert (ran.exit_code, ran.result.code, ran.result.subject) == (1, "GPU_LOST", SICK)
    assert raised(connector) == [("Device", "GPU_LOST", True, SICK)]


@needs_a_compiler
@pytest.mark.parametrize("call", ["nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetP2PStatus"])
def test_a_library_that_crashes_costs_what_it_was_asked_and_not_the_check(
    go: Go, connector: FakeConnector, call: str
) -> None:
    ran = go({3: {"faults": f"{call}=crash"}})
    assert (ran.exit_code, ran.result.code, raised(connector)) == (0, "OK", [])
    assert [line for line in ran.lines if "ended by" in line] == [
        f"NVML: {call} ended by SIGSEGV; what it would say is not known."
    ]
    cleared = {event.check_name for event in connector.events if event.is_healthy}
    assert "NCCLLoopbackTestScan" not in cleared  # who does not see all clears nothing


@needs_a_compiler
def test_a_library_that_crashes_hides_nothing_that_it_has_said(
    go: Go, connector: FakeConnector
) -> None:
    ran = go({3: {"remap_failed": 1, "faults": "nvmlDeviceGetSramEccErrorStatus=crash"}})
    assert (ran.exit_code, ran.result.code, ran.result.subject) == (1, "ROW_REMAP_FAILED", SICK)


@needs_a_compiler
def test_two_gpus_that_have_a_third_of_their_links_for_each_other_are_healthy(go: Go) -> None:
    for ends, ended in ((0, (0, "OK")), (2, (1, "SLOW_NODE"))):  # at a GPU, at a switch
        board = {i: {"links": 18, "link_ends": ends} for i in range(2)}
        ran = go(board, count=2, nccl={"rings": 123.6, "nvls": 0})
        assert (ran.exit_code, ran.result.code) == ended
