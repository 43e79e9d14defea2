"""An operator's mistakes while checks only observe: no pod is held back,
and each mistake is named.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from preflight_proto.check.testing import FakeConnector, run_check
from preflight_testing.matrix.mistake import Mistake
from preflight_testing.matrix.scenario import load_mistakes

ROWS = [row for row in load_mistakes() if row.check == "nccl-loopback" and row.outcome]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_an_operators_mistake_holds_no_observed_pod_back_and_is_named(
    row: Mistake, tmp_path: Path
) -> None:
    given = {"PATH": "/usr/bin:/bin", "ON_INCONCLUSIVE": "block", "GATE": "observe", **row.env}
    argv = [sys.executable, "-c", "from check_nccl_loopback.check import main; main()"]
    with FakeConnector(tmp_path / "connector.sock") as connector:
        ran = run_check(argv, connector, tmp_path, given, check="nccl-loopback")
    saw = (ran.exit_code, ran.result.outcome, ran.result.code, ran.result.gated)
    assert saw == (0, row.outcome, row.code, False), ran.lines
    assert row.says in "\n".join(ran.lines), ran.lines
    assert (
        row.says in f"{ran.result.code}: {ran.result.reason}"
    )  # of which the gang controller makes the Event
