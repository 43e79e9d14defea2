"""What the kit makes of a check: outcomes, exit statuses, signals, output; with a stranger's, as a
process where that is what matters.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from preflight_proto.check import report
from preflight_proto.check.kit import KitSettings
from preflight_proto.check.runner import exit_status
from preflight_proto.check.settings import read
from preflight_proto.check.testing import FakeConnector, environment, run_check
from preflight_proto.check.verdict import Outcome, Verdict
from preflight_proto.result import from_termination
from stranger import CHECK
from strangers import STRANGER, run, run_within


def test_a_passing_check_exits_0_and_its_last_line_is_the_verdict(
    connector: FakeConnector, tmp_path: Path
) -> None:
    ran = run(connector, tmp_path)
    assert (ran.exit_code, ran.result.outcome, ran.result.gated) == (0, "passed", True)
    assert ran.lines[-1].startswith("tmp-space: passed OK: /tmp has")
    [event] = connector.events
    assert (event.is_healthy, event.check_name, event.entities_impacted) == (True, "TmpSpace", [])


def test_a_failing_check_exits_1_and_reports_in_one_batch(
    connector: FakeConnector, tmp_path: Path
) -> None:
    ran = run_within(connector, tmp_path, LEAST_GIB="1000000")
    assert (ran.exit_code, ran.result.code) == (1, "TMP_FULL")
    [batch] = connector.batches
    [event] = batch.events
    assert (event.agent, event.node_name, event.metadata["pod"]) == (
        "preflight-tmp-space",
        "node-a",
        "pod-a",
    )


@pytest.mark.parametrize(
    ("gate", "exit_code", "strategy"),
    [("observe", 0, "STORE_ONLY"), ("enforce", 1, "STORE_AND_ANALYSE")],
)
def test_the_strategy_changes_no_exit_status_and_observe_stores_only_and_lets_the_pod_start(
    connector: FakeConnector, tmp_path: Path, gate: str, exit_code: int, strategy: str
) -> None:
    given = {"GATE": gate, "PROCESSING_STRATEGY": "STORE_AND_ANALYSE"}
    ran = run_within(connector, tmp_path, LEAST_GIB="1000000", **given)
    assert (ran.exit_code, ran.result.outcome) == (exit_code, "failed")
    assert ran.result.gated is (gate == "enforce")
    assert connector.events[0].processing_strategy.name == strategy


@pytest.mark.parametrize(
    ("variables", "code"),
    [
        ({"LEAST_GIB": "many"}, "MISCONFIGURED"),
        ({"NODE_NAME": ""}, "MISCONFIGURED"),
        ({"GO": "missing"}, "TOOL_MISSING"),
        ({"GO": "wrong", "ON_INCONCLUSIVE": "block"}, "INTERNAL_ERROR"),
        ({"GO": "hang", "CHECK_TIMEOUT": "1s", "ON_INCONCLUSIVE": "block"}, "CHECK_TIMEOUT"),
    ],
)
def test_whatever_comes_of_it_observe_exits_0_and_the_result_says_what(
    connector: FakeConnector, tmp_path: Path, variables: dict[str, str], code: str
) -> None:
    ran = run_within(
        connector, tmp_path, GATE=" observe", PID_FILE=str(tmp_path / "pid"), **variables
    )
    assert (ran.exit_code, ran.result.code, ran.result.gated) == (0, code, False)
    assert ran.lines[-1].endswith("exit 0 (observe: not gated)")


def test_a_misspelt_gate_is_a_misconfiguration_that_holds_the_pod_back(
    connector: FakeConnector, tmp_path: Path
) -> None:
    ran = run_within(connector, tmp_path, GATE="obsrve")
    assert (ran.exit_code, ran.result.outcome, ran.result.gated) == (2, "misconfigured", True)
    assert (
        ran.result.reason
        == 'GATE: "obsrve" is not enforce or observe; set enforce or observe, or remove it to use enforce.'
    )


@pytest.mark.parametrize(("gate", "exit_code"), [("observe", 0), ("enforce", 2)])
def test_an_argument_counts_as_a_misconfiguration(
    connector: FakeConnector, tmp_path: Path, gate: str, exit_code: int
) -> None:
    ran = run_check(
        [*STRANGER, "--level=2"], connector, tmp_path, {"GATE": gate}, check="tmp-space"
    )
    assert (ran.exit_code, ran.result.outcome, ran.result.gated) == (
        exit_code,
        "misconfigured",
        gate == "enforce",
    )
    assert "takes no arguments, found '--level=2'" in ran.result.reason


@pytest.mark.parametrize(("gate", "exit_code"), [("observe", 0), ("enforce", 1)])
def test_a_mistake_of_the_kit_itself_is_inconclusive_and_never_holds_an_observed_pod_back(
    connector: FakeConnector, tmp_path: Path, gate: str, exit_code: int
) -> None:
    broken = (
        "import runpy, sys; from preflight_proto.check import runner\n"
        "def events(*_): raise KeyError('broken')\n"
        "runner.events = events; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    )
    argv = [sys.executable, "-c", broken, STRANGER[1]]
    ran = run_check(argv, connector, tmp_path, {"GATE": gate}, check="tmp-space")
    assert (ran.exit_code, ran.result.code, ran.result.gated) == (
        exit_code,
        "INTERNAL_ERROR",
        gate == "enforce",
    )
    assert "Traceback" not in ran.stderr


def test_a_misconfigured_check_exits_2_names_every_variable_and_reports_nothing(
    connector: FakeConnector, tmp_path: Path
) -> None:
    ran = run_within(connector, tmp_path, LEAST_GIB="many", GATE="maybe", NODE_NAME="")
    assert (ran.exit_code, ran.result.outcome) == (2, "misconfigured")
    assert [line.split(":")[1].strip() for line in ran.lines[:-1]] == [
        "LEAST_GIB",
        "NODE_NAME",
        "GATE",
    ]
    assert connector.attempts == 0


@pytest.mark.parametrize(("on_inconclusive", "exit_code"), [("block", 1), ("allow", 0)])
def test_an_unexpected_exception_is_inconclusive(
    connector: FakeConnector, tmp_path: Path, on_inconclusive: str, exit_code: int
) -> None:
    ran = run_within(connector, tmp_path, GO="wrong", ON_INCONCLUSIVE=on_inconclusive)
    assert (ran.exit_code, ran.result.code) == (exit_code, "INTERNAL_ERROR")
    assert "unexpected KeyError at stranger.py" in ran.lines[-1]
    [event] = connector.events
    assert not event.is_fatal


def test_of_what_two_tasks_raise_at_once_the_verdict_counts(
    connector: FakeConnector, tmp_path: Path
) -> None:
    ran = run_within(connector, tmp_path, GO="both", ON_INCONCLUSIVE="block")
    assert (ran.exit_code, ran.result.code, ran.result.reason) == (1, "PEER_FAILED", "it left.")


def test_what_goes_wrong_in_a_callback_of_the_event_loop_is_one_line_and_no_traceback(
    connector: FakeConnector, tmp_path: Path
) -> None:
    ran = run_within(connector, tmp_path, GO="callback")
    assert (ran.exit_code, ran.result.code) == (0, "OK")
    said = [line for line in ran.lines if "event loop" in line]
    assert said == ["unexpected in the event loop: KeyError: 'lost'; the verdict is unchanged"]


@pytest.mark.parametrize(
    ("outcome", "code", "variables", "status"),
    [
        (Outcome.FAILED, "ONE", {}, 41),
        (Outcome.INCONCLUSIVE, "PEER_FAILED", {}, 42),
        (Outcome.INCONCLUSIVE, "GANG_TIMEOUT", {}, 43),
        (Outcome.INCONCLUSIVE, "GANG_TIMEOUT", {"ON_INCONCLUSIVE": "allow"}, 0),
        (Outcome.INCONCLUSIVE, "GANG_TIMEOUT", {"GATE": "observe"}, 0),
        (Outcome.FAILED, "ONE", {"GATE": "observe"}, 0),
        (Outcome.MISCONFIGURED, "CONFIG", {}, 2),
        (Outcome.PASSED, "OK", {}, 0),
    ],
)
def test_each_kind_of_block_has_its_own_exit_status(
    outcome: Outcome, code: str, variables: dict[str, str], status: int
) -> None:
    environ = {
        "NODE_NAME": "node-a",
        "ON_INCONCLUSIVE": "block",
        "EXIT_CODE_FAILED": "41",
        "EXIT_CODE_PEER_FAILED": "42",
        "EXIT_CODE_INCONCLUSIVE": "43",
    }
    verdict = Verdict(outcome=outcome, code=code, reason="why.")
    assert exit_status(CHECK, verdict, read(KitSettings, environ | variables)) == status


@pytest.mark.parametrize("on_inconclusive", ["block", "allow"])
def test_a_missing_tool_is_misconfigured_and_named_with_its_image(
    connector: FakeConnector, tmp_path: Path, on_inconclusive: str
) -> None:
    ran = run_within(connector, tmp_path, GO="missing", ON_INCONCLUSIVE=on_inconclusive)
    assert (ran.exit_code, ran.result.code) == (2, "TOOL_MISSING")
    assert "no-such-tool is not on PATH in the image preflight-tmp-space" in ran.lines[-1]


def test_a_spent_deadline_is_inconclusive_and_leaves_no_process(
    connector: FakeConnector, tmp_path: Path
) -> None:
    ran = run_within(
        connector, tmp_path, GO="hang", CHECK_TIMEOUT="1s", PID_FILE=str(tmp_path / "pid")
    )
    assert (ran.exit_code, ran.result.code) == (1, "CHECK_TIMEOUT")
    assert_gone(int((tmp_path / "pid").read_text()))


def test_sigterm_is_inconclusive_reported_and_leaves_no_process(
    connector: FakeConnector, tmp_path: Path
) -> None:
    unhurried = (  # a busy machine needs more than the second of a last report
        "import runpy, sys; from preflight_proto.check import report, runner\n"
        "runner.LAST_REPORT = report.ATTEMPT = 3600\n"
        "runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    )
    pid_file = tmp_path / "pid"
    variables = {"GO": "hang", "PID_FILE": str(pid_file), "CHECK_TIMEOUT": "1h"}
    process = subprocess.Popen(
        [sys.executable, "-c", unhurried, STRANGER[1]],
        env=environment(connector, tmp_path, variables),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "hanging\n"
    while not pid_file.exists() or not pid_file.read_text().strip():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    last = process.stdout.read().splitlines()[-1]
    process.stdout.close()
    assert process.wait() == 1
    assert "inconclusive TERMINATED" in last
    assert (
        from_termination("tmp-space", (tmp_path / "termination-log").read_text(), 1).code
        == "TERMINATED"
    )
    assert [e.error_code for e in connector.events] == [["TERMINATED"]]
    assert_gone(int(pid_file.read_text()))


def test_output_is_bounded(connector: FakeConnector, tmp_path: Path) -> None:
    assert "kept 1000 truncated True" in run_within(connector, tmp_path, GO="flood").lines


def test_without_any_gpu_the_run_is_inconclusive(connector: FakeConnector, tmp_path: Path) -> None:
    ran = run_within(connector, tmp_path, GO="gpus", PATH="/usr/bin:/bin")
    assert ran.result.code == "NO_GPU"
    assert "runtimeClassName" in ran.lines[-1]
    assert ran.lines[-1].endswith("DRA driver. exit 1")


@pytest.mark.parametrize(
    ("expected", "code"), [("2", "OK"), ("3", "GPU_MISSING"), ("1", "GPU_COUNT")]
)
def test_gpus_are_found_by_nvidia_smi_and_counted(
    connector: FakeConnector, tmp_path: Path, expected: str, code: str
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\necho '0, GPU-a, NVIDIA H100, 00000000:1B:00.0'\necho '1, GPU-b, NVIDIA H100, 00000000:2B:00.0'\n"
    )
    smi.chmod(0o755)
    ran = run_within(
        connector, tmp_path, GO="gpus", PATH=f"{tmp_path}:/usr/bin:/bin", EXPECTED_GPUS=expected
    )
    assert ran.result.code == code


def test_a_hanging_connector_changes_no_verdict(
    connector: FakeConnector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "send", partial(report.send, budget=0.2))
    connector.mode = "hang"
    ran = run_within(connector, tmp_path)
    assert (ran.exit_code, ran.result.outcome) == (0, "passed")
    assert any("the verdict is unchanged" in line for line in ran.lines)


def test_who_reads_the_result_learns_that_nothing_was_reported_and_why(
    connector: FakeConnector, tmp_path: Path
) -> None:
    nowhere = tmp_path / "nobody.sock"
    ran = run_within(nowhere, tmp_path)
    assert (ran.exit_code, ran.result.outcome, ran.result.code) == (0, "passed", "OK")
    said = f"not reported (platform connector at {nowhere}: there is no such socket): /tmp has "
    assert ran.result.reason.startswith(said)
    assert run_within(connector, tmp_path).result.reason.startswith("/tmp has ")


def test_the_log_says_how_much_of_the_time_was_its_tools(
    connector: FakeConnector, tmp_path: Path
) -> None:
    [line] = [line for line in run_within(connector, tmp_path).lines if line.startswith("took ")]
    whole, runs, tools = (float(word) for word in re.findall(r"\d+(?:\.\d+)?", line))
    assert runs == 1
    assert 0 < tools < whole


def test_help_is_a_manual_with_the_checks_own_defaults() -> None:
    done = subprocess.run([*STRANGER, "--help"], capture_output=True, text=True, check=True)
    for word in ("LEAST_GIB", "free space that /tmp must have", "CONNECTOR_SOCKET", "Exit status"):
        assert word in done.stdout
    lines = done.stdout.splitlines()
    for variable, default in (("CHECK_TIMEOUT", "20s"), ("ON_INCONCLUSIVE", "block")):
        assert lines[lines.index(f"  {variable}") + 1].endswith(f"default: {default}")


def assert_gone(pid: int) -> None:
    """The process ends (a killed one may wait for its reaper as a zombie)."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    pytest.fail(f"process {pid} lives on")
