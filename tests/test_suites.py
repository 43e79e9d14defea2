"""Rules of all tests, whichever member they are of."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path
    for folder in ("packages", "e2e", "tests")
    for path in (ROOT / folder).rglob("*.py")
    if "/tests/" in f"/{path.relative_to(ROOT)}" or "testing/src/" in str(path)
)
CONFTEST = str(ROOT / "conftest.py")
PROBE = """
import os
from pathlib import Path

def pytest_sessionstart(session):
    from hypothesis import settings
    now = settings()
    told = f"deadline={now.deadline} derandomize={now.derandomize}"
    Path(os.environ["PROBED"], str(os.getpid())).write_text(told)
"""


def trees(*words: str) -> Iterator[tuple[Path, ast.Module]]:
    """The files that say one of ``words``, parsed."""
    for path in SOURCES:
        if any(word in (text := path.read_text()) for word in words):
            yield path, ast.parse(text)


@pytest.mark.component  # reads every file
def test_hypothesis_has_one_profile_and_no_test_a_deadline_of_its_own() -> None:
    own = []
    for path, tree in trees("_profile", "deadline"):
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
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


@pytest.mark.component  # reads every file
def test_no_test_fails_for_seconds_that_passed_but_those_of_the_timing_session() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in trees(*CLOCKS)
        if "cluster" not in path.parts
        for node in unguarded(tree)
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
        (".", ["-n", "1", "tests/test_threat_model.py"], False),
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

@pytest.mark.kube
@pytest.mark.parametrize("number", range(3))
def test_asks_a_real_one(number):
    pytest.skip("KUBEBUILDER_ASSETS is not set: no real kube-apiserver")

@pytest.mark.skip(reason="no such program")
def test_other():
    pass
"""


def run_beside(folder: Path, text: str, *options: str, **environ: str) -> str:
    """What pytest prints of tests that lie outside of the checkout, with this one's conftest.py."""
    (folder / "test_beside.py").write_text(text)
    words = ["-c", str(ROOT / "pyproject.toml"), "-p", "conftest", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--tb=line", "-rA", *options, "test_beside.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout


def test_skipped_tests_are_counted_by_reason_and_the_last_line_says_what_brings_an_api_server(
    tmp_path: Path,
) -> None:
    noted = tmp_path / "noted"
    printed = run_beside(tmp_path, SKIPPING, "-rN", PREFLIGHT_SKIPPED=str(noted))
    *_, many, other, last, total = printed.splitlines()
    assert many == "     3 skipped: KUBEBUILDER_ASSETS is not set: no real kube-apiserver"
    assert other == "     1 skipped: no such program"
    assert last.startswith("3 tests need a real API server: nox -s assets")
    assert "4 skipped" in total
    assert "SKIPPED" not in printed
    assert len(noted.read_text().splitlines()) == 4


def unclassed() -> str:
    return "nothing here but words".upper()


def hidden() -> None:
    asleep()


def asleep() -> None:
    sleep(0)


class Child:
    def begin(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["true"])


@contextmanager
def wrapped() -> Iterator[Child]:
    yield Child()


def late() -> object:
    import socket

    return socket


@pytest.mark.parametrize(
    ("start", "speed"),
    [(unclassed, "unit"), (hidden, "component"), (wrapped, "component"), (late, "component")],
)
def test_a_tests_class_is_read_off_what_its_code_can_reach(
    start: Callable[[], object], speed: str, request: pytest.FixtureRequest
) -> None:
    plugins = request.config.pluginmanager
    [ours] = [one for one in plugins.get_plugins() if getattr(one, "__file__", "") == CONFTEST]
    assert ours.reach(start) == speed


NOT_UNIT = """
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest

sleep = getattr(time, "sleep")

def test_process():
    subprocess.run(["true"])

def test_connection():
    with suppress(Exception), socket.socket() as one:
        one.connect(("127.0.0.1", 9))

def test_sleep():
    time.sleep(0.01)

def test_caught():
    try:
        os.fork()
    except BaseException:
        pass

@pytest.mark.component
def test_marked():
    subprocess.run(["true"])

def test_pure():
    time.sleep(0)

def test_api_server():
    pytest.skip("KUBEBUILDER_ASSETS is not set: no real kube-apiserver")

def test_long():
    end = time.process_time() + 0.6
    while time.process_time() < end:
        pass
"""


def outcomes(printed: str) -> dict[str, str]:
    found = re.findall(r"^(PASSED|FAILED|SKIPPED) \S*::test_(\w+)", printed, re.MULTILINE)
    return {name: outcome for outcome, name in found}


def test_a_unit_test_starts_no_process_opens_no_connection_and_does_not_sleep(
    tmp_path: Path,
) -> None:
    printed = run_beside(tmp_path, NOT_UNIT)
    assert outcomes(printed) == {
        **dict.fromkeys(("process", "connection", "sleep", "caught", "api_server"), "FAILED"),
        **dict.fromkeys(("marked", "pure", "long"), "PASSED"),
    }
    assert "subprocess.Popen" in printed
    assert "mark it, or its file, with pytest.mark.component" in printed
    assert "mark it with pytest.mark.kube" in printed
    computed = r"::test_(\w+) computed for 0\.\d s; such a unit test has 0\.5 s$"
    assert re.findall(computed, printed, re.MULTILINE) == ["long"]


def test_a_unit_test_that_computes_for_long_fails_where_budgets_hold(tmp_path: Path) -> None:
    printed = run_beside(tmp_path, NOT_UNIT, "-k", "long or pure", "--budget")
    assert outcomes(printed) == {"long": "FAILED", "pure": "PASSED"}
