"""What every command of the program has in common."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
from preflight_kube.cli.commands import EXIT_CODES
from preflight_webhook.metrics import Metrics
from said import said


def test_it_says_its_version_and_what_its_exit_statuses_mean() -> None:
    assert said("--version") == (0, f"preflight-webhook {version('preflight-webhook')}\n", "")
    assert EXIT_CODES in said("--help").out


def test_the_metrics_say_which_version_runs() -> None:
    labels = {"program": "preflight-webhook", "version": version("preflight-webhook")}
    assert Metrics().registry.get_sample_value("preflight_build_info", labels) == 1.0


@pytest.mark.parametrize("command", [["schema"], ["--help"], ["explain", "--help"]])
def test_a_reader_that_goes_away_leaves_no_traceback(command: list[str]) -> None:
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as reader:
        assert reader.stdin is not None
        reader.wait()
        done = subprocess.run(
            [sys.executable, "-m", "preflight_webhook", *command],
            stdout=reader.stdin.fileno(),
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode in {0, 141}, done.stderr) == (
        True,
        "",
    )  # argparse itself takes no notice of a help that nobody reads
