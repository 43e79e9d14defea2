"""The check's whole way, with small fakes of dcgmi and nvidia-smi. The matrix has what it finds;
here is how it goes.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from check_dcgm.hostengine import OURS_AFTER
from documents import fault, v4
from engines import document, runtime_error
from inprocess import Terminate, completed, conduct
from preflight_proto.check import Completed, ToolMissing
from preflight_proto.check.testing import CheckRun, FakeConnector, environment

A, B, FOREIGN = "GPU-aaaa", "GPU-bbbb", "GPU-cccc"
CONNECTION = "Error: unable to establish a connection"


class Tools:
    """nvidia-smi, and by its name a plan for each dcgmi: what it and its engine answer."""

    def __init__(self, plans: dict[str, dict[str, Any]], listing: str) -> None:
        self.plans, self.listing = plans, listing
        self.calls: list[str] = []
        self.signals: list[signal.Signals] = []

    def __call__(
        self, argv: Sequence[str], timeout: float | None, terminate: Terminate
    ) -> Completed:
        tool, *words = argv
        if why := self.plans.get(tool, {}).get("unlinked"):
            return completed(argv, 127, "", f"error while loading shared libraries: libdcgm: {why}")
        self.calls.append(" ".join(argv))
        if tool == "nvidia-smi":
            return completed(argv, 0, self.listing)
        if tool not in self.plans:
            raise ToolMissing(tool)
        plan = self.plans[tool]
        if "diag" in words and plan.get("hangs"):
            assert timeout is not None
            self.signals.append(terminate(timeout) if callable(terminate) else terminate)
            return Completed(tuple(argv), -9, "", "", True, False, timeout)
        done = completed(argv, *self._answer(plan, tool, words))
        return replace(done, duration=plan.get("takes", 0.0))

    def diagnostics(self) -> list[str]:
        """The diagnostics that were asked for."""
        return [call for call in self.calls if " diag " in call]

    def _answer(self, plan: dict[str, Any], tool: str, words: list[str]) -> tuple[int, str]:
        if "-v" in words:
            both = f"Version : {plan['client']}\nBuild info:\nVersion : {plan['engine']}\n"
            return 0, "" if plan.get("mute") else both
        if "--version" in words:
            return 0, f"dcgmi  version: {plan['client']}\n"
        if plan.get("mismatch"):
            return 244, "Error: version mismatch"
        listings = plan["listings"]
        if "--gpuid" in words:
            uuid = dict(listings[0]).get(int(words[words.index("--gpuid") + 1]), "")
            serial = plan.get("serials", {}).get(uuid, "****")
            return 0, f"| UUID | {uuid} |\n| Serial Number | {serial} |\n"
        asked = sum(f"{tool} {words[0]} " in call for call in self.calls)
        if words[0] == "diag":
            status, output = plan["answers"][min(asked, len(plan["answers"])) - 1]
            return status, output
        if plan.get("down", 0) >= asked:
            return 235, CONNECTION
        rows = listings[min(asked, len(listings)) - 1]
        return 0, "".join(f"| {n} | |\n| | Device UUID: {uuid} |\n" for n, uuid in rows)


@pytest.fixture
def connector(tmp_path: Path) -> Iterator[FakeConnector]:
    with FakeConnector(tmp_path / "connector.sock") as running:
        yield running


Go = Callable[..., CheckRun]


def _row(index: int, uuid: str, model: str, serials: dict[str, str] | None) -> str:
    row = f"{index}, {uuid}, {model}, 00000000:1{index}:00.0"
    return row if serials is None else f"{row}, {serials.get(uuid, '[N/A]')}, Disabled"


@pytest.fixture
def tools() -> Tools:
    return Tools({}, "")


@pytest.fixture
def go(connector: FakeConnector, tmp_path: Path, tools: Tools) -> Go:
    """Run the check on GPUs A and B, with a plan for the fake dcgmi (and dcgmi3)."""

    def run(
        plan: dict[str, Any],
        *,
        plan3: dict[str, Any] | None = None,
        gpus: tuple[str, ...] = (A, B),
        serials: dict[str, str] | None = None,
        model: str = "H100",
        **variables: str,
    ) -> CheckRun:
        new = {"client": "4.4.2", "engine": "4.4.2", "listings": [[(0, FOREIGN), (3, A), (5, B)]]}
        old = {**new, "client": "3.3.9", "engine": "3.1.8"}
        tools.plans = {"dcgmi": {**new, **plan}}
        if plan3 is not None:
            tools.plans["dcgmi3"] = {**old, **plan3}
        tools.listing = "\n".join(_row(i, u, model, serials) for i, u in enumerate(gpus))
        tools.calls.clear()
        given = {"DCGM_HOSTENGINE_ADDR": "node:5555", "DCGM_DIAG_LEVEL": "2", **variables}
        ran = conduct(tools, connector, tmp_path, given)
        assert "Traceback" not in ran.stderr
        return ran

    return run


ALL: dict[str, Any] = {test: {3: [], 5: []} for test in ("software", "memory", "pcie")}
GOOD = (0, v4(ALL))
SICK = (205, v4({**ALL, "memory": {3: [fault()], 5: []}}))


OLD_GOOD, _ = document("3.3.9", 2, (3, 5))


def test_healthy_gpus_pass_and_only_ours_are_tested(
    go: Go, connector: FakeConnector, tools: Tools
) -> None:
    ran = go({"answers": [GOOD]})
    assert (ran.exit_code, ran.result.code) == (0, "OK")
    assert tools.diagnostics() == [
        f"dcgmi diag -r 2 --host node:5555 -i {A},{B} -j -t 900 --enable-heartbeat"
    ]
    assert {
        (e.check_name, *(x.entity_value for x in e.entities_impacted))
        for e in connector.events
        if e.is_healthy
    } == {
        ("DcgmDiagnostic",),
        *(
            (f"DcgmDiagnostic{test}", gpu)
            for test in ("Software", "Memory", "Pcie", "Presence")
            for gpu in (A, B)
        ),
    }


def test_an_old_engine_is_asked_by_the_old_dcgmi_with_its_own_numbers(go: Go, tools: Tools) -> None:
    ran = go({"mismatch": True}, plan3={"answers": [(0, OLD_GOOD)]})
    assert ran.result.code == "OK"
    assert tools.diagnostics() == ["dcgmi3 diag -r 2 --host node:5555 -i 3,5 -j"]


def test_a_mapping_that_changed_meanwhile_spoils_the_verdict(go: Go) -> None:
    assert (
        go({"listings": [[(3, A), (5, B)], [(5, A), (3, B)]], "answers": [SICK]}).result.code
        == "GPU_MAP_CHANGED"
    )


LOSES_A = {"client": "4.5.0", "engine": "4.5.0", "listings": [[(3, A), (5, B)], [(5, B)]]}
"""From DCGM 4.5 on a listing has active GPUs only."""
FELL_OFF = fault(120, 2, 15, "GPU 3 has fallen off the bus")


@pytest.mark.parametrize(
    ("answer", "serials"),
    [
        ((205, v4({**ALL, "memory": {3: [FELL_OFF], 5: []}})), None),
        ((205, v4({**ALL, "memory": {3: [FELL_OFF], 5: []}})), {A: "111", B: "222"}),
        ((238, runtime_error("4.5.0", "lost")), None),
        ((238, runtime_error("4.5.0", "lost")), {A: "111", B: "222"}),
    ],
)
def test_an_engine_that_no_longer_lists_the_gpu_it_accuses_is_believed(
    go: Go, answer: tuple[int, str], serials: dict[str, str] | None
) -> None:
    status, output = answer
    if serials and status == 205:
        output = _with_serials(output, {3: "111", 5: "222"})
    # Of a lost GPU the engine knows no serial number.
    plan = {**LOSES_A, "answers": [(status, output)], "serials": {B: "222"}}
    ran = go(plan, serials=serials)
    assert (ran.exit_code, ran.result.outcome) == (1, "failed"), ran.lines


def test_an_engine_that_has_lost_the_only_gpu_that_could_prove_it_is_not_believed(go: Go) -> None:
    plan = {**LOSES_A, "answers": [(238, runtime_error("4.5.0", "lost"))]}
    ran = go(plan, gpus=(A,), serials={A: "111"})
    assert (ran.result.outcome, ran.result.code) == ("inconclusive", "WRONG_HOSTENGINE")


def test_a_gpu_that_the_engine_no_longer_lists_is_not_cleared(
    go: Go, connector: FakeConnector
) -> None:
    ran = go({**LOSES_A, "answers": [GOOD]})
    assert (ran.result.outcome, ran.result.code) == ("inconclusive", "GPU_MAP_CHANGED")
    assert f"no longer lists {A} after the diagnostic" in ran.lines[-1]
    assert not any(event.is_healthy for event in connector.events)


@pytest.mark.parametrize("status", [205, 238])
def test_a_sick_gpu_is_named_beside_one_that_the_engine_no_longer_lists(
    go: Go, status: int, connector: FakeConnector
) -> None:
    sick = (status, v4({**ALL, "memory": {3: [], 5: [fault()]}}))
    ran = go({**LOSES_A, "answers": [sick]})
    assert (ran.exit_code, ran.result.code, ran.result.subject) == (1, "DCGM_FR_FAULTY_MEMORY", B)
    healthy = [e for e in connector.events if e.is_healthy]
    assert A not in {x.entity_value for event in healthy for x in event.entities_impacted}


def test_a_number_that_another_gpu_has_by_now_spoils_the_verdict(go: Go) -> None:
    listings = [LOSES_A["listings"][0], [(3, FOREIGN), (5, B)]]
    sick = (205, v4({**ALL, "memory": {3: [FELL_OFF], 5: []}}))
    ran = go({**LOSES_A, "listings": listings, "answers": [sick]})
    assert ran.result.code == "GPU_MAP_CHANGED"


def test_patience_that_is_shorter_than_the_pause_between_two_looks_is_used_up_all_the_same(
    go: Go,
) -> None:
    assert (
        go(
            {"answers": [(217, "Error: already running"), GOOD]}, DCGM_QUEUE_TIMEOUT="0.1s"
        ).result.code
        == "OK"
    )


def test_an_engine_that_is_just_replaced_is_asked_once_more(go: Go) -> None:
    assert go({"down": 1, "answers": [GOOD]}).result.code == "OK"


def test_an_image_without_dcgmi_is_misconfigured_and_named(go: Go) -> None:
    ran = go({}, DCGMI="no-such-dcgmi")
    assert (ran.exit_code, ran.result.outcome, ran.result.code) == (
        2,
        "misconfigured",
        "TOOL_MISSING",
    )
    assert "the image preflight-dcgm-diag has none of no-such-dcgmi" in ran.lines[-1]


def test_a_dcgmi_that_lacks_a_library_is_none_and_the_next_one_is_tried(go: Go) -> None:
    lacks = {"unlinked": "cannot open shared object file: No such file or directory"}
    assert go(lacks).result.code == "TOOL_MISSING"
    assert go(lacks, plan3={"answers": [(0, OLD_GOOD)]}).result.code == "OK"


def test_a_dcgmi_that_has_no_memory_to_load_a_library_is_not_missing(go: Go) -> None:
    ran = go({"unlinked": "failed to map segment from shared object"})
    assert (ran.exit_code, ran.result.code) == (0, "ENGINE_UNREACHABLE")
    assert "failed to map segment" in ran.result.reason


def test_an_address_whose_variable_is_not_set_is_misconfigured(go: Go) -> None:
    ran = go({"answers": [GOOD]}, DCGM_HOSTENGINE_ADDR="$(NODE_IP):5555")
    assert (ran.exit_code, ran.result.code) == (2, "MISCONFIGURED")
    assert "refers to NODE_IP, which is not set" in ran.result.reason


@pytest.mark.parametrize(
    ("takes", "words"), [(90.1, "raise CHECK_TIMEOUT"), (9, "the engine did not answer in time")]
)
def test_advice_about_our_time_is_for_an_engine_that_used_the_whole_seconds_it_was_given(
    go: Go, takes: float, words: str
) -> None:
    plan = {"answers": [(245, runtime_error("4.4.2", "timeout"))], "takes": takes}
    ran = go(plan, CHECK_TIMEOUT="90.5s")
    assert ran.result.code == "ENGINE_TIMEOUT"
    assert ran.result.reason.startswith("hostengine node:5555: ")
    assert words in ran.result.reason


def test_mig_devices_are_skipped_with_the_reason(go: Go) -> None:
    ran = go({}, gpus=("MIG-1",))
    assert (ran.exit_code, ran.result.outcome, ran.result.code) == (0, "skipped", "MIG")


def test_a_missing_gpu_is_a_finding_also_where_no_engine_answers(go: Go) -> None:
    ran = go({"down": 99}, gpus=(A,), NVIDIA_VISIBLE_DEVICES=f"{A},{B}", EXPECTED_GPUS="2")
    assert (ran.exit_code, ran.result.code) == (1, "GPU_MISSING")


# --- whose engine it is


def test_serial_numbers_that_differ_accuse_and_clear_nobody(
    go: Go, connector: FakeConnector
) -> None:
    for answer in (SICK, GOOD):
        sick = (answer[0], _with_serials(answer[1], {3: "111", 5: "999"}))
        ran = go({"answers": [sick]}, serials={A: "111", B: "222"})
        assert (ran.exit_code, ran.result.outcome, ran.result.code) == (
            0,
            "inconclusive",
            "WRONG_HOSTENGINE",
        )
        assert B in ran.lines[-1]
        assert A not in ran.lines[-1]
    assert not any(e.is_fatal or e.is_healthy for e in connector.events)


def test_an_engine_without_a_proof_of_identity_is_not_believed(go: Go) -> None:
    ran = go({"answers": [SICK]}, serials={A: "111", B: "222"})
    assert (ran.result.outcome, ran.result.code) == ("inconclusive", "WRONG_HOSTENGINE")
    assert "gives no serial number" in ran.lines[-1]


def test_a_lost_gpu_of_an_unproven_engine_is_not_fatal(go: Go, connector: FakeConnector) -> None:
    ran = go({"answers": [(238, runtime_error("4.4.2", "lost"))]}, serials={A: "111", B: "222"})
    assert ran.result.code == "WRONG_HOSTENGINE"
    assert not any(e.is_fatal for e in connector.events)


def test_the_serial_number_and_the_pci_address_are_in_the_event(
    go: Go, connector: FakeConnector
) -> None:
    sick = (205, _with_serials(SICK[1], {3: "111", 5: "222"}))
    go({"answers": [sick]}, serials={A: "111", B: "222"})
    [event] = [e for e in connector.events if not e.is_healthy]
    assert (event.metadata["serial"], event.metadata["pci_bus_id"]) == ("111", "00000000:10:00.0")


def _with_serials(output: str, serials: dict[int, str]) -> str:
    raw = json.loads(output)
    entities = [
        {"entity_id": gpu, "device_id": "2330", "serial_num": serial}
        for gpu, serial in serials.items()
    ]
    raw["entity_groups"] = [{"entity_group": "GPU", "entity_group_id": 1, "entities": entities}]
    return json.dumps(raw)


# --- one diagnostic per engine


def test_an_engine_that_refuses_the_diagnostic_to_the_only_dcgmi_of_the_image_is_too_old(
    go: Go, connector: FakeConnector
) -> None:
    refusal = (244, runtime_error("4.4.2", "API version mismatch"))
    ran = go({"engine": "4.1.1", "answers": [refusal]})
    saw = (ran.exit_code, ran.result.outcome, ran.result.code)
    assert saw == (0, "inconclusive", "ENGINE_VERSION"), ran.lines
    assert "(DCGM 4.1.1) is older than dcgmi 4.4.2, and refuses" in ran.lines[-1]
    assert [(e.is_fatal, e.is_healthy, e.error_code) for e in connector.events] == [
        (False, False, ["ENGINE_VERSION"])
    ]


@pytest.mark.parametrize(("version", "ends"), [("4.0.0", "SIGTERM"), ("4.4.2", "SIGKILL")])
def test_our_own_diagnostic_is_stopped_when_its_time_is_up(
    go: Go, tools: Tools, version: str, ends: str
) -> None:
    ran = go({"client": version, "engine": version, "hangs": True}, CHECK_TIMEOUT="2s")
    assert ran.result.code == "CHECK_TIMEOUT"
    assert [each.name for each in tools.signals] == [ends]


HANGS = f"""#!/bin/sh
case "$*" in
-v*) echo "Version : 4.0.0"; echo "Version : 4.0.0" ;;
discovery*) echo "| 3 | Device UUID: {A} |" ;;
diag*) trap 'echo SIGTERM > "$0.signals"; exit 143' TERM; touch "$0.diag"; sleep 60 & wait ;;
esac
"""


def test_a_check_that_is_told_to_stop_stops_its_diagnostic_on_the_engine(
    connector: FakeConnector, tmp_path: Path
) -> None:
    dcgmi = tmp_path / "dcgmi"
    smi = f"#!/bin/sh\necho '{_row(0, A, 'H100', None)}'\n"
    for path, text in ((dcgmi, HANGS), (tmp_path / "nvidia-smi", smi)):
        path.write_text(text)
        path.chmod(0o755)
    variables = {
        "PATH": f"{tmp_path}:/usr/bin:/bin:{Path(sys.executable).parent}",
        "DCGM_HOSTENGINE_ADDR": "10.0.0.1:5555",
        "DCGM_DIAG_LEVEL": "2",
    }
    argv = [sys.executable, "-c", "from check_dcgm.check import main; main()"]
    environ = environment(connector, tmp_path, variables)
    with subprocess.Popen(
        argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 40
        while not Path(f"{dcgmi}.diag").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(OURS_AFTER + 0.5)  # until it is surely ours
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)
    result = json.loads((tmp_path / "termination-log").read_text())
    assert result["code"] == "TERMINATED"
    assert Path(f"{dcgmi}.signals").read_text() == "SIGTERM\n"


def test_an_engine_that_does_not_tell_its_version_is_asked_by_uuid_all_the_same(
    go: Go, tools: Tools
) -> None:
    go({"mute": True, "answers": [GOOD]})
    assert tools.diagnostics() == [f"dcgmi diag -r 2 --host node:5555 -i {A},{B} -j"]


# --- what people see, and what an operator may set


def test_the_log_has_a_table_of_gpus_and_tests(go: Go) -> None:
    ran = go({"answers": [SICK]})
    table = [line for line in ran.lines if line.startswith("table: ")]
    assert table == [
        "table: GPU | engine id | Software | Memory | Pcie",
        f"table: {A} | 3 | pass | FAIL | pass",
        f"table: {B} | 5 | pass | pass | pass",
    ]


def test_an_operators_table_wins_over_the_document(go: Go, tmp_path: Path) -> None:
    file = tmp_path / "errors.toml"
    file.write_text("[52]\nfatal = false\nseverity = 4\n")
    ran = go({"answers": [SICK]}, DCGM_ERRORS_FILE=str(file))
    assert (ran.exit_code, ran.result.code) == (1, "DCGM_FR_FAULTY_MEMORY")
    assert "stays in service" in ran.lines[-1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[52", "is not TOML"),
        ("[52]\ncolour = 1\n", '[52] has "colour"'),
        ("[52]\nseverity = 9\n", "severity = 9 is not from 0 to 6"),
        ('[52]\naction = "BURN"\n', 'action = "BURN" is not one of'),
        ("x = 1\n", '"x" is not an error id'),
    ],
)
def test_an_operators_table_that_is_wrong_is_misconfigured(
    go: Go, tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "errors.toml"
    file.write_text(text)
    ran = go({}, DCGM_ERRORS_FILE=str(file), DCGM_OPTIONAL_TESTS="software,nothing")
    assert ran.exit_code == 2
    assert any(says in line and str(file) in line for line in ran.lines)
    assert any('DCGM_OPTIONAL_TESTS: "nothing"' in line for line in ran.lines)
