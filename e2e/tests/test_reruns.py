"""What fails once runs once more, alone; what fails twice has failed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from preflight_e2e.reruns import PytestRun

FLAKY = """
import pathlib

def test_good():
    with open("{log}", "a") as log:
        log.write("good ")

def test_odd():
    runs = pathlib.Path("{log}").read_text().count("odd")
    with open("{log}", "a") as log:
        log.write("odd ")
    assert runs >= {times}
"""


@pytest.mark.parametrize(
    ("times", "rerun", "passes", "ran"),
    [
        (0, "1", True, ["good", "odd"]),
        (1, "1", True, ["good", "odd", "odd"]),
        (2, "1", False, ["good", "odd", "odd"]),
        (1, "0", False, ["good", "odd"]),
    ],
)
def test_a_failed_test_runs_once_more_and_alone(
    tmp_path: Path, times: int, rerun: str, passes: bool, ran: list[str]
) -> None:
    log = tmp_path / "log"
    (tmp_path / "test_it.py").write_text(FLAKY.format(log=log, times=times))
    environ = {**os.environ, "RERUN_FAILED": rerun, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with tempfile.TemporaryFile() as report, PytestRun([str(tmp_path)], environ, report) as tests:
        assert tests.passed() == passes
        report.seek(0)
        told = report.read().decode()
    assert log.read_text().split() == ran
    assert ("passed only when run again" in told) == (passes and len(ran) == 3)
