"""The benches of real gangs hold figures against their bars."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from preflight_e2e.bench.fabric import SCALE, VERDICT, FabricBench
from preflight_e2e.bench.load import BenchError

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "e2e/src", ROOT / "packages/allreduce-testing/src")
"""Where the programs are; what they import is installed with the benches only."""


@pytest.mark.parametrize("bench", [VERDICT, SCALE])
def test_the_program_of_a_bench_is_a_module_that_is_there(
    bench: FabricBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def run(command: list[str], *, check: bool) -> subprocess.CompletedProcess[str]:
        started.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    with pytest.raises(BenchError, match="ended with status 1"):
        bench.run(parser.parse_args([]))
    [[python, option, module, *_]] = started
    assert (python, option) == (sys.executable, "-m")
    place = f"{module.replace('.', '/')}.py"
    assert [source for source in SOURCES if (source / place).exists()]
