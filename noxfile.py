"""All developer tasks: `nox -l` lists them, and `nox` alone runs what a change must pass."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nox
from nox.command import CommandFailed

if sys.version_info < (3, 11):  # noqa: UP036 (whoever meets this has not read pyproject.toml)
    sys.exit(
        f"noxfile.py: Preflight needs Python 3.11 or newer, this is {sys.version.split()[0]}; make .venv with a newer one."
    )

import tomllib

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv"
nox.options.reuse_existing_virtualenvs = True

# Thousands of programs start here, each twice as long where it compiles what it imports. Whoever
# wants no bytecode beside the sources gets none there.
WITHOUT_BYTECODE = os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
if WITHOUT_BYTECODE:
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(__file__).parent / ".nox/bytecode"))

nox.options.sessions = ["lint", "types", "layers", "codegen", "lock", "third-party", "test"]


def _members() -> dict[str, tuple[str, dict[str, Any]]]:
    """By name: each member's folder, and what its own pyproject.toml says of it under [tool.preflight]."""
    found = {}
    for path in (
        *sorted(Path(__file__).parent.glob("packages/*/pyproject.toml")),
        Path(__file__).parent / "e2e/pyproject.toml",
    ):
        read = tomllib.loads(path.read_text())
        folder = path.parent.relative_to(Path(__file__).parent)
        found[read["project"]["name"]] = (str(folder), read.get("tool", {}).get("preflight", {}))
    return found


MEMBERS = {name: folder for name, (folder, _) in _members().items()}
DEMO = tuple(name for name, (_, said) in _members().items() if said.get("demo"))
"""Whose programs the demo runs, each in an environment of its own, as in its image."""
TIMED = [name for name, (_, said) in _members().items() if said.get("timed")]
"""Some of whose tests compare times with seconds."""
WITH_KUBE = [name for name, (_, said) in _members().items() if said.get("kube")]
"""Some of whose tests ask a real API server; conftest.py refuses such tests of others."""
WITH_TORCH = tuple(name for name, (_, said) in _members().items() if said.get("torch"))
"""Whose tests need torch; :func:`add_torch` says where it comes from."""
SHARED = tuple(folder for folder, said in _members().values() if said.get("kind") == "tests")
"""Folders of what is made for the tests of other members."""
FLOORS = {name: said["coverage"] for name, (_, said) in _members().items() if "coverage" in said}
"""The least share of a member's source, in percent, that its own tests must run."""
KINDS = {"service": "SERVICES", "check": "CHECKS", "library": "LIBRARIES", "tests": "TESTS"}
"""What a member can be, and how the contracts of import-linter name all of that kind."""
UNTIMED = "not links and not timing"
"""The tests that no clock can fail."""
TORCHES = ("2.6", "2.13")
"""The oldest torch that an image may bring, Debian's, and the newest, the lock's."""
GENERATED = tuple(
    (folder, said["generated"]) for folder, said in _members().values() if "generated" in said
)
"""Whose codegen.py makes which files and folders."""


def sync(session: nox.Session, *args: str) -> None:
    """Make the session's environment exactly what uv.lock says for `args`."""
    environment = Path(session.virtualenv.location)
    install(
        session,
        "uv",
        "sync",
        "--frozen",
        "--python",
        f"{environment}/bin/python",
        *args,
        into=environment,
    )


def install(
    session: nox.Session, *command: str, into: Path, env: Mapping[str, str | None] | None = None
) -> None:
    """Run uv on the environment `into`; where it fails, say in one sentence what to do."""
    try:
        session.run_install(*command, env={"UV_PROJECT_ENVIRONMENT": str(into), **(env or {})})
    except CommandFailed:
        free = shutil.disk_usage(Path.cwd()).free / 1e9
        session.error(
            f"{into}: not installed, for the reason that uv gives above; packages need the network (or uv's cache) "
            f"and room on the disk ({free:.1f} GB are free here)."
        )


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and format, over everything (`-- --fix` corrects)."""
    sync(session, "--only-group", "lint")
    fix = "--fix" in session.posargs
    session.run("ruff", "check", *(["--fix"] if fix else []), ".")
    session.run("ruff", "format", *([] if fix else ["--check"]), ".")


@nox.session
@nox.parametrize("member", list(MEMBERS), ids=list(MEMBERS))
def types(session: nox.Session, member: str) -> None:
    """mypy strict, each member in an environment of its own."""
    sync(session, "--package", member, "--group", "types")
    # A cache of its own: what another environment has installed lies elsewhere and is read anew.
    cache = f"--cache-dir=.mypy_cache/{member}"
    session.run("mypy", cache, *(f"{MEMBERS[member]}/{part}" for part in ("src", "tests")))


@nox.session
def layers(session: nox.Session) -> None:
    """import-linter: components are independent, layers point down, pure modules stay pure."""
    sync(session, "--all-packages", "--group", "layers")
    settings = Path(session.virtualenv.location) / "contracts.toml"
    settings.write_text(contracts())
    session.run("lint-imports", "--config", str(settings))


def contracts() -> str:
    """import-linter's settings: the root's, every member's module and own contracts, with the names
    of kinds and rooms resolved (:func:`_modules`)."""
    settings: dict[str, Any] = tomllib.loads(Path("pyproject.toml").read_text())["tool"][
        "importlinter"
    ]
    every = settings.pop("contracts")
    of_kind: dict[str, list[str]] = {name: [] for name in KINDS.values()}
    places: dict[str, Path] = {}
    for folder, said in _members().values():
        for init in sorted(Path(folder).glob("src/*/__init__.py")):
            places[init.parent.name] = init.parent
            of_kind.get(KINDS.get(said.get("kind", ""), ""), []).append(init.parent.name)
        own = tomllib.loads(Path(folder, "pyproject.toml").read_text()).get("tool", {})
        every += own.get("importlinter", {}).get("contracts", [])
    settings["root_packages"] = list(places)
    lines = ["[tool.importlinter]", *_toml(settings)]
    for contract in every:
        for key in ("source_modules", "modules", "forbidden_modules", "containers", "ancestors"):
            if key in contract:
                contract[key] = [
                    m for name in contract[key] for m in _modules(name, of_kind, places)
                ]
        if "layers" in contract and "containers" not in contract:
            contract["layers"] = [
                " | ".join(
                    m for name in layer.split(" | ") for m in _modules(name, of_kind, places)
                )
                for layer in contract["layers"]
            ]
        sources = contract.get("source_modules", [])
        if "forbidden_modules" in contract:
            contract["forbidden_modules"] = [
                one for one in contract["forbidden_modules"] if one not in sources
            ]
        lines += ["[[tool.importlinter.contracts]]", *_toml(contract)]
    return "\n".join(lines) + "\n"


def _modules(
    name: str, of_kind: Mapping[str, list[str]], places: Mapping[str, Path]
) -> Sequence[str]:
    """Modules that a name of a contract stands for: "SERVICES" all of a kind, "SERVICES.core" the
    room of that name in each that has it, "package.room.!a !b" what stands there but a and b."""
    within, _, but = name.partition(".!")
    package, _, room = within.partition(".")
    modules: list[str] = []
    for root in of_kind.get(package, [package]):
        folder = places[root].joinpath(*room.split(".")) if root in places else Path(root)
        if but:
            parts = {p.stem for p in folder.glob("[!_]*.py")}
            parts |= {p.parent.name for p in folder.glob("*/__init__.py")}
            modules += (f"{folder_name(root, room)}.{p}" for p in parts - set(but.split(" !")))
        elif package not in of_kind or folder.is_dir() or folder.with_suffix(".py").is_file():
            modules.append(folder_name(root, room))
    return sorted(modules)


def folder_name(root: str, room: str) -> str:
    """How a room of a package is imported."""
    return f"{root}.{room}" if room else root


def _toml(table: Mapping[str, Any]) -> list[str]:
    """Lines of TOML, which has texts, lists and booleans as JSON does."""
    return [f"{key} = {json.dumps(value)}" for key, value in table.items()]


@nox.session
def codegen(session: nox.Session) -> None:
    """Generated files are what their generators make (run it to regenerate them)."""
    sync(session, "--all-packages", "--group", "codegen")
    for folder, _ in GENERATED:
        session.run("python", f"{folder}/codegen.py")
    session.run("python", "packages/preflight-proto/nccl_topologies.py")
    session.run("python", "packages/preflight-proto/settings_schemas.py")
    session.run("python", "packages/preflight-kube/chart_rights.py")
    session.run("python", "charts/dashboards.py")
    session.run("python", "-m", "preflight_e2e.chart_schema")
    session.run("python", "-m", "preflight_e2e.matrix_schema")
    session.run("python", "-m", "preflight_e2e.supply_chain", "builder")
    session.run("python", "-m", "preflight_e2e.release", "generate")
    manual = session.run(
        "git", "grep", "-l", "^<!-- \\[\\[\\[cog", "--", "*.md", external=True, silent=True
    )
    pages = str(manual).split()
    session.run("cog", "-r", "-I", "docs", *pages)
    generated = [
        *pages,
        *(place for _, places in GENERATED for place in places),
        "packages/preflight-proto/nccl-topologies",
        "packages/preflight-proto/src/preflight_proto/settings/*.json",
        "charts/preflight/values.schema.json",
        "charts/preflight/charts/*/values.schema.json",
        "charts/preflight/charts/*/charts/*",
        "charts/preflight/charts/*/dashboards/*",
        "charts/preflight/charts/*/generated/*",
        "charts/preflight/charts/*/templates/generated-*",
        "e2e/matrix/schema.json",
        "builder.txt",
        "images.txt",
    ]
    new = ["git", "ls-files", "--others", "--exclude-standard", "--", *generated]
    if found := str(session.run(*new, external=True, silent=True)).split():
        session.error(f"generated, and not in git yet: {', '.join(found)}; add them.")
    session.run("git", "diff", "--exit-code", "--", *generated, external=True)


@nox.session
def lock(session: nox.Session) -> None:
    """uv.lock is what the pyproject files say."""
    session.run_install("uv", "lock", "--check")


@nox.session
def test(session: nox.Session) -> None:
    """Unit and component tests of every member, in one environment; members side by side (`-- ARGS` go to pytest)."""
    side_by_side(session, f"not kube and {UNTIMED}", 3, *WITH_TORCH)


@nox.session
def unit(session: nox.Session) -> None:
    """Tests that start no process, open no connection and do not sleep, of every member (`-- ARGS` go to pytest)."""
    side_by_side(session, f"unit and {UNTIMED}", 0)


@nox.session
def kube(session: nox.Session) -> None:
    """Tests that ask a real API server, of every member: KUBEBUILDER_ASSETS (`-- ARGS` go to pytest)."""
    if "KUBEBUILDER_ASSETS" not in os.environ:
        session.error(
            "KUBEBUILDER_ASSETS is not set, so there is no real API server; nox -s assets brings one, and prints what to set."
        )
    side_by_side(session, f"kube and {UNTIMED}", 3, members={m: MEMBERS[m] for m in WITH_KUBE})


@nox.session
def attacks(session: nox.Session) -> None:
    """Every row of e2e/attacks against a real API server with everything installed: KUBEBUILDER_ASSETS (`-- ARGS` go to pytest)."""
    if "KUBEBUILDER_ASSETS" not in os.environ:
        session.error(
            "KUBEBUILDER_ASSETS is not set, so there is no real API server; nox -s assets brings one, and prints what to set."
        )
    sync(session, "--all-packages", "--group", "test")
    session.run("pytest", "e2e/tests/test_attacks.py", "-n", "0", *session.posargs)


@nox.session(name="ten-times", venv_backend="none")
def ten_times(session: nox.Session) -> None:
    """How often `nox -s test` is green: ten runs in a fresh clone and an empty home, five of them beside six busy loops (hours)."""
    green = []
    with tempfile.TemporaryDirectory(prefix="ten-times-") as folder:
        clone, home = Path(folder, "clone"), Path(folder, "home")
        home.mkdir()
        env = {"HOME": str(home), "XDG_CACHE_HOME": None, "VIRTUAL_ENV": None, "CI": None}
        env["PREFLIGHT_EXAMPLES"] = "100"
        session.run("git", "clone", "--quiet", "--no-hardlinks", ".", str(clone), external=True)
        with session.chdir(clone):
            session.run(sys.executable, "-m", "venv", ".venv", external=True, env=env)
            install = [".venv/bin/pip", "install", "--quiet", "nox[uv]"]
            session.run(*install, external=True, env=env)
            for number in range(10):
                loops = [
                    subprocess.Popen([sys.executable, "-c", "while True: pass"])
                    for _ in range(6 * (number % 2))
                ]
                began = time.monotonic()
                try:
                    session.run(".venv/bin/nox", "-s", "test", external=True, env=env)
                    green.append(number)
                except CommandFailed:
                    session.warn("red: what failed is above")
                finally:
                    for loop in loops:
                        loop.kill()
                        loop.wait()
                session.log(
                    f"run {number + 1} of 10, {len(loops)} busy loops beside: "
                    f"{'green' if number in green else 'RED'} after {time.monotonic() - began:.0f} s"
                )
    if len(green) < 10:
        session.error(f"{len(green)} of 10 runs were green.")


def tests_of_one(member: str) -> None:
    """Register the session `test(MEMBER)`."""

    def alone(session: nox.Session) -> None:
        tests_of(session, member, "-m", UNTIMED, *session.posargs)

    alone.__doc__ = f"All tests of {member}, those that ask a real API server too, in an environment of its own."
    nox.session(name=f"test({member})")(alone)


for _name in ("workspace", *MEMBERS):
    tests_of_one(_name)


@nox.session(name="test-313", python="3.13")
@nox.parametrize("member", list(MEMBERS), ids=list(MEMBERS))
def test_313(session: nox.Session, member: str) -> None:
    """The same on Python 3.13, the newest interpreter of images (`-- ARGS` go to pytest)."""
    tests_of(session, member, "-m", UNTIMED, *session.posargs)


@nox.session
def links(session: nox.Session) -> None:
    """All-reduce's gangs on real, shaped links and in real time: minutes, so apart from `test` (`-- ARGS` go to pytest)."""
    tests_of(session, "check-nccl-allreduce", "-m", "links", "-n", "0", *session.posargs)


@nox.session
@nox.parametrize("member", ["budgets", *TIMED], ids=["budgets", *TIMED])
def timing(session: nox.Session, member: str) -> None:
    """What tests compare with seconds, one at a time, and what a unit test may compute: only where nothing else runs (`-- ARGS` go to pytest)."""
    if member == "budgets":
        side_by_side(session, f"unit and {UNTIMED}", 0, options=["--budget"])
        return
    tests_of(session, member, "-m", "timing", "-n", "0", *session.posargs)


@nox.session
@nox.parametrize("torch", TORCHES, ids=["oldest", "newest"])
def gloo(session: nox.Session, torch: str) -> None:
    """All-reduce's gangs of real ranks, with the oldest and the newest torch that an image may bring (`-- ARGS` go to pytest)."""
    sync(
        session, "--inexact", "--package", "check-nccl-allreduce", "--group", "test"
    )  # torch, once added, stays
    add_torch(session, Path(session.virtualenv.location), torch)
    session.run(
        "pytest",
        "packages/check-nccl-allreduce/tests",
        "-m",
        UNTIMED,
        "-k",
        "gang or measure",
        *session.posargs,
    )


@nox.session
def quick(session: nox.Session) -> None:
    """In a minute: lint, and of each member that changed (or whose tests use what did) its tests, nearest to the change first (`-- BASE`, else the merge base)."""
    start = time.monotonic()
    lint(session)
    changed = changed_files(session, *session.posargs[:1])
    chosen = {
        name: [f"{folder}/tests"]
        for name, folder in MEMBERS.items()
        if any(path.startswith(f"{folder}/") for path in changed)
    }
    if any(
        path.startswith(("tests/", "docs/", "packages/", "charts/")) or "/" not in path
        for path in changed
    ):
        chosen["workspace"] = ["tests"]
    session.log(f"changed: {len(changed)} files, of {', '.join(chosen) or 'no member'}")
    chosen = {**users_of(changed), **chosen}
    environments = Path(session.virtualenv.location).parent
    for number, (member, places) in enumerate(chosen.items()):
        own = environments / f"test-{member}"
        environment = own if (own / "bin/pytest").exists() else environments / "test"
        if not (environment / "bin/pytest").exists():
            session.warn(
                f"{member}: not tested, for there is no environment yet; run nox -s test --install-only once."
            )
            continue
        left = max(5.0, (55 - (time.monotonic() - start)) / (len(chosen) - number))
        ignored = ["--ignore=e2e/tests/cluster"] if member == "preflight-e2e" else []
        words = [
            "-q",
            "-m",
            UNTIMED,
            "--seconds",
            f"{left:.0f}",
            "--changed",
            ",".join(changed),
            *ignored,
            *places,
        ]
        session.run(str(environment / "bin/pytest"), *words, external=True, success_codes=[0, 5])


def users_of(changed: list[str]) -> dict[str, list[str]]:
    """By member: its test files that import what changed of what is made for tests."""
    imports = []
    for path in changed:
        if path.endswith(".py") and path.startswith(tuple(f"{folder}/src/" for folder in SHARED)):
            module = path.partition("/src/")[2].removesuffix(".py").removesuffix("/__init__")
            parent, _, name = module.replace("/", ".").rpartition(".")
            imports.append(rf"(from|import) {parent}\.{name}\b|from {parent} import .*\b{name}\b")
    wanted = re.compile(rf"^ *({'|'.join(imports)})" if imports else r"(?!)", re.MULTILINE)
    found = {
        member: [
            str(file)
            for file in sorted(Path(folder, "tests").glob("test_*.py"))
            if wanted.search(file.read_text())
        ]
        for member, folder in MEMBERS.items()
    }
    return {member: files for member, files in found.items() if files}


def changed_files(session: nox.Session, base: str | None = None) -> list[str]:
    """What differs from the merge base with ``base`` (origin's main branch, else main), committed or not; what is new too."""

    def git(*words: str) -> list[str]:
        return str(session.run("git", *words, external=True, silent=True, log=False)).splitlines()

    known = git("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes/origin")
    for name in (
        [base]
        if base
        else [name for name in ("origin/main", "main", "origin/master", "master") if name in known]
    ):
        against = git("merge-base", name, "HEAD")[0]
        break
    else:
        against = "HEAD"
    return sorted(
        {*git("diff", "--name-only", against), *git("ls-files", "--others", "--exclude-standard")}
    )


def tests_of(session: nox.Session, member: str, *args: str) -> None:
    """A member's tests in the session's environment, made as the lock says."""
    if member == "workspace":
        sync(session, "--only-group", "test")
        session.run("pytest", "tests", *workers(), *args)
        return
    group = [] if member == "preflight-e2e" else ["--group", "test"]
    if member in WITH_TORCH:
        sync(session, "--inexact", "--package", member, *group)  # torch, once added, stays
        add_torch(session, Path(session.virtualenv.location))
    else:
        sync(session, "--package", member, *group)
    ignore = ["--ignore=e2e/tests/cluster"] if member == "preflight-e2e" else []
    session.run("pytest", f"{MEMBERS[member]}/tests", *ignore, *workers(), *args)


def side_by_side(
    session: nox.Session,
    marks: str,
    workers: int,
    *torch: str,
    options: Sequence[str] = (),
    members: Mapping[str, str] = {"workspace": ".", **MEMBERS},
) -> None:
    """Run the tests of all `members` that `marks` name in one environment, a pytest for each member:
    modules beside their tests have names of their own only within a member. As many run at a time
    as there are cores, four at most, the longest first and each with `workers` or TESTS_AT_ONCE.
    `torch`: members that get an environment with torch.
    """
    folder = Path(session.virtualenv.location).parent
    lock = ["uv", "sync", "--frozen", "--python", f"{session.virtualenv.location}/bin/python"]
    install(session, *lock, "--all-packages", "--group", "test", into=folder / "test")
    for member in torch:
        own = [*lock, "--inexact", "--package", member, "--group", "test"]
        install(session, *own, into=folder / f"test-{member}")
        add_torch(session, folder / f"test-{member}")
    at_once = os.environ.get("TESTS_AT_ONCE") or str(workers)
    options = ["-n", at_once, "-m", marks, *options, *session.posargs]
    waiting = []
    for member, place in members.items():
        home = folder / (f"test-{member}" if member in torch else "test")
        words = [f"{place}/tests", "--ignore=e2e/tests/cluster", *options]
        log = folder / f"{Path(session.virtualenv.location).name}-{member}.log"
        waiting.append(Suite(member, home, words, log))
    if "--install-only" in sys.argv:
        return
    waiting.sort(key=Suite.weight)
    running, ended = [], []
    try:
        while waiting or running:
            while waiting and len(running) < min(os.cpu_count() or 1, 4):
                running.append(waiting.pop())
                running[-1].begin()
            time.sleep(0.1)
            for suite in [one for one in running if one.ended()]:
                running.remove(suite)
                ended.append(suite)
                suite.tell(session)
    finally:
        for suite in running:
            suite.end()
    if failed := [suite.member for suite in ended if not suite.passed()]:
        session.error(f"failed: {', '.join(sorted(failed))}")


class Suite:
    """The tests of one member, as a pytest of their own; its log stays until the next."""

    def __init__(self, member: str, home: Path, words: list[str], log: Path) -> None:
        self.member, self._home, self._words, self.log = member, home, words, log
        self._noted = log.with_suffix(".seconds")
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    def weight(self) -> tuple[float, int]:
        """The seconds that it took last; before those that have run, who has much to read."""
        files = Path(self._words[0]).rglob("test_*.py")
        last = float(self._noted.read_text()) if self._noted.exists() else float("inf")
        return last, sum(file.stat().st_size for file in files)

    def begin(self) -> None:
        """Start it; its programs are those of its environment."""
        self._began = time.monotonic()
        path = f"{self._home}/bin{os.pathsep}{os.environ['PATH']}"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [f"{self._home}/bin/pytest", *self._words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "VIRTUAL_ENV": str(self._home), "PATH": path},
            )

    def ended(self) -> bool:
        """Whether it has ended; notes how long it took."""
        if self._process is None or self._process.poll() is None:
            return False
        self._noted.write_text(f"{time.monotonic() - self._began:.1f}")
        return True

    def passed(self) -> bool:
        """Whether nothing failed; to have no such tests is no failure."""
        return self._process is not None and self._process.returncode in (0, 5)

    def tell(self, session: nox.Session) -> None:
        """Print all that it wrote if it failed, else what it left out and its last line."""
        lines = self.log.read_text(errors="replace").splitlines()
        if self.passed():
            counted = [
                line for line in lines if re.match(r" *\d+ skipped: |\S+ computed for", line)
            ]
            lines = [*counted, *lines[-1:]]
        session.log(f"{self.member}:\n" + "\n".join(lines))

    def end(self) -> None:
        """Stop it, as Ctrl-C does."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()


def workers() -> list[str]:
    """Tests mostly wait, for processes, leases and clocks: thrice as many processes as cores, or
    TESTS_AT_ONCE, share those of a member; conftest.py says which stay together.
    """
    return ["-n", os.environ.get("TESTS_AT_ONCE") or str(3 * min(os.cpu_count() or 1, 4))]


@nox.session
def coverage(session: nox.Session) -> None:
    """Which share of each member's source its own tests run, and the floor that its pyproject sets (`-- MEMBER...`)."""
    chosen = session.posargs or list(MEMBERS)
    pins = Path(session.virtualenv.location) / "coverage.txt"
    table, below = [], []
    for member in chosen:
        if member not in MEMBERS:
            session.error(f"{member}: no member is called so; they are {', '.join(MEMBERS)}.")
        tests_of(session, member, "--collect-only", "-qq")  # makes the environment
        session.run_install(
            "uv",
            "export",
            "--quiet",
            "--frozen",
            "--only-group",
            "coverage",
            "--output-file",
            str(pins),
        )
        session.run_install(
            "uv",
            "pip",
            "install",
            "--python",
            f"{session.virtualenv.location}/bin/python",
            "-r",
            str(pins),
        )
        folder = Path(session.virtualenv.location) / "data" / member
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        data = {
            "COVERAGE_FILE": str(folder / "coverage"),
            "COVERAGE_RCFILE": str(Path("pyproject.toml").resolve()),
        }
        words = [
            "-m",
            UNTIMED,
            "-q",
            "-p",
            "no:cacheprovider",
            *workers(),
        ]
        source = f"--source={Path(MEMBERS[member], 'src').resolve()}"
        session.run(
            "coverage",
            "run",
            source,
            "-m",
            "pytest",
            *words,
            f"{MEMBERS[member]}/tests",
            "--ignore=e2e/tests/cluster",
            env=data,
            success_codes=[0, 1],
        )
        session.run("coverage", "combine", "--quiet", env=data)
        share = float(
            str(
                session.run(
                    "coverage", "report", "--format=total", "--precision=1", env=data, silent=True
                )
            ).split()[-1]
        )
        floor = FLOORS.get(member)
        table.append(
            f"{member:26} {share:5.1f} %  floor {'none' if floor is None else f'{floor} %'}"
        )
        below += (
            [f"{member} ({share} % of {floor} %)"] if floor is not None and share < floor else []
        )
    session.log("coverage:\n" + "\n".join(table))
    if below:
        session.error(
            f"below the floor of their pyproject: {', '.join(below)}; add the tests that are missing."
        )


@nox.session(name="third-party", reuse_venv=False)
def third_party(session: nox.Session) -> None:
    """What others build checks on: preflight-proto's wheel, alone in an empty environment, runs the manual's samples."""
    folder = Path(session.virtualenv.location) / "made"
    session.run_install(
        "uv",
        "build",
        "--quiet",
        "--wheel",
        "--package",
        "preflight-proto",
        "--out-dir",
        f"{folder}/dist",
    )
    [wheel] = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [
            archive.read(name).decode()
            for name in archive.namelist()
            if name.endswith(".dist-info/METADATA")
        ]
    needs = {
        found.lower().replace("_", "-")
        for found in re.findall(r"^Requires-Dist: ([\w.-]+)", metadata, re.MULTILINE)
    }
    if ours := sorted(needs & set(MEMBERS)):
        session.error(
            f"{wheel.name}: it needs {', '.join(ours)}, which nobody outside has; preflight-proto stands alone."
        )
    pins = folder / "pins.txt"
    locked = [
        "--frozen",
        "--no-hashes",
        "--no-emit-workspace",
        "--package",
        "preflight-proto",
        "--group",
        "test",
    ]
    session.run_install("uv", "export", "--quiet", *locked, "--output-file", str(pins))
    python = str(Path(session.virtualenv.location) / "bin/python")
    alone = [f"{wheel}[check]", "pytest", "pytest-timeout"]
    session.run_install(
        "uv",
        "pip",
        "install",
        "--python",
        python,
        "--constraint",
        str(pins),
        "--reinstall-package",
        "preflight-proto",
        *alone,
    )
    probe = "import importlib.metadata as m; print(*(one.name.lower().replace('_', '-') for one in m.distributions()))"
    found = str(session.run(python, "-c", probe, silent=True, env=without_pythonpath())).split()
    if beside := sorted(set(found) & set(MEMBERS) - {"preflight-proto"}):
        session.error(
            f"the environment has {', '.join(beside)} too, so the wheel was not tried alone."
        )
    session.run(
        "pytest", "packages/preflight-proto/tests/test_own_check.py", env=without_pythonpath()
    )


@nox.session
def images(session: nox.Session) -> None:
    """Build every component's image with docker, podman or buildah (`-- --help` for options)."""
    sync(session, "--package", "preflight-e2e")
    session.run("python", "-m", "preflight_e2e.images", *session.posargs)


@nox.session
def release(session: nox.Session) -> None:
    """The next version of a component, wherever it stands, and what is pushed of it (`-- MEMBER|charts|all patch|minor|major [--dry-run]`; `-- TAG|all --rehearse`: the release workflow's commands against a registry of its own)."""
    sync(session, "--package", "preflight-e2e")
    session.run("python", "-m", "preflight_e2e.release", *session.posargs)


@nox.session
def audit(session: nox.Session) -> None:
    """Ask the public advisories about every locked package (`AUDIT_REQUIRED=1`: fail where they cannot be reached)."""
    sync(session, "--package", "preflight-e2e")
    session.run("python", "-m", "preflight_e2e.supply_chain", "audit", *session.posargs)


@nox.session
def sbom(session: nox.Session) -> None:
    """Write what is in each image, by the lock, as CycloneDX JSON (`-- --output FOLDER`; sbom/ if none is named)."""
    sync(session, "--package", "preflight-e2e")
    session.run("python", "-m", "preflight_e2e.supply_chain", "sbom", *session.posargs)


@nox.session
def e2e(session: nox.Session) -> None:
    """Install the charts on a real cluster and run the fault matrix (kind; `-- --cluster existing`)."""
    sync(session, "--package", "preflight-e2e")
    session.run("python", "-m", "preflight_e2e", "run", *session.posargs)


@nox.session
def chaos(session: nox.Session) -> None:
    """A bad day: every component killed, alone and in pairs, under load (as `e2e`: kind; `-- --cluster existing`)."""
    sync(session, "--package", "preflight-e2e")
    file = "test_chaos_on_a_cluster.py"
    session.run("python", "-m", "preflight_e2e", "run", "--tests", file, *session.posargs)


@nox.session
def site(session: nox.Session) -> None:
    """The manual as a static site in out/site; a link that leads nowhere fails it (`-- FOLDER`: elsewhere)."""
    sync(session, "--only-group", "site")
    pages = Path(session.create_tmp(), "pages")
    shutil.rmtree(pages, ignore_errors=True)
    known = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in str(session.run(*known, external=True, silent=True)).splitlines():
        if Path(name).is_file():
            (pages / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(name, pages / name)
    made = session.posargs[0] if session.posargs else "out/site"
    strict = ("-q", "-n", "-W", "--keep-going")
    session.run("sphinx-build", *strict, "-c", "docs/site", str(pages), made)
    session.log(f"open {made}/docs/site/index.html")


@nox.session
def demo(session: nox.Session) -> None:
    """Four gangs, three sick nodes, one missing member, and a node that comes back: Preflight on a simulated cluster (`-- --json FILE`)."""
    sync(session, "--package", "preflight-e2e")
    environments = Path(session.virtualenv.location).parent / "demo-components"
    for member in DEMO:
        # Not exact: torch, once added, stays.
        install(
            session,
            "uv",
            "sync",
            "--frozen",
            "--inexact",
            "--no-dev",
            "--package",
            member,
            into=environments / member,
        )
    add_torch(session, environments / "check-nccl-allreduce")
    options = ["--environments", str(environments), *session.posargs]
    # It ends its processes and removes its files: that may take longer than nox waits of itself.
    session.run(
        "python", "-m", "preflight_e2e.demo", *options, interrupt_timeout=30, terminate_timeout=30
    )


def add_torch(session: nox.Session, environment: Path, release: str = TORCHES[-1]) -> None:
    """Torch for check-nccl-allreduce: a wheel of PIP_FIND_LINKS, else the CPU build, else the lock's. Says which, and how large."""
    probe = "import importlib.metadata as m; print(m.version('torch'), m.version('numpy'))"
    there = session.run_install(
        str(environment / "bin/python"),
        "-c",
        probe,
        silent=True,
        log=False,
        external=True,
        success_codes=[0, 1],
    )
    if there and "Traceback" not in there:
        session.log(f"torch {there.split()[0]} is there already")
        return
    needs = [f"torch=={release}.*", "numpy>=2,<3"]
    pip = ["uv", "pip", "install", "--python", str(environment)]
    folders = [
        Path(place)
        for place in os.environ.get("PIP_FIND_LINKS", "").split()
        if Path(place).is_dir()
    ]
    wheels = [
        wheel for folder in folders for wheel in sorted(folder.glob(f"torch-{release}.*.whl"))
    ]
    choices = [
        (f"{wheel} of PIP_FIND_LINKS, {wheel.stat().st_size / 1e6:.0f} MB", [str(wheel), needs[1]])
        for wheel in wheels
    ]
    choices.append(
        ("the CPU build, 190 MB to download unless uv has it", ["--torch-backend", "cpu", *needs])
    )
    quick = {"UV_HTTP_TIMEOUT": "5", "UV_HTTP_RETRIES": "0"}
    for what, words in choices:
        trial = session.run_install(
            *pip, "--dry-run", *words, silent=True, log=False, env=quick, success_codes=range(256)
        )
        if trial and "Would install" in trial:
            session.log(f"torch: {what}")
            session.run_install(*pip, *words)
            return
    if release != TORCHES[-1]:
        session.error(
            f"torch {release}: no wheel in PIP_FIND_LINKS, and the index of CPU builds does not answer or has none."
        )
    session.log(
        "torch: the lock's, with CUDA, 2.8 GB to download unless uv has it (no wheel in PIP_FIND_LINKS, and the index of CPU builds does not answer)"
    )
    lock = ["--frozen", "--inexact", "--package", "check-nccl-allreduce", "--extra", "torch"]
    install(session, "uv", "sync", *lock, into=environment)


MEASURED = {
    "webhook": ("--server", "bin/preflight-webhook", ("preflight-webhook",)),
    "admission": ("--server", "bin/preflight-webhook", ("preflight-webhook",)),
    "mnnvl": ("--server", "bin/preflight-mnnvl", ("preflight-mnnvl",)),
    "compute-domain": ("--programs", "bin", ("preflight-computedomain",)),
    "appwrapper": ("--program", "bin/preflight-appwrapper", ("preflight-appwrapper",)),
    "appwrapper-trace": ("--program", "bin/preflight-appwrapper", ("preflight-appwrapper",)),
    "gpu-scheduler": ("--server", "bin/preflight-gpu-scheduler", ("preflight-gpu-scheduler",)),
    "checks": ("--programs", "", ("check-dcgm", "check-nccl-loopback")),
}
"""By bench: the option that says where the measured programs are, where they are in their
environment (empty: in the folder of all), and whose they are. They are installed as in their
images, since what lies beside a program is looked through when it imports."""


@nox.session
def bench(session: nox.Session) -> None:
    """Measure: `-- webhook` (`--peer`: beside another), `-- admission`, `-- gang`, `-- localisation` (simulated gangs), `-- verdict` (real checks), `-- gang-scale` (thousands of members), `-- checks` (how soon they start their tools), `-- mnnvl`, `-- compute-domain`, `-- appwrapper`, `-- appwrapper-trace`, `-- gpu-scheduler` (of these systems), `-- soak` (all of them for two hours by their clocks: memory, idle requests); `--json FILE`."""
    chosen = "".join(session.posargs[:1])
    if chosen == "verdict":
        sync(session, "--inexact", "--all-packages", "--group", "bench")  # torch, once added, stays
        add_torch(session, Path(session.virtualenv.location))
    else:
        sync(session, "--all-packages", "--group", "bench")
    measured = []
    if chosen in MEASURED:
        option, place, members = MEASURED[chosen]
        components = Path(session.virtualenv.location).parent / "bench-components"
        for member in members:
            install_as_in_its_image(session, member, components / member)
        measured = [option, str(components / members[0] / place if place else components)]
    session.run(
        "python", "-m", "preflight_e2e.bench", *session.posargs, *measured, env=without_pythonpath()
    )


@nox.session(name="real-dcgm")
def real_dcgm(session: nox.Session) -> None:
    """check-dcgm against NVIDIA's own engine, diagnostic and dcgmi, compiled once: no GPU, no part of the gate (`-- --source dcgm=CLONE`; PREFLIGHT_RECORD=1 writes recordings)."""
    brings = ("preflight_e2e.real_dcgm", *session.posargs)
    beside(session, brings, "check-dcgm", "test_real_engine.py", "PREFLIGHT_REAL_DCGM")


@nox.session(name="real-grove")
def real_grove(session: nox.Session) -> None:
    """preflight-mnnvl beside Grove's own operator on a real API server, compiled once: no part of the gate (`-- --source grove=CLONE`; KUBEBUILDER_ASSETS)."""
    brings = ("preflight_e2e.real_grove", *session.posargs)
    beside(session, brings, "preflight-mnnvl", "test_real_grove.py", "PREFLIGHT_REAL_GROVE")


@nox.session(name="real-cert-manager")
def real_cert_manager(session: nox.Session) -> None:
    """The webhooks' certificates by the real cert-manager, compiled once: no part of the gate (`-- --source cert-manager=CLONE`; KUBEBUILDER_ASSETS)."""
    brings = ("preflight_e2e.real_cert_manager", *session.posargs)
    beside(session, brings, "preflight-e2e", "test_real_cert_manager.py", "PREFLIGHT_CERT_MANAGER")


@nox.session(name="real-kueue")
def real_kueue(session: nox.Session) -> None:
    """AppWrappers beside the real Kueue, compiled once from Go modules: no part of the gate (KUBEBUILDER_ASSETS)."""
    brings = ("preflight_e2e.assets", "kueue")
    beside(session, brings, "preflight-appwrapper", "test_real_kueue.py", "PREFLIGHT_KUEUE")


@nox.session(name="real-appwrapper")
def real_appwrapper(session: nox.Session) -> None:
    """preflight-appwrapper and AppWrapper's own controller, a program compiled from its public source (1.2), on the same scenarios: no part of the gate (`-- PROGRAM`; KUBEBUILDER_ASSETS)."""
    if len(session.posargs) != 1 or not Path(session.posargs[0]).is_file():
        session.error(
            "name the program of AppWrapper's own controller: nox -s real-appwrapper -- PROGRAM"
        )
    sync(session, "--package", "preflight-appwrapper", "--group", "test")
    tests = "packages/preflight-appwrapper/tests/test_real_appwrapper.py"
    session.run("pytest", "-n", "0", tests, env={"PREFLIGHT_APPWRAPPER": session.posargs[0]})


def beside(
    session: nox.Session, brings: Sequence[str], member: str, tests: str, variable: str
) -> None:
    """Run a member's tests beside the program of others whose place `variable` says; the module
    `brings`, with its arguments, prints that place last.
    """
    sync(session, "--package", "preflight-e2e")
    printed = str(session.run("python", "-m", *brings, silent=True))
    place = printed.strip().splitlines()[-1].removeprefix(f"export {variable}=")
    sync(session, "--package", member, "--group", "test")
    session.run("pytest", "-n", "0", f"{MEMBERS[member]}/tests/{tests}", env={variable: place})


@nox.session
def assets(session: nox.Session) -> None:
    """A real API server for tests: etcd and kube-apiserver of both Kubernetes versions, compiled once from Go modules unless KUBEBUILDER_ASSETS names them; prints what to set (`-- promtool crane helm kueue`: these instead)."""
    sync(session, "--package", "preflight-e2e")
    session.run("python", "-m", "preflight_e2e.assets", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Hostile objects through a real API server into the running services (`-- --seconds 60`; KUBEBUILDER_ASSETS)."""
    sync(session, "--package", "preflight-e2e")
    options = []
    for option, member in (("--webhook", "preflight-webhook"), ("--gang", "preflight-gang")):
        if option not in session.posargs:
            folder = Path(session.virtualenv.location).parent / "fuzz-components" / member
            install_as_in_its_image(session, member, folder)
            options += [option, str(folder / "bin" / member)]
    session.run(
        "python",
        "-m",
        "preflight_e2e.fuzz",
        *options,
        *session.posargs,
        env=without_pythonpath(),
        interrupt_timeout=30,
    )


@nox.session(venv_backend="none")
def size(session: nox.Session) -> None:
    """Count lines by member and part, beside a revision's: `nox -s size -- REVISION` (last tag)."""
    # Generated files count nowhere; of the charts' templates, lines that are not blank.
    tags = subprocess.check_output(["git", "tag", "--sort=-creatordate"], text=True)
    before = session.posargs[0] if session.posargs else (tags.split() or ["HEAD"])[0]
    new, old = (_lines(revision) for revision in ("", before))
    print(f"{'':26}{'src':>16}{'tests':>16}{'charts':>16}   (in brackets: since {before})")
    parts = ("src", "tests", "charts")
    for row in [*sorted({name for name, _ in new | old}), "all"]:
        sums = [
            [sum(n for at, n in lines.items() if at[1] == part and row in (at[0], "all"))
             for lines in (new, old)]
            for part in parts
        ]  # fmt: skip
        print(f"{row:26}" + "".join(f"{f'{now} ({now - was:+})':>16}" for now, was in sums))


def _lines(revision: str) -> dict[tuple[str, str], int]:
    """Lines of each member's parts at a revision, "" the working tree's."""
    where = ["--cached"] if not revision else [revision]
    counted: dict[tuple[str, str], int] = {}
    for pattern, files in (
        ("", ["*.py"]),
        (r"\S", ["charts/*/templates/*", "*/charts/*/templates/*"]),
    ):
        out = subprocess.run(
            ["git", "grep", "-c", "-e", pattern, *(where if revision else []), "--", *files],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        for line in out.splitlines():
            name, _, number = line.removeprefix(f"{revision}:" if revision else "").rpartition(":")
            path = Path(name)
            if "generated" in name.replace("_generated", "generated") or name.count("/") < 2:
                continue
            if files[0] == "*.py":
                member = path.parts[1] if path.parts[0] == "packages" else path.parts[0]
                part = "src" if "/src/" in name else "tests"
            else:
                member, part = path.parts[path.parts.index("templates") - 1], "charts"
            counted[member, part] = counted.get((member, part), 0) + int(number)
    return counted


def install_as_in_its_image(session: nox.Session, member: str, into: Path) -> None:
    """A member with what it needs and no other packages beside it, and bytecode made beforehand."""
    ours = [f"--reinstall-package={name}" for name in ("preflight-proto", "preflight-kube", member)]
    how = ["--frozen", "--no-dev", "--no-editable", "--compile-bytecode", "--all-extras"]
    beside = {"PYTHONPYCACHEPREFIX": None}  # where its programs look, as in its image
    install(session, "uv", "sync", *how, "--package", member, *ours, into=into, env=beside)


def without_pythonpath() -> dict[str, str | None]:
    """For programs that are installed as in their images: what is beside them is all that they see,
    their bytecode too.
    """
    elsewhere = {"PYTHONPYCACHEPREFIX": None, "PYTHONDONTWRITEBYTECODE": WITHOUT_BYTECODE}
    return {"PYTHONPATH": None, **(elsewhere if WITHOUT_BYTECODE else {})}


@nox.session(venv_backend="none")
def clean(session: nox.Session) -> None:
    """Remove what the sessions left in the checkout (environments and caches)."""
    for path in (
        ".nox",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".hypothesis",
        ".import_linter_cache",
        "sbom",
        "fuzz",
    ):
        shutil.rmtree(path, ignore_errors=True)
