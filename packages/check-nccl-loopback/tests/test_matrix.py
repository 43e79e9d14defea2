"""The fault matrix: every row of ring `component`, the check as a process beside a fake nccl-tests
and a driver in C.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from preflight_proto.check.testing import FakeConnector, run_check
from preflight_testing.fakes import FAKES
from preflight_testing.matrix.facts import node_json
from preflight_testing.matrix.scenario import MATRIX, Scenario, ScenarioPod, load

ROWS = load(MATRIX / "nccl-loopback.toml")
MINE = [row for row in ROWS if row.ring == "component" or os.environ.get("PREFLIGHT_ALL_ROWS")]
"""Those of ring `e2e` run on clusters; PREFLIGHT_ALL_ROWS runs them here as well."""
pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None,
    reason="no C compiler here: no NVML stand-in",
)


def test_there_are_at_least_forty_rows_of_which_half_run_as_processes_here() -> None:
    assert len(ROWS) >= 40
    assert len(MINE) >= 20


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
    command = [sys.executable, "-c", "from check_nccl_loopback.check import main; main()"]
    ran = run_check(command, connector, folder, variables, check="nccl-loopback")
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
