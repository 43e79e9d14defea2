"""What the bench of ComputeDomains holds its figures against, and how it counts requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from preflight_e2e.bench.compute_domain import bars
from preflight_e2e.bench.compute_domain_plugin import requests_of

FIGURES: dict[str, Any] = {
    "prepare_p50_ms": 12.0,
    "prepare_p99_ms": 40.0,
    "prepare_again_p50_ms": 1.5,
    "unprepare_p50_ms": 5.0,
    "thousand_ready_s": 12.0,
    "thousand_gone_s": 12.0,
    "slice_back_s": 0.1,
    "requests_per_object": {"created": 3.0, "deleted": 4.0},
    "rss_mb": {"controller": 80.0, "plugin": 55.0},
    "idle_requests": {"watch": 2},
}


def test_every_figure_has_its_bar_and_a_cluster_s_only_where_it_was_measured() -> None:
    assert all(bar.holds for bar in bars(FIGURES))
    assert len(bars({**FIGURES, "start_overhead_median_ms": 90.0})) == len(bars(FIGURES)) + 1


@pytest.mark.parametrize(
    "missed",
    [
        {"prepare_p50_ms": 20.0},
        {"start_overhead_median_ms": 150.0},
        {"requests_per_object": {"created": 3.0, "deleted": 4.1}},
        {"rss_mb": {"controller": 80.0, "plugin": 60.0}},
        {"idle_requests": {"watch": 2, "get": 1}},
    ],
    ids=lambda missed: next(iter(missed)),
)
def test_a_figure_beyond_its_bar_is_one_that_is_missed(missed: dict[str, Any]) -> None:
    assert [bar.holds for bar in bars({**FIGURES, **missed})].count(False) == 1


def test_requests_are_counted_by_who_sends_them(tmp_path: Path) -> None:
    sent = [
        {"userAgent": "plugin/1", "verb": "get"},
        {"userAgent": "other", "verb": "get", "requestURI": "/plugin"},
    ]
    (tmp_path / "audit.log").write_text("".join(json.dumps(one) + "\n" for one in sent))
    assert requests_of(tmp_path / "audit.log", "plugin") == sent[:1]
