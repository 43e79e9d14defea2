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


CLOCKS = ("monotonic", "perf_counter", "process_time", "time.time", "current_time")


def measured(node: ast.AST) -> bool:
    """Whether it is a difference of a clock that may be at most so many seconds."""
    return (
        isinstance(node, ast.Compare)
        and isinstance(node.left, ast.BinOp)
        and isinstance(node.left.op, ast.Sub)
        and isinstance(node.ops[0], ast.Lt | ast.LtE)
        and any(f"{clock}()" in ast.unparse(node.left.left) for clock in CLOCKS)
    )


def unguarded(node: ast.AST) -> Iterator[ast.Assert]:
    """Asserts on seconds outside of ``if timed:``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assert) and any(map(measured, ast.walk(child.test))):
            yield child
        if not (isinstance(child, ast.If) and "timed" in ast.unparse(child.test)):
            yield from unguarded(child)


def test_no_test_fails_for_seconds_that_passed_but_those_of_the_timing_session() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        if "cluster" not in path.parts
        for node in unguarded(ast.parse(path.read_text()))
    ]
    assert found == [], "bound the work or the order; for seconds there is the fixture `timed`"


def test_what_measures_is_told_from_what_waits() -> None:
    tree = ast.parse("""
assert time.monotonic() < end
assert time.monotonic() - began >= 2
if timed:
    assert time.monotonic() - began < 2
assert time.perf_counter() - began < 1
""")
    assert [node.lineno for node in unguarded(tree)] == [6]


@pytest.mark.parametrize(
    ("folder", "words", "ci"),
    [
        (".", ["packages/preflight-testing/tests/test_documents.py"], True),
        ("packages/preflight-testing/tests", ["test_documents.py"], False),
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


SKIPPING = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_asks_a_real_one(number):
    pytest.skip("KUBEBUILDER_ASSETS is not set: no real kube-apiserver")

@pytest.mark.skip(reason="no such program")
def test_other():
    pass
"""


def test_skipped_tests_are_counted_by_reason_and_the_last_line_says_what_brings_an_api_server(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    noted = tmp_path / "noted"
    options = ["-c", str(ROOT / "pyproject.toml"), "-p", "conftest", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_skipping.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PREFLIGHT_SKIPPED": str(noted)},
        capture_output=True,
        text=True,
        check=True,
    )
    *_, many, other, last, total = ran.stdout.splitlines()
    assert many == "     3 skipped: KUBEBUILDER_ASSETS is not set: no real kube-apiserver"
    assert other == "     1 skipped: no such program"
    assert last.startswith("3 tests need a real API server: nox -s assets")
    assert "4 skipped" in total
    assert "SKIPPED" not in ran.stdout
    assert len(noted.read_text().splitlines()) == 4
