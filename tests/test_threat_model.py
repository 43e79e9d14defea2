"""Each test and each place that the threat model, the attacks or the requirements name exists."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
THREATS = (ROOT / "docs" / "threat-model.md").read_text()
PAGES = "".join(path.read_text() for path in sorted((ROOT / "docs" / "requirements").glob("*.md")))


def rows(text: str) -> list[list[str]]:
    """The cells of all tables."""
    lines = (line for line in text.splitlines() if line.startswith("| "))
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


REQUIREMENTS = [row for row in rows(PAGES) if re.fullmatch(r"[A-Z]\d+", row[0])]


def written() -> set[str]:
    """The names of all tests, and of all files of tests, of this checkout."""
    command = ["git", "ls-files", "-z", "*/test_*.py"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [ROOT / path for path in listed.split("\0") if path and (ROOT / path).is_file()]
    text = "\n".join(path.read_text() for path in files)
    tests = re.findall(r"^\s*(?:async )?def (test_\w+)\(", text, re.MULTILINE)
    return {path.stem for path in files}.union(tests)


def test_every_test_that_a_page_or_an_attack_names_exists() -> None:
    attacks = tomllib.loads((ROOT / "e2e" / "attacks" / "proved.toml").read_text())["proved"]
    named = {
        *re.findall(r"`(test_[a-z0-9_]+)(?:\.py)?`", THREATS),
        *(row["test"] for row in attacks),
        *(test for row in REQUIREMENTS for test in re.findall(r"`([^`]+)`", row[3])),
    }
    assert sorted(named - written()) == []


def test_every_threat_names_a_test_and_a_mitigation() -> None:
    threats = [
        row
        for row, line in zip(rows(THREATS), re.findall(r"^\| .*", THREATS, re.M), strict=True)
        if line.count("|") == 4 and row[0] != "threat" and not set(row[0]) <= set("- ")
    ]
    assert len(threats) > 30
    assert [
        row[0] for row in threats if len(row) != 3 or "`test_" not in row[2] or not row[1]
    ] == []


def test_no_two_requirements_have_one_id() -> None:
    ids = [row[0] for row in REQUIREMENTS]
    assert len(ids) == len(set(ids)) > 80


def test_a_requirement_names_a_place_that_exists_and_tests() -> None:
    assert [row[0] for row in REQUIREMENTS if len(row) != 4] == []
    wrong = [
        (row[0], place)
        for row in REQUIREMENTS
        for place in re.findall(r"`([^`]+)`", row[2]) or ["none"]
        if not (ROOT / place).exists()
    ]
    assert wrong == []
    assert [row[0] for row in REQUIREMENTS if "`" not in row[3]] == []
