from __future__ import annotations

import sys

import pytest
import yaml
from hypothesis import find, given
from preflight_testing.documents import ended, mutants

TEXT = "kind: Pod\nspec: {containers: [{name: a}]}\n---\nkind: Node\n"


@given(mutants(TEXT))
def test_what_is_made_of_documents_is_documents(made: str) -> None:
    list(yaml.safe_load_all(made))


@pytest.mark.parametrize("wanted", ["name: null", "- name: a\n  - name: a", "kind: Pod\nspec: Pod"])
def test_values_are_replaced_doubled_and_moved(wanted: str) -> None:
    assert wanted in find(mutants(TEXT), lambda made: wanted in made)


def test_a_document_may_be_left_out() -> None:
    assert find(mutants(TEXT), lambda made: len(list(yaml.safe_load_all(made))) == 1)


def test_a_command_line_ends_with_its_status_and_what_it_wrote() -> None:
    def main() -> None:
        print(sys.argv[1:], sys.stdin.read())
        print("\x1b[31mred", file=sys.stderr)
        sys.exit(2)

    found = ended(main, "a", "b", stdin="given")
    assert found == (2, "['a', 'b'] given\n", "\x1b[31mred\n")
    assert not found.harmless
    assert ended(lambda: None) == (0, "", "")
