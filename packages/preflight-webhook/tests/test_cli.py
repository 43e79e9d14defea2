"""What every command of the program has in common, and what a scrape brings."""

from __future__ import annotations

from importlib.metadata import version

from preflight_kube.cli.commands import EXIT_CODES
from preflight_webhook.metrics import Metrics
from prometheus_client import generate_latest
from said import said


def test_it_says_its_version_and_what_its_exit_statuses_mean() -> None:
    assert said("--version") == (0, f"preflight-webhook {version('preflight-webhook')}\n", "")
    assert EXIT_CODES in said("--help").out


def test_the_metrics_say_which_version_runs() -> None:
    labels = {"program": "preflight-webhook", "version": version("preflight-webhook")}
    assert Metrics().registry.get_sample_value("preflight_build_info", labels) == 1.0


def test_no_metric_has_a_second_series_of_when_it_was_made() -> None:
    shown = generate_latest(Metrics().registry).decode()
    assert "preflight_injection" in shown
    assert "_created" not in shown
