"""The benches of real gangs hold figures against their bars."""

from __future__ import annotations

from typing import Any

from preflight_e2e.bench.fabric import clean_bars, verdict_bars


def verdict(**changed: Any) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "members": 8,
        "start_up": {"without_torchrun_s": 0.6, "parent_mb": 31.0},
        "slow": {"median_seconds": 25.0, "runs": [{"blamed": [3], "parent_mb": 33.0}]},
        "hang": {"median_seconds": 44.0, "runs": [{"blamed": [3], "parent_mb": 33.0}]},
    }
    return {**figures, **changed}


def missed(figures: dict[str, Any]) -> int:
    return sum(not bar.holds for bar in verdict_bars(figures))


def test_a_quick_true_verdict_holds_every_bar() -> None:
    assert missed(verdict()) == 0


def test_time_truth_start_up_and_memory_have_bars_of_their_own() -> None:
    assert missed(verdict(slow={"median_seconds": 60.0, "runs": [{"blamed": [3], "parent_mb": 33.0}]})) == 1
    assert missed(verdict(hang={"median_seconds": 44.0, "runs": [{"blamed": [3, 4], "parent_mb": 33.0}]})) == 1
    assert missed(verdict(start_up={"without_torchrun_s": 1.2, "parent_mb": 31.0})) == 1
    assert missed(verdict(start_up={"without_torchrun_s": 0.6, "parent_mb": 61.0})) == 1


def clean(**changed: Any) -> dict[str, Any]:
    return {"real": {"fatal_events": 0, "outcomes": {"passed OK": 3}, **changed}}


def test_clean_gangs_hold_where_nobody_is_blamed_and_all_could_judge() -> None:
    assert all(bar.holds for bar in clean_bars(clean()))
    assert not all(bar.holds for bar in clean_bars(clean(fatal_events=1)))
    assert not all(bar.holds for bar in clean_bars(clean(outcomes={"inconclusive INTERNAL_ERROR": 1})))
