"""Facts of each of our checks, whatever it tests: a version, a start without what it needs later,
and a schema of its variables that takes what the check takes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from preflight_proto import settings
from preflight_proto.check import Check
from preflight_proto.check.runner import _classes, _defaults, described
from preflight_proto.check.settings import SettingsError, read

PACKAGES = ("check_dcgm", "check_nccl_loopback", "check_nccl_allreduce")
CHECKS: dict[str, Check[Any]] = {name: import_module(f"{name}.check").CHECK for name in PACKAGES}
SETTINGS = {
    (check.name, variable): check
    for check in CHECKS.values()
    for variable in sorted(settings.schema(check.name)["properties"])
}
"""By check and variable."""
FURTHER = {"DCGM_OPTIONAL_TESTS", "DCGM_ERRORS_FILE", "POD_IP"}
"""Where a check also looks at what the value means."""
VALUES = st.one_of(
    st.text(max_size=12),
    st.text(alphabet="0123456789.-+eEnaif", max_size=8),
    st.from_regex(r"[0-9]{1,5}(ms|s|m|h|K|Mi|G|GiB|g)?", fullmatch=True),
    st.from_regex(r"[a-zA-Z0-9._=/, :\[\]-]{1,24}", fullmatch=True),
)


def said(package: str, argument: str) -> str:
    """The program's output, without any settings."""
    argv = [sys.executable, "-m", package, argument]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env={})
    assert done.stderr == ""
    return done.stdout


def loaded(*modules: str) -> set[str]:
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("package", PACKAGES)
def test_a_program_says_its_version_and_its_schema_without_any_settings(package: str) -> None:
    check = CHECKS[package]
    number = version(package.replace("_", "-"))
    assert said(package, "--version") == f"preflight-{check.name} {number}\n"
    schema = said(package, "--schema")
    assert schema == described(check)
    assert json.loads(schema) == settings.schema(check.name), "run nox -s codegen"


@pytest.mark.parametrize(
    ("package", "judges"),
    [
        ("check_dcgm", "alarms catalogue judge parse summary"),
        (
            "check_nccl_loopback",
            "floors judge links localize measurement parse perf steps verdicts",
        ),
    ],
)
def test_what_judges_is_loaded_while_the_tool_works(package: str, judges: str) -> None:
    late = {f"{package}.{name}" for name in judges.split()}
    at_start = loaded(f"{package}.__main__", f"{package}.check")
    assert not (late | {"argparse", "msgspec", "tomllib"}) & at_start
    assert late <= loaded(*CHECKS[package].later)


def refused_by_the_check(check: Check[Any], name: str, value: str) -> list[str]:
    problems: list[str] = []
    for cls in _classes(check):
        try:
            read(cls, {name: value}, _defaults(check))
        except SettingsError as error:
            problems += [one for one in error.problems if one.startswith(f"{name}:")]
    return list(dict.fromkeys(problems))


@given(which=st.sampled_from(sorted(SETTINGS)), value=VALUES)
@example(which=("dcgm-diag", "GATE"), value="obsrve")
@example(which=("nccl-allreduce", "GATE"), value="obsrve")
@example(which=("nccl-allreduce", "POD_UID"), value="\x1b")
@example(which=("nccl-allreduce", "CHECK_TIMEOUT"), value="300")
@example(which=("nccl-allreduce", "EXPECTED_GPUS"), value="9007199254740993")
@example(which=("nccl-loopback", "CHECK_TIMEOUT"), value="300")
@example(which=("dcgm-diag", "EXPECTED_GPUS"), value="9007199254740993")
@examples(max_examples=3 * examples().max_examples)
def test_the_schema_refuses_what_the_check_refuses_in_the_same_words(
    which: tuple[str, str], value: str
) -> None:
    name = which[1]
    if not value.strip() or "$(" in value:
        return
    by_the_schema = settings.problems(which[0], {name: value})
    by_the_check = refused_by_the_check(SETTINGS[which], name, value)
    assert set(by_the_schema) <= set(by_the_check)
    assert name in FURTHER or by_the_schema == by_the_check


@pytest.mark.parametrize(("check", "name"), SETTINGS, ids=["-".join(which) for which in SETTINGS])
def test_a_variable_of_the_check_is_known_and_an_empty_one_is_not_set(
    check: str, name: str
) -> None:
    assert settings.problems(check, {name: ""}) == []
    assert settings.problems(check, {f"{name}X": ""}) == [
        f"{name}X: {check} reads no such variable; did you mean {name}?"
    ]
