"""What every member's tests have: `--changed` and `--seconds`, for `nox -s quick`, how they are
shared out where several run at a time (`-n`), Hypothesis' profile, and what is skipped: counted,
and noted for the gate.

Quick runs the tests nearest to a change first, and as many as a patience allows.
"""

from __future__ import annotations

import ast
import os
import re
import time
from collections import Counter
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

SKIPPED = "PREFLIGHT_SKIPPED"
"""Variable: the file to which each skipped test is written, with its reason."""
API_SERVER = "KUBEBUILDER_ASSETS"
"""Whoever skips a test for want of a real API server names this variable."""
LEFT_OUT = pytest.StashKey[list[str]]()
ENDS = pytest.StashKey[float]()

with suppress(ImportError):  # not all members have properties
    from hypothesis import HealthCheck, settings

    # How long an example takes on this machine proves nothing. All else is Hypothesis' own profile,
    # which draws the same examples everywhere where CI is set.
    settings.register_profile(
        "preflight",
        settings(),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
    settings.load_profile("preflight")


@pytest.fixture(
    params=[
        pytest.param(False, id="by what happens"),
        pytest.param(True, id="in seconds", marks=pytest.mark.timing),
    ]
)
def timed(request: pytest.FixtureRequest) -> bool:
    """Whether the test may compare times with seconds: only where nothing else runs."""
    return bool(request.param)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("a quick look")
    group.addoption(
        "--changed",
        default="",
        metavar="FILE,FILE",
        help="run first what is nearest to these files",
    )
    group.addoption(
        "--seconds",
        type=float,
        metavar="N",
        help="begin no test after N seconds; say how many are left out",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = []
    if config.option.seconds is not None:
        config.stash[ENDS] = time.monotonic() + config.option.seconds


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    changed = [path for path in config.option.changed.split(",") if path]
    if changed:
        items.sort(key=lambda item: distance(item.path, config.rootpath, changed))


def distance(test: Path, root: Path, changed: list[str]) -> int:
    """0: the test's file changed; 1: it imports a module that did; 2: neither."""
    if str(test.relative_to(root)) in changed:
        return 0
    modules = {
        Path(path).with_suffix("").as_posix().partition("/src/")[2].replace("/", ".")
        for path in changed
    }
    return 1 if imported(test) & (modules - {""}) else 2


@lru_cache
def imported(test: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(test.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def pytest_runtest_setup(item: pytest.Item) -> None:
    if ENDS in item.config.stash and time.monotonic() > item.config.stash[ENDS]:
        item.config.stash[LEFT_OUT].append(item.nodeid)
        pytest.skip("the time of a quick look is over")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n N` tests go one by one to whoever is free, but for files that make something for all
    of their tests: those stay in one piece.
    """
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class OneByOne(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if shares(config.rootpath / file) else nodeid

    return OneByOne(config, log)


@lru_cache
def shares(file: Path) -> bool:
    return re.search(r'scope="(class|module|package|session)"', file.read_text()) is not None


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if left_out := config.stash[LEFT_OUT]:
        terminalreporter.write_line(
            f"left out for want of time: {len(left_out)} tests; nox -s test runs them all"
        )
    if hasattr(config, "workerinput"):
        return  # a worker of xdist reports to the one that started it
    skipped = [(report, reason(report)) for report in terminalreporter.stats.get("skipped", [])]
    if noted := os.environ.get(SKIPPED):
        with Path(noted).open("a") as file:
            file.writelines(f"{report.nodeid}\t{why}\n" for report, why in skipped)
    counted = Counter(why for _, why in skipped)
    for why, count in counted.most_common():
        terminalreporter.write_line(f"{count:6} skipped: {why}")
    if needed := sum(count for why, count in counted.items() if API_SERVER in why):
        terminalreporter.write_line(
            f"{needed} tests need a real API server: nox -s assets brings it, and says what to set"
        )


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(said.removeprefix("Skipped: ").split())
