"""What every command of the program has in common."""

from __future__ import annotations

from importlib.metadata import version

from preflight_kube.cli.commands import EXIT_CODES
from preflight_webhook.metrics import Metrics
from said import said


def test_it_says_its_version_and_what_its_exit_statuses_mean() -> None:
    assert said("--version") == (0, f"preflight-webhook {version('preflight-webhook')}\n", "")
    assert EXIT_CODES in said("--help").out


def test_the_metrics_say_which_version_runs() -> None:
    labels = {"program": "preflight-webhook", "version": version("preflight-webhook")}
    assert Metrics().registry.get_sample_value("preflight_build_info", labels) == 1.0
