"""What this check publishes of its variables is what it takes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from check_nccl_allreduce.check import CHECK
from hypothesis import example, given
from hypothesis import strategies as st
from preflight_proto import settings
from preflight_proto.check.runner import _classes, _defaults, described
from preflight_proto.check.settings import SettingsError, read

VARIABLES = sorted(settings.schema(CHECK.name)["properties"])
FURTHER = {"POD_IP"}
"""Where the check also looks at what the value means."""
VALUES = st.one_of(
    st.text(max_size=12),
    st.text(alphabet="0123456789.-+eEnaif", max_size=8),
    st.from_regex(r"[0-9]{1,5}(ms|s|m|h|K|Mi|G|GiB|g)?", fullmatch=True),
    st.from_regex(r"[a-zA-Z0-9._=/, :\[\]-]{1,24}", fullmatch=True),
)


def test_the_published_schema_is_what_the_program_prints() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "check_nccl_allreduce", "--schema"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout == described(CHECK)
    assert json.loads(printed.stdout) == settings.schema(CHECK.name), "run nox -s codegen"


def refused_by_the_check(name: str, value: str) -> list[str]:
    problems: list[str] = []
    for cls in _classes(CHECK):
        try:
            read(cls, {name: value}, _defaults(CHECK))
        except SettingsError as error:
            problems += [one for one in error.problems if one.startswith(f"{name}:")]
    return problems


@given(name=st.sampled_from(VARIABLES), value=VALUES)
@example(name="GATE", value="obsrve")
@example(name="POD_UID", value="\x1b")
@example(name="CHECK_TIMEOUT", value="300")
@example(name="EXPECTED_GPUS", value="9007199254740993")
def test_the_schema_refuses_what_the_check_refuses_in_the_same_words(name: str, value: str) -> None:
    if not value.strip() or "$(" in value:
        return
    said = settings.problems(CHECK.name, {name: value})
    by_the_check = refused_by_the_check(name, value)
    assert set(said) <= set(by_the_check)
    assert name in FURTHER or said == by_the_check


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_of_the_check_is_known_and_an_empty_one_is_not_set(name: str) -> None:
    assert settings.problems(CHECK.name, {name: ""}) == []
    assert settings.problems(CHECK.name, {f"{name}X": ""}) == [
        f"{name}X: {CHECK.name} reads no such variable; did you mean {name}?"
    ]
