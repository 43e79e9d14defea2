"""What others wrote, as it leaves a check."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_proto.printable import printable

ANY = st.text(st.characters(exclude_categories=()))  # lone surrogates too


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\x1b[31mred\x1b[0m and \x1b[1;4mbold\x1b[m", "red and bold"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jcleared", "cleared"),
        ("an \x1b that starts nothing", "an \\x1b that starts nothing"),
        ("an OSC \x1b]0; without an end", "an OSC \\x1b]0; without an end"),
        ("a\x00b\x07c\x7f", "a\\x00b\\x07c\\x7f"),
        ("GPU-\u202e1\u2066\u200b", "GPU-\\u202e1\\u2066\\u200b"),
        ("one\u2028two\u2029three\x85four\r\nfive\tsix", "one two three four five six"),
        ("lone \ud800", "lone \\ud800"),
        ("tag \U000e0041", "tag \\U000e0041"),
        ("48 °C, 3 µs, Größe, 測試", "48 °C, 3 µs, Größe, 測試"),
    ],
)
def test_each_kind_of_character_has_its_place(text: str, line: str) -> None:
    assert printable(text) == line


@given(ANY)
def test_a_line_changes_no_terminal_and_no_reading_order(text: str) -> None:
    line = printable(text)
    assert all(
        unicodedata.category(c)[0] != "C" and unicodedata.category(c) not in {"Zl", "Zp"}
        for c in line
    )
    assert len(line.splitlines()) <= 1
    line.encode()


@given(ANY)
def test_what_is_printable_stays_as_it_is(text: str) -> None:
    assert printable(printable(text)) == printable(text)


@given(ANY, st.integers(1, 50))
def test_a_limit_is_kept(text: str, most: int) -> None:
    assert len(printable(text, most)) <= most


@pytest.mark.parametrize("piece", ["\x1b]", "\x1b[", "\x1b[0", "\x9b", "\x1b\x1b]0;", "\x90"])
@pytest.mark.timeout(10)
def test_many_unfinished_sequences_take_no_minutes(piece: str) -> None:
    printable(piece * (200_000 // len(piece)))
