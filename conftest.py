"""What every member's tests have: a speed class, `--changed` and `--seconds`, for `nox -s quick`,
how they are shared out where several run at a time (`-n`), Hypothesis' profile, and what is
skipped: counted, and noted for the gate.

A test's class is read off what its code and its fixtures can reach, and held while it runs: a unit
test starts no process, opens no connection and does not sleep; only a test of class kube asks for a
real API server. A marker at the test or its file decides otherwise.

Quick runs the tests nearest to a change first, and as many as a patience allows.
"""

from __future__ import annotations

import ast
import dis
import inspect
import os
import re
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent
SKIPPED = "PREFLIGHT_SKIPPED"
"""Variable: the file to which each skipped test is written, with its reason."""
API_SERVER = "KUBEBUILDER_ASSETS"
"""Whoever skips a test for want of a real API server names this variable."""
OVER = "over its budget"
LEFT_OUT = pytest.StashKey[list[str]]()
ENDS = pytest.StashKey[float]()

# httpx imports its command line, with rich and pygments, wherever others have these installed.
sys.modules["httpx._main"] = None  # type: ignore[assignment]

# Go reads it as a process starts: Helm, in the workers of a run, collects its garbage a fifth as
# often, for a third less of its CPU.
os.environ.setdefault("GOGC", "400")

with suppress(ImportError):  # not all members have properties
    from hypothesis import HealthCheck, settings

    # How long an example takes on this machine proves nothing. All else is Hypothesis' own profile,
    # which draws the same examples everywhere where CI is set. Other generators draw multiples of
    # this number, settings().max_examples.
    settings.register_profile(
        "preflight",
        settings(),
        max_examples=int(os.environ.get("PREFLIGHT_EXAMPLES") or 25),
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

    parser.addoption(
        "--full",
        action="store_true",
        help="what is tried by number, and crashes at each request, in full instead of a sample (hours)",
    )
    parser.addoption(
        "--budget",
        action="store_true",
        help="fail unit tests that compute for longer than they may; without it they are named",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = []
    sys.addaudithook(held)
    time.sleep = partial(slept, SLEEP)  # before Python 3.13 it is no audit event
    if config.option.seconds is not None:
        config.stash[ENDS] = time.monotonic() + config.option.seconds


SLEEP = time.sleep
SPEEDS = ("kube", "component", "unit")
"""What a test can be, the slowest first."""
DRIVERS = {
    *("subprocess", "socket", "socketserver", "multiprocessing", "urllib.request"),
    *("http.client", "http.server", "httpx", "grpc", "uvicorn", "helm_python"),
}
"""Modules of processes, connections and servers, and of Helm, Go beside the interpreter."""
WAITS = {
    *("sleep", "fork", "execv", "execve", "execvp", "system", "posix_spawn", "popen"),
    *("open_process", "run_process", "create_subprocess_exec", "to_process"),
    *("connect_tcp", "connect_unix", "create_tcp_listener", "create_unix_listener"),
    *("start_server", "start_unix_server", "open_connection", "open_unix_connection"),
}
"""What starts processes, connects or sleeps, in modules that do much else."""
IMPORT = dis.opmap["IMPORT_NAME"]
REAL = {"ApiServer", "assets", "real_api_server"}
"""Of preflight_testing: a real API server, and who asks whether there is one."""
HELD = {
    *("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"),
    *("socket.connect", "socket.bind", "socket.getaddrinfo", "time.sleep"),
}
"""What no unit test does, as Python's audit events call it."""
BUDGET, OF_SEARCHES = 0.5, 5.0
"""Seconds of its process that a unit test may compute; one that tries hundreds of examples."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if not any(item.get_closest_marker(name) for name in SPEEDS):
            item.add_marker(speed(item))
    asked = {member(item.path) for item in items if item.get_closest_marker("kube")}
    if silent := [str(folder) for folder in asked - {None} if not asks(folder)]:
        raise pytest.UsageError(
            f"{', '.join(silent)}: tests here ask a real API server, and `nox -s kube` runs those of members that say "
            "so alone; write kube = true under [tool.preflight] of its pyproject.toml"
        )
    changed = [path for path in config.option.changed.split(",") if path]
    if changed:
        items.sort(key=lambda item: distance(item.path, config.rootpath, changed))


def member(test: Path) -> Path | None:
    """The folder above its tests; None outside of this checkout."""
    above = (folder.parent for folder in test.parents if folder.name == "tests")
    return next(above, None) if test.is_relative_to(ROOT) else None


@cache
def asks(folder: Path) -> bool:
    """Tell whether a member says that some of its tests ask a real API server."""
    settings = tomllib.loads((folder / "pyproject.toml").read_text()).get("tool", {})
    return bool(settings.get("preflight", {}).get("kube"))


def speed(item: pytest.Item) -> str:
    """The slowest of what the test's code and its fixtures can reach."""
    if not isinstance(item, pytest.Function):
        return "component"
    if hasattr(item, "callspec") and any(one == "real" for one in item.callspec.params.values()):
        return "kube"
    fixtures = [found[-1].func for found in item._fixtureinfo.name2fixturedefs.values()]
    return min((reach(start) for start in (item.function, *fixtures)), key=SPEEDS.index)


@cache
def reach(start: Any) -> str:
    """The speed class of a function, by all that it names in this checkout, and what that names."""
    if any(one in REAL for one in walk(start, for_tests)):
        return "kube"
    return "component" if any(one == "driver" for one in walk(start, ours)) else "unit"


def walk(start: Any, within: Callable[[str], bool]) -> Iterator[str]:
    """The real and the slow things among all that can be reached from ``start``."""
    todo, seen = [inner(start)], {id(start)}
    while todo:
        for thing in names(todo.pop(), within):
            if isinstance(thing, str):
                yield thing
            elif id(thing) not in seen:
                seen.add(id(thing))
                todo.append(thing)


@cache
def ours(file: str) -> bool:
    path = Path(file)
    return path.is_relative_to(ROOT) and not any(
        part.startswith(".") for part in path.parts[len(ROOT.parts) :]
    )


@cache
def for_tests(file: str) -> bool:
    made_for = r"(^|/)tests/|testing/src/|^e2e/src/"
    return ours(file) and bool(re.search(made_for, Path(file).relative_to(ROOT).as_posix()))


@cache
def names(thing: Any, within: Callable[[str], bool]) -> list[Any]:
    """What a function or a class names, once."""
    if isinstance(thing, type):
        if not within(getattr(sys.modules.get(thing.__module__), "__file__", None) or ""):
            return []
        members = [inner(value) for value in vars(thing).values()]
        return [*thing.__bases__, *(one for one in members if isinstance(one, FunctionType))]
    found: list[Any] = []
    if not within(thing.__code__.co_filename):
        return found
    used: set[str] = set()
    values: list[Any] = []
    for cell in thing.__closure__ or ():
        with suppress(ValueError):  # it is empty
            values.append(inner(cell.cell_contents))
    for code in codes(thing.__code__):
        used |= set(code.co_names)
        if IMPORT in code.co_code[::2]:  # else the slow reading of its steps finds nothing
            steps = dis.get_instructions(code)
            values += [sys.modules.get(one.argval) for one in steps if one.opcode == IMPORT]
    values += [inner(thing.__globals__[name]) for name in used if name in thing.__globals__]
    for value in values:
        if value is SLEEP or value is slept:
            found.append("driver")
        elif isinstance(value, ModuleType):
            if drives(value.__name__) or (
                used & WAITS and value.__name__ in {"time", "os", "asyncio", "anyio"}
            ):
                found.append("driver")
            elif within(getattr(value, "__file__", None) or ""):
                values += [inner(getattr(value, name)) for name in used if hasattr(value, name)]
        elif isinstance(value, type | FunctionType):
            home = value.__module__
            if home.startswith("preflight_testing.") and value.__name__ in REAL:
                found.append(value.__name__)
            elif drives(home) or (
                value.__name__ in WAITS and home.partition(".")[0] in {"anyio", "asyncio"}
            ):
                found.append("driver")
            else:
                found.append(value)
    return found


def drives(module: str) -> bool:
    return module in DRIVERS or module.partition(".")[0] in DRIVERS


def inner(thing: Any) -> Any:
    """What decorators have wrapped."""
    if isinstance(thing, property):
        return thing.fget
    if isinstance(thing, classmethod | staticmethod | MethodType):
        thing = thing.__func__
    if isinstance(thing, cached_property):
        return thing.func
    if isinstance(thing, partial):
        return inner(thing.func)
    if (example := getattr(thing, "hypothesis", None)) and hasattr(example, "inner_test"):
        return inner(example.inner_test)
    return inspect.unwrap(thing) if isinstance(thing, FunctionType) else thing


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


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


class Running:
    """The unit test that runs now, in which thread, and what it did that none does."""

    thread: int | None = None
    broke: str = ""


def held(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail a unit test that does what only others do; an audit hook of the interpreter."""
    if Running.thread is None or event not in HELD or threading.get_ident() != Running.thread:
        return
    if event != "time.sleep" or arguments[0] > 0:
        Running.broke = (
            f"{event}{arguments!r:.200} in a test of class unit, by what its code names; mark it, or "
            "its file, with pytest.mark.component, or leave the process, connection or sleep out"
        )
        pytest.fail(Running.broke)


def slept(sleep: Callable[[float], None], seconds: float) -> None:
    held("time.sleep", (seconds,))
    sleep(seconds)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    Running.thread = threading.get_ident() if item.get_closest_marker("unit") else None
    Running.broke = ""
    try:
        return (yield)
    finally:
        Running.thread = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Hold the budget. Only seconds of this process count: a busy machine takes none of them."""
    began = time.process_time()
    yield
    if Running.thread is None:
        return
    if Running.broke:
        pytest.fail(Running.broke)
    budget = OF_SEARCHES if item.get_closest_marker("hypothesis") else BUDGET
    spent = time.process_time() - began
    if spent > budget:
        over = f"computed for {spent:.1f} s; such a unit test has {budget} s"
        item.user_properties.append((OVER, over))
        if item.config.option.budget:
            pytest.fail(over)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Fail what asks for a real API server and is not of that class: it would never have one."""
    report = yield
    if report.skipped and API_SERVER in reason(report) and not item.get_closest_marker("kube"):
        report.outcome = "failed"
        report.longrepr = (
            f"asks for a real API server ({reason(report)}); mark it with pytest.mark.kube"
        )
    return report


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
    for report in terminalreporter.stats.get("passed", []):
        for name, over in report.user_properties:
            if name == OVER:
                terminalreporter.write_line(f"{report.nodeid} {over}")
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
