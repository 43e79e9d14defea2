"""The fault matrix, rows that run on clusters too: the check as a process beside a fake nccl-tests
and a driver in C; and an operator's mistakes while checks only observe.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from preflight_proto.check.testing import FakeConnector, run_check
from preflight_testing.fakes import FAKES
from preflight_testing.matrix.facts import node_json
from preflight_testing.matrix.mistake import Mistake
from preflight_testing.matrix.scenario import MATRIX, Scenario, ScenarioPod, load, load_mistakes

ROWS = load(MATRIX / "nccl-loopback.toml")
MINE = [row for row in ROWS if row.id != "loopback-gpu-off-the-bus"]
"""All but the one after which a GPU is lost for whoever has this /tmp: that runs on clusters."""
MISTAKES = [row for row in load_mistakes() if row.check == "nccl-loopback" and row.outcome]
COMMAND = [sys.executable, "-c", "from check_nccl_loopback.check import main; main()"]
pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None,
    reason="no C compiler here: no NVML stand-in",
)


def test_there_are_at_least_forty_rows() -> None:
    assert len(ROWS) >= 40


@pytest.mark.parametrize("row", MINE, ids=lambda row: row.id)
def test_row(row: Scenario, connector: FakeConnector, tmp_path: Path, library: Path) -> None:
    for step in row.steps:
        for pod in step.pods:
            connector.batches.clear()
            play(
                row,
                pod,
                node_json(f"node-{pod.node}", step.nodes.get(pod.node, {})),
                connector,
                tmp_path,
                library,
            )


def play(
    row: Scenario,
    pod: ScenarioPod,
    facts: dict[str, Any],
    connector: FakeConnector,
    folder: Path,
    library: Path,
) -> None:
    """Run the pod's check beside its node, and compare how it ended with what the row says."""
    [expected] = pod.checks
    [check] = row.values["checks"]
    mine = [gpu["uuid"] for gpu in facts["gpus"]]
    (folder / "node.json").write_text(json.dumps(facts))
    variables = {
        "PATH": f"{FAKES}/bin:{Path(sys.executable).parent}:/usr/bin:/bin",
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NODE_JSON": str(folder / "node.json"),
        "NVIDIA_VISIBLE_DEVICES": ",".join(mine[: pod.gpus]),
        "EXPECTED_GPUS": str(pod.gpus),
        "CHECK_TIMEOUT": check.get("timeout", ""),
        "NCCL_LOOPBACK_THRESHOLD_GBPS": str(
            row.values.get("nccl", {}).get("loopbackThresholdGBps", "")
        ),
        **{one["name"]: one["value"] for one in check.get("env", [])},
    }
    ran = run_check(COMMAND, connector, folder, variables, check="nccl-loopback")
    assert (ran.result.outcome, ran.result.code, ran.exit_code) == (
        expected.outcome,
        expected.code,
        expected.exit_code,
    )
    assert (ran.exit_code == 0) is pod.starts
    assert expected.says in "\n".join(ran.lines)
    raised = {
        (
            e.check_name,
            e.is_fatal,
            e.recommended_action.name,
            e.error_code[0],
            *(x.entity_value for x in e.entities_impacted),
        )
        for e in connector.events
        if not e.is_healthy
    }
    wanted = {
        (e.check_name, e.fatal, e.action, e.code, *([mine[e.gpu]] if e.gpu is not None else []))
        for e in pod.events
    }
    assert raised == wanted
    assert set(pod.clears) <= {e.check_name for e in connector.events if e.is_healthy}


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row.id)
def test_an_operators_mistake_holds_no_observed_pod_back_and_is_named(
    row: Mistake, connector: FakeConnector, tmp_path: Path
) -> None:
    given = {"PATH": "/usr/bin:/bin", "ON_INCONCLUSIVE": "block", "GATE": "observe", **row.env}
    ran = run_check(COMMAND, connector, tmp_path, given, check="nccl-loopback")
    saw = (ran.exit_code, ran.result.outcome, ran.result.code, ran.result.gated)
    assert saw == (0, row.outcome, row.code, False), ran.lines
    assert row.says in "\n".join(ran.lines), ran.lines
    # Of which the gang controller makes the Event.
    assert row.says in f"{ran.result.code}: {ran.result.reason}"
