"""What the command line says to those who get it wrong."""

from __future__ import annotations

import json
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest
from preflight_gang.cli import main
from preflight_gang.config import OWN
from preflight_gang.metrics import Metrics
from preflight_testing.documents import ended

run = partial(ended, main)


def validated(file: Path) -> tuple[int, list[str], list[str]]:
    end = run("validate-config", str(file))
    return end.status, end.out.splitlines(), end.err.splitlines()


def test_each_problem_is_told_once_in_words_without_python_in_them(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "sources: [{name: a}]\nchecks: dcgm-diag\nchekcs: []\ngpuResourceNames: []\nwrites: 900\n"
    )
    status, out, err = validated(file)
    assert (status, out) == (2, [])
    assert err == [
        f"{file}: {problem}"
        for problem in (
            "chekcs: unknown key; write checks instead, or remove it.",
            'checks: must be a list, e.g. [dcgm-diag]; found the string "dcgm-diag".',
            "gpuResourceNames: must not be empty; found an empty list.",
            "sources[0].group: is missing; set it.",
            "sources[0].resource: is missing; set it.",
            "sources[0].kind: is missing; set it.",
            "sources[0].size: is missing; set it.",
            "writes: must be at most 256; found the number 900.",
        )
    ]


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("preflight-injector: {enabled: true}\npreflight-gang: {enabled: true, checks: [mine]}", "what is below preflight-gang is taken"),
        ("replicas: 2\ncrd: {install: false}\nchecks: [mine]", "Helm values of the chart preflight-gang"),
    ],
)  # fmt: skip
def test_helm_values_are_taken_and_said_to_be(tmp_path: Path, text: str, taken: str) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(text)
    status, out, err = validated(file)
    assert (status, err, taken in out[0]) == (0, [], True)
    assert out[0].startswith(f"{file}: no problem found; checks: mine; ")


def test_problems_of_helm_values_have_their_whole_path(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("preflight-gang: {writes: 900}")
    _, _, err = validated(file)
    assert err == [f"{file}: preflight-gang.writes: must be at most 256; found the number 900."]


def test_every_value_by_which_the_chart_is_deployed_is_known() -> None:
    schema = Path(__file__).parents[3] / "charts" / "schema"
    own = json.loads((schema / "preflight-gang.json").read_text())["properties"]
    common = json.loads((schema / "common.json").read_text())
    assert {*own, *common["shared"], *common["each"]} <= OWN


def test_no_check_at_all_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("checks: []")
    status, _, err = validated(file)
    assert (status, err) == (
        0,
        [
            f"{file}: warning: checks: is empty, so no result is counted; name those of the injector."
        ],
    )


def test_the_metrics_say_which_version_runs() -> None:
    labels = {"program": "preflight-gang", "version": version("preflight-gang")}
    assert Metrics().registry.get_sample_value("preflight_build_info", labels) == 1.0
