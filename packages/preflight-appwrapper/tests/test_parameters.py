"""Parameters: where each value is from, what is clipped, and what is malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_appwrapper.api.names import PREFIX
from preflight_appwrapper.api.rules import WrapperRules, seconds
from preflight_appwrapper.core.parameters import FAULT_TOLERANCE, parameters

H = 3600.0
FIELDS = {
    "AdmissionGracePeriod": "admission",
    "WarmupGracePeriod": "warmup",
    "FailureGracePeriod": "failure",
    "RetryPausePeriod": "retry_pause",
    "RetryLimit": "retry_limit",
    "DeletionOnFailureGracePeriod": "deletion_on_failure",
    "ForcefulDeletionGracePeriod": "forceful_deletion",
    "SuccessTTL": "success_ttl",
    "PreflightAllowance": "preflight_allowance",
}


def of(rules: WrapperRules | None = None, **annotations: str) -> dict[str, tuple[float, str]]:
    found = parameters(
        {PREFIX + key: value for key, value in annotations.items()}, rules or WrapperRules()
    )
    return {one.name: (getattr(found, FIELDS[one.name]), one.source) for one in found.listed}


def test_the_defaults_are_those_of_the_requirement() -> None:
    assert of() == {
        "AdmissionGracePeriod": (60, "default"),
        "WarmupGracePeriod": (300, "default"),
        "FailureGracePeriod": (60, "default"),
        "RetryPausePeriod": (90, "default"),
        "RetryLimit": (3, "default"),
        "DeletionOnFailureGracePeriod": (0, "default"),
        "ForcefulDeletionGracePeriod": (600, "default"),
        "SuccessTTL": (168 * H, "default"),
        "PreflightAllowance": (1200, "default"),
    }


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1h30m", (5400, "annotation")),
        ("300ms", (0.3, "annotation")),
        (".5s", (0.5, "annotation")),
        ("1.5h", (5400, "annotation")),
        ("0", (0, "annotation")),
        ("-10m", (0, "clipped")),
        ("48h", (24 * H, "clipped")),
        ("10", (300, "malformed")),
        ("7d", (300, "malformed")),
        ("1h 30m", (300, "malformed")),
        ("", (300, "malformed")),
        ("222badTime", (300, "malformed")),
        ("9999999h", (300, "malformed")),
        ("9" * 400 + "h", (300, "malformed")),
    ],
)
def test_a_period_is_a_go_duration_within_its_bounds(text: str, wanted: tuple[float, str]) -> None:
    assert of(warmupGracePeriodDuration=text)["WarmupGracePeriod"] == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("5", (5, "annotation")),
        ("+5", (5, "annotation")),
        ("-1", (-1, "annotation")),
        ("99999999999", (3, "malformed")),
        ("2147483648", (3, "malformed")),
        ("3.0", (3, "malformed")),
        (" 3", (3, "malformed")),
        ("٣", (3, "malformed")),
    ],
)
def test_a_retry_limit_is_a_whole_number_of_32_bits(text: str, wanted: tuple[float, str]) -> None:
    assert of(retryLimit=text)["RetryLimit"] == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("5s", (5, "annotation")),
        ("48h", (48 * H, "annotation")),  # the maximum of the other periods does not bound it
        ("0s", (168 * H, "ignored")),
        ("-5s", (168 * H, "ignored")),
        ("9999h", (168 * H, "ignored")),
        ("x", (168 * H, "malformed")),
    ],
)
def test_a_success_ttl_only_shortens_the_configured_one(
    text: str, wanted: tuple[float, str]
) -> None:
    assert of(successTTLDuration=text)["SuccessTTL"] == wanted


def test_the_operators_values_are_bounded_too_and_named_as_theirs() -> None:
    rules = WrapperRules(warmup=90_000, set_=frozenset({"warmup"}))
    assert of(rules)["WarmupGracePeriod"] == (24 * H, "operator")


@pytest.mark.parametrize(
    ("text", "codes", "skipped"),
    [
        ("3,10,abc,42", {3, 10, 42}, ["abc"]),
        ("3, 10", {3, 10}, []),
        ("x", set(), ["x"]),
        ("1,,2", {1, 2}, ['""']),
    ],
)
def test_exit_codes_are_whole_numbers_and_what_is_none_is_named(
    text: str, codes: set[int], skipped: list[str]
) -> None:
    found = parameters({PREFIX + "terminalExitCodes": text}, WrapperRules())
    assert found.exit_codes.terminal == codes
    assert all(one in found.problems[0][1] for one in skipped)
    assert bool(found.problems) == bool(skipped)


@pytest.mark.parametrize(
    ("terminal", "retryable", "code", "ends"),
    [
        ("3", "", 3, True),
        ("3", "", 4, False),
        (None, "10, 20", 10, False),
        (None, "10,20", 11, True),
        (None, None, 1, False),
    ],
)
def test_a_code_ends_the_retries_when_it_is_terminal_or_not_among_the_retryable(
    terminal: str | None, retryable: str | None, code: int, ends: bool
) -> None:
    said = {PREFIX + "terminalExitCodes": terminal, PREFIX + "retryableExitCodes": retryable}
    found = parameters(
        {key: value for key, value in said.items() if value is not None}, WrapperRules()
    )
    assert found.exit_codes.ends_retries(code) is ends


@given(st.dictionaries(st.sampled_from(sorted(FAULT_TOLERANCE)), st.text(max_size=400)))
def test_whatever_stands_in_the_annotations_the_parameters_are_within_bounds(
    annotations: dict[str, str],
) -> None:
    found = parameters(annotations, WrapperRules())
    for one in found.listed:
        value = getattr(found, FIELDS[one.name])
        if one.name == "RetryLimit":
            assert -(2**31) <= value < 2**31
        else:
            assert 0 <= value <= 168 * H
    malformed = [one.name for one in found.listed if one.source == "malformed"]
    assert len(malformed) <= len(found.problems) <= len(malformed) + 2
    assert all("\n" not in problem for _, problem in found.problems)


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_every_int64_of_nanoseconds_is_a_duration(nanoseconds: int) -> None:
    try:
        assert seconds(f"{nanoseconds}ns") == pytest.approx(nanoseconds / 1e9)
    except ValueError:
        assert nanoseconds > 2**63 - 1024  # where a float is rounded up to the bound
