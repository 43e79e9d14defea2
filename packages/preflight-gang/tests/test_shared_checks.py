"""Helm values of the umbrella: checks that are written once for all parts."""

from __future__ import annotations

import pytest
from preflight_gang.config import parse_values

SHARED = "global: {preflight: {checks: [{name: dcgm-diag, image: d}, {name: ours, image: o}]}}\n"


@pytest.mark.parametrize(
    ("own", "counted"),
    [
        ("{enabled: true}", ("dcgm-diag", "ours")),
        ("{enabled: true, checks: null}", ("dcgm-diag", "ours")),
        ("{enabled: true, checks: [own]}", ("own",)),
    ],
)
def test_the_shared_checks_are_counted_by_a_controller_that_has_no_list_of_its_own(
    own: str, counted: tuple[str, ...]
) -> None:
    config, _ = parse_values(f"{SHARED}preflight-gang: {own}")
    assert config.checks == counted
