"""Helm values of the umbrella: checks that are written once for all parts, and what the chart keeps
for itself.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from preflight_webhook.report.release import OWN, parse

SHARED = "global: {preflight: {checks: [{name: shared, image: s}]}}\n"
HELPERS = (
    Path(__file__).resolve().parents[3]
    / "charts/preflight/charts/preflight-injector/templates/_helpers.tpl"
)


@pytest.mark.parametrize(
    ("own", "taken"),
    [
        ("{enabled: true}", ["shared"]),
        ("{enabled: true, checks: null}", ["shared"]),
        ("{enabled: true, checks: [{name: own, image: o}]}", ["own"]),
        ("{enabled: true, checks: []}", []),
    ],
)
def test_the_shared_checks_are_those_of_an_injector_that_has_none_of_its_own(
    own: str, taken: list[str]
) -> None:
    assert [
        check.name for check in parse(f"{SHARED}preflight-injector: {own}").config.checks
    ] == taken


def test_what_the_chart_keeps_for_itself_is_no_part_of_the_configuration() -> None:
    [left_out] = re.findall(r"omit \.Values((?:\s+\"[\w-]+\")+)", HELPERS.read_text())
    assert {*re.findall(r"[\w-]+", left_out)} == OWN
