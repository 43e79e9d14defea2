"""A forked program is what a started one is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from preflight_testing.forked import ForkServer

PROGRAM = """
import os, signal, sys

COUNTED = []

def main():
    COUNTED.append(1)
    print(os.environ.get("GO"), len(COUNTED), os.getcwd())
    print("trouble", file=sys.stderr)
    match os.environ.get("GO"):
        case "status":
            sys.exit(7)
        case "words":
            sys.exit("no such thing")
        case "raises":
            raise ValueError("x")
        case "signal":
            os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize("go", ["returns", "status", "words", "raises", "signal"])
def test_a_forked_program_has_the_streams_the_environment_and_the_status_of_a_started_one(
    go: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started = [sys.executable, "-c", "from program import main; main()"]

    def run(argv: list[str]) -> tuple[int, str, str]:
        ran = subprocess.run(
            argv,
            env={**os.environ, "GO": go},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return ran.returncode, ran.stdout, ran.stderr.splitlines()[-1]

    with ForkServer("program", tmp_path) as server:
        assert run(server.argv) == run(started)
        assert run(server.argv) == run(started), "nothing is left of the first"


def test_code_of_a_test_changes_what_is_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text("WAIT = 10.0\ndef main(): print(WAIT)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ForkServer("program", tmp_path, "WAIT = 0.5") as server:
        ran = subprocess.run(server.argv, capture_output=True, text=True, check=True)
    assert ran.stdout == "0.5\n"
