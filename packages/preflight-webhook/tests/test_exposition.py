"""What a scrape of the webhook brings."""

from __future__ import annotations

from preflight_webhook.metrics import Metrics
from prometheus_client import generate_latest


def test_no_metric_has_a_second_series_of_when_it_was_made() -> None:
    shown = generate_latest(Metrics().registry).decode()
    assert "preflight_injection" in shown
    assert "_created" not in shown
