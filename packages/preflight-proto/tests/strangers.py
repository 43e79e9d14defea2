"""The stranger's check, run: as a process, and within this one, which costs no start of Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio
from preflight_proto.check import Check, log
from preflight_proto.check.runner import conduct
from preflight_proto.check.testing import CheckRun, FakeConnector, environment, run_check
from preflight_proto.result import from_termination
from stranger import CHECK

STRANGER = [sys.executable, str(Path(__file__).parent / "stranger.py")]


def run(connector: FakeConnector, folder: Path, **variables: str) -> CheckRun:
    ran = run_check(STRANGER, connector, folder, variables, check="tmp-space")
    assert "Traceback" not in ran.stderr
    return ran


def run_within(
    connector: FakeConnector | Path,
    folder: Path,
    check: Check[Any] = CHECK,
    /,
    **variables: str,
) -> CheckRun:
    """All of a run but what is the process's: its arguments, its signals, and its end."""
    given, written = environment(connector, folder, variables), {1: "", 2: ""}

    def write(descriptor: int, text: str) -> None:
        written[descriptor] += text

    with patch.dict(os.environ, given, clear=True), patch.object(log, "write", write):
        status = anyio.run(conduct, check, given)
    return ended(check.name, status, written[1].splitlines(), folder, written[2])


def ended(check: str, status: int, lines: list[str], folder: Path, stderr: str = "") -> CheckRun:
    assert "Traceback" not in stderr
    result = folder / "termination-log"
    text = result.read_text() if result.exists() else ""
    return CheckRun(status, lines, stderr, from_termination(check, text, status), text)
