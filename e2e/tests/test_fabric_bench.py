"""The benches of real gangs hold figures against their bars."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from preflight_e2e.bench.fabric import (
    CLEAN,
    REALS,
    SCALE,
    VERDICT,
    FabricBench,
    clean_bars,
    reals_bars,
    scale_bars,
    verdict_bars,
)
from preflight_e2e.bench.load import BenchError

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "e2e/src", ROOT / "packages/allreduce-testing/src")
"""Where the programs are; what they import is installed with the benches only."""


def run(**changed: Any) -> dict[str, Any]:
    return {"named": [3], "blamed": [], "parent_mb": 33.0, **changed}


def verdict(**changed: Any) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "members": 8,
        "start_up": {"without_torchrun_s": 0.6, "parent_mb": 31.0},
        "slow": {
            "median_named": 12.0,
            "median_seconds": 75.0,
            "runs": [run()],
        },
        "hang": {"median_seconds": 44.0, "runs": [run(blamed=[3])]},
    }
    return {**figures, **changed}


def missed(figures: dict[str, Any]) -> int:
    return sum(not bar.holds for bar in verdict_bars(figures))


def test_a_quick_true_verdict_holds_every_bar() -> None:
    assert missed(verdict()) == 0


def test_time_truth_start_up_and_memory_have_bars_of_their_own() -> None:
    runs = [run()]
    assert missed(verdict(slow={"median_named": 60.0, "median_seconds": 75.0, "runs": runs})) == 1
    assert missed(verdict(slow={"median_named": 12.0, "median_seconds": 120.0, "runs": runs})) == 1
    assert missed(verdict(hang={"median_seconds": 120.0, "runs": runs})) == 1
    for wrong in (run(blamed=[3, 4]), run(named=[]), run(named=[3, 4])):
        assert missed(verdict(hang={"median_seconds": 44.0, "runs": [wrong]})) == 1
    assert missed(verdict(start_up={"without_torchrun_s": 1.2, "parent_mb": 31.0})) == 1
    assert missed(verdict(start_up={"without_torchrun_s": 0.6, "parent_mb": 61.0})) == 1


def test_a_fault_that_was_told_wrongly_once_misses_its_bar() -> None:
    one = {"says": "it is told", "members": 3, "runs": 20, "true": 20}
    assert all(bar.holds for bar in reals_bars({"slow-node": one}))
    assert not all(bar.holds for bar in reals_bars({"slow-node": {**one, "true": 19}}))


def clean(**changed: Any) -> dict[str, Any]:
    return {"real": {"fatal_events": 0, "outcomes": {"passed OK": 3}, **changed}}


def test_clean_gangs_hold_where_nobody_is_blamed_and_all_could_judge() -> None:
    assert all(bar.holds for bar in clean_bars(clean()))
    assert not all(bar.holds for bar in clean_bars(clean(fatal_events=1)))
    assert not all(
        bar.holds for bar in clean_bars(clean(outcomes={"inconclusive INTERNAL_ERROR": 1}))
    )


def scale(**changed: Any) -> dict[str, Any]:
    leader = {"lost": 0, "memory_mb": 64.0, **changed}
    crowd = {
        "ended": changed.get("ended", {"LOW_BANDWIDTH": 4096}),
        "blamed": changed.get("blamed", []),
        "named": changed.get("named", [1365]),
    }
    return {"members": 4096, "sick": 1365, "leader": leader, "crowd": crowd}


def test_thousands_of_members_hold_where_none_is_lost_all_end_alike_and_the_culprit_alone_is_named() -> (
    None
):
    assert all(bar.holds for bar in scale_bars(scale()))
    for changed in (
        {"lost": 1},
        {"memory_mb": 151.0},
        {"ended": {"LOW_BANDWIDTH": 4095, "LEADER_LOST": 1}},
        {"blamed": [1]},
        {"named": []},
    ):
        assert sum(not bar.holds for bar in scale_bars(scale(**changed))) == 1


@pytest.mark.parametrize("bench", [CLEAN, REALS, VERDICT, SCALE])
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
