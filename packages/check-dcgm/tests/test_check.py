"""The check as a process, against small fakes of dcgmi and nvidia-smi on PATH."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from documents import fault, v3, v4
from preflight_proto.check.testing import CheckRun, FakeConnector, run_check

A, B, FOREIGN = "GPU-aaaa", "GPU-bbbb", "GPU-cccc"

# Keeps its state in a folder: what it was asked (`calls`), and its answers (`plan.json`).
DCGMI = """#!/usr/bin/env python3
import json, os, sys
home = os.path.dirname(os.path.abspath(__file__))
plan = json.load(open(home + "/plan.json"))
tool = os.path.basename(sys.argv[0])
with open(home + "/calls", "a") as calls: calls.write(" ".join([tool, *sys.argv[1:]]) + "\\n")
mine = plan[tool]
if "-v" in sys.argv:
    print("Version : %s\\nHostengine build info:\\nVersion : %s" % (mine["client"], mine["engine"])); sys.exit(0)
if mine.get("mismatch"):
    print("Error: version mismatch"); sys.exit(244)
if "discovery" in sys.argv:
    if mine.get("down"):
        print("Error: unable to establish a connection"); sys.exit(235)
    listings = mine["listings"]
    seen = sum("discovery" in line for line in open(home + "/calls"))
    for number, uuid in listings[min(seen, len(listings)) - 1]:
        print("| %-6s | Name: H100 |\\n|        | Device UUID: %s |" % (number, uuid))
    sys.exit(0)
answers = mine["answers"]
seen = sum(" diag " in line for line in open(home + "/calls"))
status, output = answers[min(seen, len(answers)) - 1]
print(output); sys.exit(status)
"""


@pytest.fixture
def connector(tmp_path: Path) -> Iterator[FakeConnector]:
    with FakeConnector(tmp_path / "connector.sock") as running:
        yield running


Go = Callable[..., CheckRun]


@pytest.fixture
def go(connector: FakeConnector, tmp_path: Path) -> Go:
    """Run the check on GPUs A and B, with a plan for the fake dcgmi (and dcgmi3)."""

    def run(
        plan: dict[str, Any], *, plan3: dict[str, Any] | None = None, gpus: tuple[str, ...] = (A, B), **variables: str
    ) -> CheckRun:
        tools = tmp_path / "bin"
        tools.mkdir(exist_ok=True)
        for name, one in (("dcgmi", plan), ("dcgmi3", plan3)):
            if one is not None:
                (tools / name).write_text(DCGMI)
                (tools / name).chmod(0o755)
        new = {"client": "4.4.2", "engine": "4.4.2", "listings": [[(0, FOREIGN), (3, A), (5, B)]]}
        (tools / "plan.json").write_text(
            json.dumps(
                {"dcgmi": {**new, **plan}, "dcgmi3": {**new, "client": "3.3.9", "engine": "3.1.8", **(plan3 or {})}}
            )
        )
        smi = tools / "nvidia-smi"
        smi.write_text("#!/bin/sh\n" + "".join(f"echo '{i}, {u}, H100, 0:{i}'\n" for i, u in enumerate(gpus)))
        smi.chmod(0o755)
        given = {
            "PATH": f"{tools}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "DCGM_HOSTENGINE_ADDR": "node:5555",
            "DCGM_DIAG_LEVEL": "2",
            **variables,
        }
        ran = run_check(
            [sys.executable, "-c", "from check_dcgm.check import main; main()"],
            connector,
            tmp_path,
            given,
            check="dcgm-diag",
        )
        assert "Traceback" not in ran.stderr
        return ran

    return run


def calls(tmp_path: Path) -> list[str]:
    return [line for line in (tmp_path / "bin" / "calls").read_text().splitlines() if " diag " in line]


GOOD = (0, v4({"memory": {3: [], 5: []}}))
SICK = (205, v4({"memory": {3: [fault()], 5: []}}))


def test_healthy_gpus_pass_and_only_ours_are_tested(go: Go, connector: FakeConnector, tmp_path: Path) -> None:
    ran = go({"answers": [GOOD]})
    assert (ran.exit_code, ran.result.code) == (0, "OK")
    assert calls(tmp_path) == [f"dcgmi diag -r 2 --host node:5555 -i {A},{B} -j --enable-heartbeat"]
    assert {
        (e.check_name, *(x.entity_value for x in e.entities_impacted)) for e in connector.events if e.is_healthy
    } == {
        ("DcgmDiagnostic",),
        ("DcgmDiagnosticMemory", A),
        ("DcgmDiagnosticMemory", B),
    }


def test_a_sick_gpu_fails_with_one_fatal_event(go: Go, connector: FakeConnector) -> None:
    ran = go({"answers": [SICK]})
    assert (ran.exit_code, ran.result.code, ran.result.subject) == (1, "DCGM_FR_FAULTY_MEMORY", A)
    [event] = [e for e in connector.events if not e.is_healthy]
    assert (event.is_fatal, event.check_name, event.recommended_action.name) == (
        True,
        "DcgmDiagnosticMemory",
        "CONTACT_SUPPORT",
    )
    assert "contact support" in ran.lines[-1]


def test_an_old_engine_is_asked_by_the_old_dcgmi_with_its_own_numbers(go: Go, tmp_path: Path) -> None:
    ran = go({"mismatch": True}, plan3={"answers": [(0, v3({"GPU Memory": {3: [], 5: []}}))]})
    assert ran.result.code == "OK"
    assert calls(tmp_path) == ["dcgmi3 diag -r 2 --host node:5555 -i 3,5 -j"]


def test_an_engine_too_old_for_every_dcgmi_is_inconclusive(go: Go) -> None:
    ran = go({"mismatch": True}, plan3={"mismatch": True})
    assert (ran.exit_code, ran.result.outcome, ran.result.code) == (0, "inconclusive", "ENGINE_VERSION")


def test_an_engine_that_does_not_list_our_gpu_is_refused_before_any_diagnostic(go: Go, tmp_path: Path) -> None:
    ran = go({"listings": [[(0, FOREIGN), (3, A)]], "answers": [GOOD]})
    assert ran.result.code == "WRONG_HOSTENGINE"
    assert B in ran.lines[-1]
    assert calls(tmp_path) == []


def test_a_mapping_that_changed_meanwhile_spoils_the_verdict(go: Go) -> None:
    assert go({"listings": [[(3, A), (5, B)], [(5, A), (3, B)]], "answers": [SICK]}).result.code == "GPU_MAP_CHANGED"


def test_a_busy_engine_is_waited_for(go: Go, tmp_path: Path) -> None:
    ran = go({"answers": [(222, "Error: in use"), GOOD]})
    assert ran.result.code == "OK"
    assert len(calls(tmp_path)) == 2
    assert any("waiting" in line for line in ran.lines)


@pytest.mark.parametrize(("on_inconclusive", "exit_code"), [("", 0), ("block", 1)])
def test_an_engine_that_stays_busy_is_inconclusive(
    go: Go, connector: FakeConnector, on_inconclusive: str, exit_code: int
) -> None:
    ran = go({"answers": [(217, "Error: already running")]}, DCGM_QUEUE_TIMEOUT="1s", ON_INCONCLUSIVE=on_inconclusive)
    assert (ran.exit_code, ran.result.code) == (exit_code, "ENGINE_BUSY")
    [event] = connector.events
    assert (event.is_fatal, event.is_healthy, event.check_name) == (False, False, "DcgmDiagnostic")


def test_an_absent_engine_is_inconclusive(go: Go) -> None:
    assert go({"down": True}).result.code == "ENGINE_UNREACHABLE"


def test_an_empty_answer_is_inconclusive(go: Go) -> None:
    ran = go({"answers": [(0, "")]})
    assert (ran.result.outcome, ran.result.code) == ("inconclusive", "ENGINE_ERROR")


def test_without_dcgmi_the_run_is_inconclusive(go: Go, tmp_path: Path) -> None:
    assert go({}, DCGMI="no-such-dcgmi").result.code == "TOOL_MISSING"


def test_mig_devices_are_skipped_with_the_reason(go: Go) -> None:
    ran = go({}, gpus=("MIG-1",))
    assert (ran.exit_code, ran.result.outcome, ran.result.code) == (0, "skipped", "MIG")


def test_fewer_gpus_than_given_are_inconclusive(go: Go) -> None:
    assert go({"answers": [GOOD]}, EXPECTED_GPUS="8").result.code == "GPU_COUNT"


def test_bad_variables_exit_2_and_say_what_to_set(go: Go) -> None:
    ran = go({}, DCGM_DIAG_LEVEL="five", DCGM_HOSTENGINE_ADDR="")
    assert ran.exit_code == 2
    assert ran.lines[:2] == [
        'misconfigured: DCGM_DIAG_LEVEL: "five" is not a whole number from 1 to 4; set 1, 2, 3 or 4, or remove it to use 1.',
        "misconfigured: DCGM_HOSTENGINE_ADDR: not set; set host:port of the node's hostengine, e.g. $(NODE_IP):5555.",
    ]


@pytest.mark.timeout(300)  # fifty processes, on a machine that may have other things to do
def test_fifty_failing_restarts_report_one_message(connector: FakeConnector, go: Go) -> None:
    for restart in range(50):
        go({"answers": [(205, v4({"memory": {3: [fault(text=f"{restart} errors")], 5: []}}))]})
    fatal = [e for e in connector.events if e.is_fatal]
    assert len(fatal) == 50
    assert len({(e.check_name, e.message, e.entities_impacted[0].entity_value) for e in fatal}) == 1
