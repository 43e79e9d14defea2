"""An operator's mistakes while checks only observe: no pod is held back,
and each mistake is named.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from preflight_proto.check.testing import FakeConnector, RosterFolder, run_check
from preflight_testing.matrix.mistake import Mistake
from preflight_testing.matrix.scenario import load_mistakes

ROWS = [row for row in load_mistakes() if row.check == "nccl-allreduce" and row.outcome]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_an_operators_mistake_holds_no_observed_pod_back_and_is_named(
    row: Mistake, tmp_path: Path
) -> None:
    """`{roster}` in a row is a folder with a roster that cannot be read, `{file}` a file where a
    folder should be.
    """
    (tmp_path / "state").mkdir()
    (tmp_path / "file").touch()
    RosterFolder(tmp_path / "gang")
    RosterFolder(tmp_path / "roster").answer("no roster")
    given = {
        "PATH": "/usr/bin:/bin",
        "POD_IP": "127.0.0.1",
        "EXPECTED_GPUS": "0",
        "GANG_CONFIG_DIR": str(tmp_path / "gang"),
        "PREFLIGHT_STATE_DIR": str(tmp_path / "state"),
        "ON_INCONCLUSIVE": "block",
        "GATE": "observe",
        **{
            name: value.format(roster=tmp_path / "roster", file=tmp_path / "file")
            for name, value in row.env.items()
        },
    }
    argv = [sys.executable, "-c", "from check_nccl_allreduce.check import main; main()"]
    with FakeConnector(tmp_path / "connector.sock") as connector:
        ran = run_check(argv, connector, tmp_path, given, check="nccl-allreduce")
    saw = (ran.exit_code, ran.result.outcome, ran.result.code, ran.result.gated)
    assert saw == (0, row.outcome, row.code, False), ran.lines
    assert row.says in "\n".join(ran.lines), ran.lines
    assert (
        row.says in f"{ran.result.code}: {ran.result.reason}"
    )  # of which the gang controller makes the Event
