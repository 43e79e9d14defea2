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
from realdcgm import ERRORS, REAL, ROWS, errors, play

OUT = os.environ.get("PREFLIGHT_REAL_DCGM")
pytestmark = [
    pytest.mark.skipif(OUT is None, reason="PREFLIGHT_REAL_DCGM does not name a compiled DCGM"),
    pytest.mark.timeout(400),
]


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_the_check_says_of_a_real_engine_what_is_wrong_with_the_node(
    row: dict[str, Any], tmp_path: Path
) -> None:
    assert OUT is not None
    with FakeConnector(tmp_path / "connector.sock") as connector:
        program = [sys.executable, "-m", "check_dcgm"]
        ran, runs = play(Path(OUT), row, tmp_path, connector, program)
    # A dcgmi that the check had to end printed nothing.
    if os.environ.get("PREFLIGHT_RECORD") and row["code"] != "CHECK_TIMEOUT":
        version, _, commit = Path(OUT).name.partition("-")
        about = {"v": 1, "check": "dcgm-diag", "dcgm": version, "commit": commit}
        recording = REAL / version / f"{row['id']}.json"
        recording.parent.mkdir(exist_ok=True)
        recording.write_text(json.dumps({**about, "runs": runs}, indent=1) + "\n")
    assert (ran.result.outcome, ran.result.code) == (row["outcome"], row["code"]), ran.lines


def test_the_recorded_errors_are_those_of_the_library() -> None:
    assert OUT is not None
    recorded = REAL / Path(OUT).name.partition("-")[0] / ERRORS
    if os.environ.get("PREFLIGHT_RECORD"):
        recorded.write_text(errors(Path(OUT)))
    assert recorded.read_text() == errors(Path(OUT))
