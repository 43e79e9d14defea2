"""Every tool here says its version, and ends without a traceback when its reader has gone."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

TOOLS = ["", ".images", ".supply_chain", ".demo", ".fuzz", ".bench"]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_says_its_version(tool: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"preflight_e2e{tool}", "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f" {version('preflight-e2e')}\n")


@pytest.mark.parametrize("tool", [".images", ".demo"])
def test_a_reader_that_goes_away_leaves_no_traceback(tool: str) -> None:
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as reader:
        assert reader.stdin is not None
        reader.wait()
        done = subprocess.run(
            [sys.executable, "-m", f"preflight_e2e{tool}", "--help"],
            stdout=reader.stdin.fileno(),
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode in {0, 141}, done.stderr) == (
        True,
        "",
    )  # argparse itself takes no notice of a help that nobody reads
