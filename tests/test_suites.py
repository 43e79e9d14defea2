"""Rules of all tests, whichever member they are of."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path
    for folder in ("packages", "e2e", "tests")
    for path in (ROOT / folder).rglob("*.py")
    if "/tests/" in f"/{path.relative_to(ROOT)}" or "testing/src/" in str(path)
)
PROBE = """
import os
from pathlib import Path

def pytest_sessionstart(session):
    from hypothesis import settings
    now = settings()
    told = f"deadline={now.deadline} derandomize={now.derandomize}"
    Path(os.environ["PROBED"], str(os.getpid())).write_text(told)
"""


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def test_hypothesis_has_one_profile_and_no_test_a_deadline_of_its_own() -> None:
    own = []
    for path in SOURCES:
        for call in calls(path):
            name = ast.unparse(call.func)
            keywords = {keyword.arg for keyword in call.keywords}
            if name.endswith(("register_profile", "load_profile")) or (
                name.endswith("settings") and "deadline" in keywords
            ):
                own.append(f"{path.relative_to(ROOT)}:{call.lineno}")
    assert own == [], "the root's conftest.py has the profile of all"


@pytest.mark.parametrize(
    ("folder", "words", "ci"),
    [
        (".", ["packages/check-dcgm/tests/test_version.py"], True),
        ("packages/check-dcgm/tests", ["test_version.py"], False),
        (".", ["-n", "1", "tests/test_names.py"], False),
    ],
    ids=["with CI", "by its path", "side by side"],
)
def test_no_example_has_a_deadline_with_and_without_ci(
    folder: str, words: list[str], tmp_path: Path, *, ci: bool
) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    environment |= {"CI": "true"} if ci else {}
    environment |= {"PYTHONPATH": str(tmp_path), "PROBED": str(tmp_path / "probed")}
    (tmp_path / "probed").mkdir()
    command = [sys.executable, "-m", "pytest", "-p", "probe", "-p", "no:cacheprovider"]
    subprocess.run(
        [*command, "-k", "nothing", *words],
        cwd=ROOT / folder,
        env=environment,
        capture_output=True,
        check=False,  # what a member imports is not here
    )
    probed = [path.read_text() for path in (tmp_path / "probed").iterdir()]
    assert len(probed) == (2 if "-n" in words else 1)
    assert set(probed) == {f"deadline=None derandomize={ci}"}
