"""Every tool here says its version, and ends without a traceback when its reader has gone."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.metadata import version

import pytest

TOOLS = [
    *("__main__", "images", "release", "supply_chain", "demo.__main__", "fuzz.__main__"),
    "bench.__main__",
]


@pytest.mark.component  # imports all that a tool has
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_says_its_version(
    tool: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [tool, "--version"])
    with pytest.raises(SystemExit) as ended:
        import_module(f"preflight_e2e.{tool}").main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.err) == (0, "")
    assert printed.out.endswith(f" {version('preflight-e2e')}\n")


@pytest.mark.parametrize("tool", ["images", "demo"])
def test_a_reader_that_goes_away_leaves_no_traceback(tool: str) -> None:
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as reader:
        assert reader.stdin is not None
        reader.wait()
        done = subprocess.run(
            [sys.executable, "-m", f"preflight_e2e.{tool}", "--help"],
            stdout=reader.stdin.fileno(),
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    # argparse itself takes no notice of a help that nobody reads
    assert done.returncode in {0, 141}
    assert done.stderr == ""
