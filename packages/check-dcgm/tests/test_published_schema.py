"""The generated documents of DCGM 4 against the JSON schema of DCGM's own tests: a second word on
what dcgmi prints.

The schema is DCGM's, so it is not kept here: PREFLIGHT_DCGM_SOURCE names a clone of its repository,
of which the commit that the image's client is compiled from is read.
"""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from engines import TESTS, VERSIONS, Fault, Skip, document, runtime_error
from jsonschema import Draft202012Validator  # type: ignore[import-untyped] # its stubs are a package more

CLONE = os.environ.get("PREFLIGHT_DCGM_SOURCE")
MEMBER = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
COMMIT = MEMBER["tool"]["preflight"]["image"]["sources"]["dcgm-4"]["commit"]
FOUR = [version for version in VERSIONS if version.startswith("4.")]
pytestmark = pytest.mark.skipif(
    CLONE is None, reason="PREFLIGHT_DCGM_SOURCE does not name a clone of DCGM's repository"
)


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    show = ["git", "-C", str(CLONE), "show", f"{COMMIT}:testing/python3/dcgm_diag_schema.json"]
    document: dict[str, Any] = json.loads(
        subprocess.run(show, capture_output=True, text=True, check=True).stdout
    )
    # Its "$schema" names no draft.
    return Draft202012Validator({key: value for key, value in document.items() if key != "$schema"})


@pytest.mark.parametrize("version", FOUR)
@pytest.mark.parametrize("level", TESTS)
def test_a_document_with_faults_skips_and_serial_numbers_is_one_of_dcgms(
    version: str, level: int, schema: Draft202012Validator
) -> None:
    faults = [Fault(test, gpu, 52, 2, 10) for test in TESTS[level] for gpu in (0, None)]
    skips = [Skip(TESTS[level][-1], 1)]
    for told in (
        document(version, level, [0, 1]),
        document(version, level, [0, 1], faults, skips, {0: "1", 1: "2"}),
    ):
        assert [error.message for error in schema.iter_errors(json.loads(told[0]))] == []


@pytest.mark.parametrize("version", FOUR)
def test_what_is_printed_where_no_diagnostic_could_run_is_one_of_dcgms(
    version: str, schema: Draft202012Validator
) -> None:
    assert schema.is_valid(json.loads(runtime_error(version, "words")))


def test_the_schema_tells_a_document_of_dcgm_3_from_one_of_4(schema: Draft202012Validator) -> None:
    assert not schema.is_valid(json.loads(document("3.3.9", 2, [0])[0]))
