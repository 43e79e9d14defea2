"""YAML that people wrote: what is read, and what is refused, with its line."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from preflight_kube.files.yaml_document import Bounds, DocumentError, read, read_all


def problems(text: str, bounds: Bounds | None = None) -> list[str]:
    with pytest.raises(DocumentError) as raised:
        read_all(text, *([bounds] if bounds else []))
    return raised.value.problems


def test_a_document_is_what_json_has() -> None:
    text = 'a: [1, 2.5, true, null, "x"]\nb: {c: "1"}\n'
    assert read(text) == {"a": [1, 2.5, True, None, "x"], "b": {"c": "1"}}


def test_json_is_read_as_well() -> None:
    assert read('{"a": {"b": [1]}}') == {"a": {"b": [1]}}


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n", "---\n---\n"])
def test_an_empty_text_is_none(text: str) -> None:
    assert read(text) is None


def test_several_documents_are_read_in_order_without_the_empty_ones() -> None:
    assert read_all("a: 1\n---\n---\nb: 2\n...\n---\n# nothing\n") == [{"a": 1}, {"b": 2}]


def test_several_documents_where_one_is_expected_are_refused() -> None:
    with pytest.raises(DocumentError, match="has 2 documents, expected one; split it"):
        read("a: 1\n---\nb: 2\n")


def test_a_key_that_is_there_twice_is_refused_by_both_lines() -> None:
    assert problems("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n") == [
        "line 5, column 1: the key a is in line 1 already; keep one of the two.",
        "line 4, column 3: the key c is in line 3 already; keep one of the two.",
    ]


def test_problems_of_all_documents_are_listed() -> None:
    found = problems("a: 1\na: 2\n---\nb: 2020-01-01\n")
    assert [problem.split(":")[0] for problem in found] == ["line 2, column 1", "line 4, column 4"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "when: 2020-01-01\n",
            "a value of the kind timestamp is not allowed; write it as a string, in quotes.",
        ),
        ("x: !!set {a, b}\n", "a value of the kind set is not allowed"),
        ("x: !!python/object:os.system y\n", "is not allowed"),
        ("1: x\n", "the key is not a string; write it in quotes."),
        ("[a]: x\n", "the key is not a string"),
        ("<<: {a: 1}\n", "maps are not merged here (<<)"),
        ("x: &a [*a]\n", "contains itself by an alias"),
        ("x: .nan\n", 'x: "nan" is not a finite number'),
        ("x: .inf\n", 'x: "inf" is not a finite number'),
        (f"x: {'9' * 500}\n", "a number of 500 digits is too large"),
        (f"x: {2**63}\n", "x: the number is too large"),
        ("x: [1, {y: 18446744073709551616}]\n", "x[1].y: the number is too large"),
        ('x: "\\u0007"\n', "x: has the character U+0007; remove it."),
        ('"\\u0007": x\n', "a key in it has the character U+0007"),
        ("x: \x07\n", "line 1: has the character U+0007, which YAML does not allow"),
        ("a: b: c\n", "line 1, column 5: not YAML ("),
        ("a: [\n", "not YAML"),
        ("x: 1:99999999999999999999:1\n", ""),
        ("x: 0b\n", ""),
    ],
)
def test_what_no_reader_can_mean_is_refused_in_one_sentence(text: str, said: str) -> None:
    if not said:
        assert read(text) is not None
        return
    [problem] = problems(text)
    assert said in problem
    assert problem.endswith(".")
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("text", "bounds", "said"),
    [
        ("a: [[1]]", Bounds(depth=3), "is nested deeper than 3 levels; make it flatter."),
        ("[" * 1000, Bounds(), "is nested deeper than 64 levels; make it flatter."),
        ("a: " + "[" * 100, Bounds(characters=50), "has 103 characters, more than 50; make it smaller."),
        ("---\n".join(["[1, 2]\n"] * 9), Bounds(values=14), "holds more than 14 values; make it smaller."),
    ],
)  # fmt: skip
def test_a_text_beyond_a_bound_is_one_problem(text: str, bounds: Bounds, said: str) -> None:
    assert problems(text, bounds) == [f"the file: {said}"]


def test_a_text_within_its_bounds_is_read() -> None:
    assert read("a: [1]", Bounds(depth=3)) == {"a": [1]}
    assert len(read_all("---\n".join(["[1, 2]\n"] * 5), Bounds(values=15))) == 5


def test_aliases_count_for_what_they_stand_for() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    text = "\n".join(lines)
    assert problems(text) == [
        f"the file: holds more than {1000 + 10 * len(text)} values; make it smaller."
    ]
    assert problems(text + "#" * 5000) == [
        "the file: holds more than 20000 values; make it smaller."
    ]


def test_an_alias_stands_for_what_it_names() -> None:
    assert read("a: &one [1]\nb: *one\n") == {"a": [1], "b": [1]}


def test_no_more_problems_are_listed_than_asked_for() -> None:
    assert len(problems("[" + "2020-01-01, " * 500 + "]", Bounds(problems=7))) == 7


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(min_codepoint=32, max_codepoint=126)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(min_codepoint=97, max_codepoint=122)), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_what_is_written_as_yaml_is_read_as_it_was(value: Any) -> None:
    assert read(yaml.safe_dump(value)) == value


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_in_sentences(text: str) -> None:
    try:
        read_all(text)
    except DocumentError as error:
        assert error.problems
        assert all(problem.endswith(".") and "\n" not in problem for problem in error.problems)


def test_as_kubernetes_reads_it_a_date_is_a_string_and_maps_are_merged() -> None:
    text = "a: &a {x: 1, y: 1}\nb: {<<: *a, y: 2020-01-01}\n"
    assert read(text, Bounds(kubernetes=True)) == {
        "a": {"x": 1, "y": 1},
        "b": {"x": 1, "y": "2020-01-01"},
    }


def test_merged_maps_count_each_time() -> None:
    lines = ["a: &a {k: v}"]
    for below, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} {{<<: [{', '.join([f'*{below}'] * 10)}]}}")
    text = "\n".join(lines)
    assert problems(text, Bounds(kubernetes=True)) == [
        f"the file: holds more than {1000 + 10 * len(text)} values; make it smaller."
    ]
