"""The stranger's check, run."""

from __future__ import annotations

import sys
from pathlib import Path

from preflight_proto.check.testing import CheckRun, FakeConnector, run_check

STRANGER = [sys.executable, str(Path(__file__).parent / "stranger.py")]


def run(connector: FakeConnector, folder: Path, **variables: str) -> CheckRun:
    ran = run_check(STRANGER, connector, folder, variables, check="tmp-space")
    assert "Traceback" not in ran.stderr
    return ran
