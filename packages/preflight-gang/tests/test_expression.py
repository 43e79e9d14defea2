"""Size expressions: what they say of objects, what is refused, and that no object makes them
costly.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_gang.api.expression import MAX_LENGTH, ExpressionError, NoNumber, parse

TEAM: dict[str, Any] = {
    "metadata": {"labels": {"example.com/size": "6"}, "annotations": {}},
    "spec": {
        "minMember": 8,
        "replicas": 2,
        "nodes-each": 4,
        "text": "many",
        "yes": True,
        "roles": [{"replicas": 3, "hosts": [{"n": 1}, {"n": 2}]}, {"replicas": 4, "hosts": []}],
        "none": [],
    },
    "status": {"size": 5},
}


@pytest.mark.parametrize(
    ("expression", "size"),
    [
        ("spec.minMember", 8),
        ("12", 12),
        ("status.size", 5),
        ("spec.roles[].replicas", 7),
        ("spec.roles[].hosts[].n", 3),
        ("spec.none[].replicas", 0),
        ("1 + spec.replicas * spec.nodes-each", 9),
        ("spec['replicas']*2+1", 5),
        ("metadata.labels['example.com/size']", 6),
    ],
)
def test_an_expression_says_the_size(expression: str, size: int) -> None:
    assert parse(expression).value(TEAM) == size


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("spec.size", "it has no spec.size"),
        ("spec.minMember.more", "it has no spec.minMember.more"),
        ("spec.minMember[]", "meets no list"),
        ("spec.roles.replicas", "it has no spec.roles.replicas"),
        ("spec.text", "is not a whole number"),
        ("spec.yes", "is not a whole number"),
        ("spec.roles", "is not a whole number"),
        ("999999 * spec.minMember", "is more than the 100000"),
    ],
)
def test_an_object_that_does_not_say_the_size_is_told_why(expression: str, why: str) -> None:
    with pytest.raises(NoNumber, match=why):
        parse(expression).value(TEAM)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "spec.",
        ".spec",
        "spec..size",
        "[].size",
        "size",
        "spec-x",
        "metadata.name",
        "spec.a - 1",
        "spec.a +",
        "f(x)",
        "-1",
    ],
)
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(ExpressionError):
        parse(expression)


def test_an_expression_that_is_too_long_or_too_deep_is_refused() -> None:
    with pytest.raises(ExpressionError, match="characters long"):
        parse("spec." + "a" * MAX_LENGTH)
    with pytest.raises(ExpressionError, match="17 steps"):
        parse("spec" + ".a" * 16)


def test_a_costly_object_is_given_up() -> None:
    wide = {"spec": {"l": [{"l": [{"n": 1}] * 1000}] * 1000}}
    with pytest.raises(NoNumber, match="more than 10000 values"):
        parse("spec.l[].l[].n + spec.l[].l[].n").value(wide)


@given(st.text(max_size=40))
def test_any_text_is_an_expression_or_is_refused_in_words(text: str) -> None:
    try:
        expression = parse(text)
    except ExpressionError as error:
        assert str(error)
        return
    try:
        assert expression.value(TEAM) >= 0
    except NoNumber as error:
        assert str(error)
