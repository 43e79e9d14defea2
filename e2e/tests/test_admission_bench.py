"""What the bench reads of a histogram, and the pods that it creates."""

from __future__ import annotations

import math

import pytest
from preflight_e2e.bench.admission import histogram, pod, quantile

INF = float("inf")


def test_a_histogram_is_read_over_all_labels_and_nothing_else_is() -> None:
    text = "\n".join(
        [
            "# TYPE calls histogram",
            'calls_bucket{name="a",le="0.5"} 1',
            'calls_bucket{name="a",le="+Inf"} 3',
            'calls_bucket{name="b",le="0.5"} 2',
            'calls_bucket{name="b",le="+Inf"} 2',
            'calls_sum{name="a"} 7.5',
            'other_bucket{le="0.5"} 9',
        ]
    )
    assert histogram(text, "calls") == {0.5: 3, INF: 5}


@pytest.mark.parametrize(
    ("share", "value"),
    [(0.25, 0.005), (0.5, 0.01), (0.75, 0.015), (0.99, 0.02)],
    ids=["within the first", "at a bound", "within the second", "above all finite bounds"],
)
def test_a_quantile_is_linear_within_its_bucket(share: float, value: float) -> None:
    cumulated = (
        {0.01: 50.0, 0.02: 100.0, INF: 100.0}
        if share < 0.9
        else {0.01: 50.0, 0.02: 90.0, INF: 100.0}
    )
    assert quantile(share, cumulated) == pytest.approx(value)


def test_without_observations_there_is_no_quantile() -> None:
    assert math.isnan(quantile(0.99, {0.01: 0.0, INF: 0.0}))


def test_a_pod_has_gpus_by_number_or_by_claim_and_never_both() -> None:
    numbered, claimed = (pod("p", template=template)["spec"] for template in ("", "eight"))
    assert numbered["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert "resourceClaims" not in numbered
    assert {"cpu", "memory"} == set(claimed["containers"][0]["resources"]["limits"])
    assert claimed["resourceClaims"] == [{"name": "devices", "resourceClaimTemplateName": "eight"}]
