"""The check against NVIDIA's own engine and dcgmi, each row as `real/rows.toml` has it.

PREFLIGHT_REAL_DCGM names what `nox -s real-dcgm` compiled. With PREFLIGHT_RECORD=1 what dcgmi
printed becomes the row's recording, which `test_recorded.py` judges where there is no DCGM.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from preflight_proto.check.testing import FakeConnector
from realdcgm import ERRORS, OUTS, REAL, ROWS, errors, play, played

pytestmark = [
    pytest.mark.skipif(not OUTS, reason="PREFLIGHT_REAL_DCGM does not name a compiled DCGM"),
    pytest.mark.timeout(400),
]
VERSIONS = list(OUTS) or [""]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("of_any", ROWS, ids=[row["id"] for row in ROWS])
def test_the_check_says_of_a_real_engine_what_is_wrong_with_the_node(
    of_any: dict[str, Any], version: str, tmp_path: Path
) -> None:
    row = played(of_any, version)
    if version not in row.get("engines", [version]):
        pytest.skip("the row is of other versions")
    with FakeConnector(tmp_path / "connector.sock") as connector:
        program = [sys.executable, "-m", "check_dcgm"]
        ran, runs = play(OUTS[version], row, tmp_path, connector, program)
    # A dcgmi that the check had to end printed nothing.
    if os.environ.get("PREFLIGHT_RECORD") and row["code"] != "CHECK_TIMEOUT":
        commit = OUTS[version].name.partition("-")[2]
        about = {"v": 1, "check": "dcgm-diag", "dcgm": version, "commit": commit}
        recording = REAL / version / f"{row['id']}.json"
        recording.parent.mkdir(exist_ok=True)
        recording.write_text(json.dumps({**about, "runs": runs}, indent=1) + "\n")
    assert (ran.result.outcome, ran.result.code) == (row["outcome"], row["code"]), ran.lines
    assert row.get("reason", "") in ran.lines[-1]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_recorded_errors_are_those_of_the_library(version: str) -> None:
    recorded = REAL / version / ERRORS
    if os.environ.get("PREFLIGHT_RECORD"):
        recorded.write_text(errors(OUTS[version]))
    assert recorded.read_text() == errors(OUTS[version])
