"""Each test and each place that docs/requirements/ names exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = "".join(path.read_text() for path in sorted((ROOT / "docs" / "requirements").glob("*.md")))
ROWS = {
    cells[0]: cells
    for line in PAGES.splitlines()
    if re.fullmatch(
        r"[A-Z]\d+", (cells := [cell.strip() for cell in line.strip("| ").split(" | ")])[0]
    )
}


def written() -> set[str]:
    """The names of all tests of this checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*/test_*.py"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    files = [ROOT / path for path in listed.stdout.split("\0") if path]
    return {
        name
        for path in files
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }


def test_no_two_requirements_have_one_id() -> None:
    ids = re.findall(r"^\| ([A-Z]\d+) \|", PAGES, re.MULTILINE)
    assert len(ids) == len(set(ids)) == len(ROWS)


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row[0])
def test_a_requirement_names_a_place_and_tests_that_exist(row: list[str]) -> None:
    assert len(row) == 4
    places, tests = (re.findall(r"`([^`]+)`", cell) for cell in row[2:])
    assert places
    assert tests
    assert [place for place in places if not (ROOT / place).exists()] == []
    assert sorted(set(tests) - written()) == []
