from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_proto.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("300s", 300),
        ("10m", 600),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("-1m", -60),
        ("+2s", 2),
        ("0", 0),
        (".5s", 0.5),
        ("1.s", 1),
        ("7us", 7e-6),
    ],
)
def test_reads_what_go_reads(text: str, seconds: float) -> None:
    assert math.isclose(parse_duration(text), seconds)


@pytest.mark.parametrize(
    "text", ["", "-", "5", "5x", "fast", "1h 30m", "s", ".s", "1e3s", "５s", "1.2.3s"]
)
def test_refuses_in_one_sentence_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"write e\.g\. 300s"):
        parse_duration(text)


@given(st.integers(-(10**15), 10**15))
def test_what_is_formatted_reads_back_exactly(millis: int) -> None:
    assert parse_duration(format_duration(millis / 1000)) == millis / 1000


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert math.isfinite(parse_duration(text))
    except ValueError as error:
        assert "\n" not in str(error).replace(text, "")


@pytest.mark.parametrize(
    ("seconds", "text"), [(90, "1m30s"), (0.5, "500ms"), (0, "0s"), (3600, "1h"), (1.25, "1.25s")]
)
def test_formats_shortly(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
