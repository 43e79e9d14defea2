"""Each test that docs/threat-model.md or e2e/attacks names exists."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "threat-model.md"
PROVED = tomllib.loads((ROOT / "e2e" / "attacks" / "proved.toml").read_text())["proved"]
NAMED = sorted(
    {
        *re.findall(r"`(test_[a-z0-9_]+)(?:\.py)?`", PAGE.read_text()),
        *(row["test"] for row in PROVED),
    }
)


def written() -> set[str]:
    """The names of all tests, and of all files of tests, of this checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*/test_*.py"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    files = [ROOT / path for path in listed.stdout.split("\0") if path]
    found = {path.stem for path in files}
    for path in files:
        found |= set(re.findall(r"^\s*(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE))
    return found


@pytest.mark.parametrize("test", NAMED)
def test_every_test_that_the_threat_model_names_exists(test: str) -> None:
    assert test in written()


def test_every_threat_names_a_test_and_a_mitigation() -> None:
    tables = [
        line
        for line in PAGE.read_text().splitlines()
        if line.startswith("| ") and line.count("|") == 4
    ]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in tables]
    threats = [
        row for row in rows if row[0] not in {"threat", "---"} and not set(row[0]) <= set("- ")
    ]
    assert len(threats) > 30
    assert [
        row[0] for row in threats if len(row) != 3 or "`test_" not in row[2] or not row[1]
    ] == []
