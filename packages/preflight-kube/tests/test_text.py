"""Texts of tenants, kept."""

from __future__ import annotations

import pytest
from preflight_kube.text import shared


def new(text: str) -> str:
    """An object of its own that says ``text``."""
    return "".join(list(text))


def test_texts_that_say_the_same_are_one_object() -> None:
    assert shared(new("Running")) is shared(new("Running"))


@pytest.mark.parametrize("text", ["x" * 257, "the first of many"])
def test_a_long_text_and_one_that_thousands_came_after_are_not_kept(text: str) -> None:
    first = shared(new(text))
    for number in range(10_000):
        shared(f"pod-{number}")
    again = new(text)
    assert shared(again) is again is not first
