"""The page that every check runs through: settings → probe → events → report → result → exit.

    CHECK = Check(name="dcgm-diag", condition="DcgmDiagnostic", component="GPU", settings=Settings,
    probe=probe)

    def main() -> NoReturn:
        run_main(CHECK)

Whatever happens inside the probe ends as an outcome: an unexpected exception is inconclusive
``INTERNAL_ERROR``, SIGTERM is inconclusive ``TERMINATED``, a spent deadline is inconclusive
``CHECK_TIMEOUT``. None of them is a hardware verdict. Whether stdout, stderr, the result's file or
the connector take what they are given changes neither the verdict nor the exit status.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

import anyio

from .. import nvml, sigterm, time_limits
from ..durations import format_duration
from ..names import (
    ENV_CHECK_TIMEOUT,
    ENV_ON_INCONCLUSIVE,
    ENV_RESULT_PATH,
    RESULT_PATH,
    container_name,
)
from ..printable import printable
from ..program import version_of
from . import child, gpus, log, processes, report
from .child import Spent
from .events import EventDraft, cleared, events
from .gang import GangMembership, GangSettings
from .kit import KitSettings, observes
from .settings import SettingsError, read, schema
from .verdict import CAMEL_CASE, Failed, Inconclusive, Outcome, Skipped, Verdict

if TYPE_CHECKING:
    from ..roster import Roster

S = TypeVar("S")

ABOUT: Final = "a preflight check"
OBSERVED: Final = " (observe: not gated)"
EXIT_PASSED: Final = 0
EXIT_MISCONFIGURED: Final = 2
PEER_FAILED: Final = "PEER_FAILED"
"""The code of a check that another member of its gang has ended."""

GANG_MARGIN: Final = 60.0
"""Seconds beyond GANG_TIMEOUT after which even a wait that hangs ends."""

LAST_REPORT: Final = 1.0
"""Seconds that the report may take once the check is asked to stop: some pods have little more
until SIGKILL.
"""
LAST_SWEEP: Final = 1.0
"""Seconds to see the end of what tools have left behind."""


@dataclass(frozen=True, kw_only=True)
class Check(Generic[S]):
    """What makes a check: its names, its settings class and its probe.

    ``condition`` is the base of the events' checkName and ``component`` the componentClass of those
    about the node (of those about a GPU it is ``GPU``);
    ``timeout`` (seconds) and ``on_inconclusive`` hold where ``CHECK_TIMEOUT`` and
    ``ON_INCONCLUSIVE`` are not set (``timeout_said``: where the former depends on other settings).
    ``gang`` says that the probe asks for :meth:`Run.roster`. ``tool_variables``: regular
    expressions of further variables that its tools and libraries read; what else is set for it in a
    configuration is a mistake. ``gpu_tests``: the tests of those subjects that are GPUs; a run that
    passes clears each of them on each GPU of the pod, and a finding about another one is a mistake,
    as nothing would ever clear it. None: the probe says all that itself, in the ``clears`` of its
    verdicts. ``later``: modules that are needed once a tool has answered, which are loaded while
    the first one works. Raises :class:`ValueError` for names that nobody could read back.
    """

    name: str
    condition: str
    component: str
    settings: type[S]
    probe: Callable[[Run[S]], Awaitable[Verdict]]
    timeout: float = time_limits.CHECK
    on_inconclusive: str = "block"
    gang: bool = False
    about: str = ""
    tool_variables: tuple[str, ...] = ()
    timeout_said: str = ""
    gpu_tests: tuple[str, ...] | None = ()
    later: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", self.name):
            raise ValueError(
                f"a check's name has lower-case letters, digits and '-', as pcie-width; got {self.name!r}"
            )
        for what, word in [
            ("condition", self.condition),
            *(("GPU test", test) for test in self.gpu_tests or ()),
        ]:
            if not CAMEL_CASE.fullmatch(word):
                raise ValueError(f"a check's {what} is CamelCase, as PcieWidth; got {word!r}")


class Run(Generic[S]):
    """One run, as the probe sees it."""

    def __init__(
        self,
        check: Check[S],
        settings: S,
        kit: KitSettings,
        *,
        say: Callable[[str], None],
        started: float,
    ) -> None:
        self.check, self.settings, self.kit = check, settings, kit
        self._say = say
        self._gang = (
            GangMembership(kit, say, lambda: time.monotonic() - started)
            if isinstance(kit, GangSettings)
            else None
        )
        self.scope = anyio.CancelScope()
        self.reporting = anyio.CancelScope()
        self.stopped = False
        self.present: tuple[str, ...] = ()
        self.tools = Spent(time.monotonic)
        self.restart_deadline(kit.check_timeout or check.timeout)

    @property
    def deadline(self) -> float:
        """When the time is up, on the clock of :func:`anyio.current_time`."""
        return self.scope.deadline

    def restart_deadline(self, seconds: float) -> None:
        """Give the probe ``seconds`` from now: for checks whose clock starts only after a queue."""
        self.scope.deadline = anyio.current_time() + seconds
        self.allowed = seconds

    def stop(self) -> None:
        """End the probe now, which is then inconclusive ``TERMINATED``; a report that is under way
        ends soon, its verdict stands.
        """
        self.stopped = True
        self.scope.cancel()
        self.reporting.deadline = min(self.reporting.deadline, anyio.current_time() + LAST_REPORT)

    def progress(self, text: str) -> None:
        """One plain line for ``kubectl logs``."""
        self._say(text)

    @property
    def gang(self) -> GangMembership:
        """The gang controller's answers. Raises :class:`RuntimeError` unless the check says
        ``gang=True``.
        """
        if self._gang is None:
            raise RuntimeError(
                f"the check {self.check.name} asks for a roster but does not say gang=True"
            )
        return self._gang

    async def roster(self) -> Roster:
        """The sealed roster to join; see :meth:`.gang.GangMembership.sealed` for what it raises.

        ``CHECK_TIMEOUT`` starts again when this returns: waiting for the others is
        ``GANG_TIMEOUT``'s. May be asked again after :meth:`roster_changed`, and then waits for a
        newer generation.
        """
        self.restart_deadline(self.gang.patience + GANG_MARGIN)
        roster = await self.gang.sealed()
        self.restart_deadline(self.kit.check_timeout or self.check.timeout)
        return roster

    async def roster_changed(self, roster: Roster) -> Roster:
        """Returns, with the newer answer, once ``roster`` no longer holds; see
        :meth:`.gang.GangMembership.changed`.
        """
        return await self.gang.changed(roster)

    async def gpus(self) -> tuple[gpus.Gpu, ...]:
        """The GPUs of this container.

        What it raises ends the run, and a probe need not catch it: :class:`.verdict.Failed`
        ``GPU_MISSING`` where an allotted GPU is not there (fatal where it is lost),
        :class:`.verdict.Skipped` ``GPU_SHARED`` where one is handed out twice,
        :class:`.verdict.Inconclusive` ``NO_GPU`` or ``GPU_COUNT`` where they cannot be listed or
        are too many. Slices of GPUs come with ``mig`` set. A run that passes clears what
        ``GPU_MISSING`` raised about the GPUs returned here.
        """
        listed, source = await gpus.find(self.query, self.kit.expected_gpus)
        self.present = tuple(gpu.uuid for gpu in listed)
        self.progress(
            f"{source} lists {len(listed)} GPU(s), {listed[0].name}: {', '.join(gpu.uuid for gpu in listed)}"
        )
        return listed

    async def command(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        max_output: int = child.MAX_OUTPUT,
        terminate: signal.Signals | Callable[[float], signal.Signals] = signal.SIGTERM,
    ) -> child.Completed:
        """Run a tool; see :func:`preflight_proto.check.child.run`. An uncaught ToolMissing ends the
        run misconfigured.
        """
        if not self.tools.runs:  # called back once the tool has started
            work = threading.Thread(target=_load, args=self.check.later, daemon=True)
            asyncio.get_running_loop().call_soon(work.start)
        with self.tools:
            return await child.run(
                argv, timeout=timeout, env=env, max_output=max_output, terminate=terminate
            )

    async def query(self, argv: Sequence[str], timeout: float) -> child.Completed:
        """:meth:`command`, as those take it who ask a tool a question."""
        return await self.command(argv, timeout=timeout)


def _load(*modules: str) -> None:
    with suppress(ImportError):  # who needs it says so
        for module in ("preflight_proto.result", *modules):
            import_module(module)


def run_main(check: Check[Any]) -> NoReturn:
    """Run ``check`` as a process: arguments, environment, signals, exit status; nothing that its
    tools started outlives it.

    SIGTERM counts from here on; a program that calls :func:`preflight_proto.sigterm.remember`
    before its imports takes earlier ones too.
    """
    sigterm.remember()
    log.open_closed()
    if any(argument in {"-h", "--help"} for argument in sys.argv[1:]):
        log.write(1, help_text(check) + "\n")
        os._exit(EXIT_PASSED)
    if sys.argv[1:] == ["--version"]:
        log.write(1, f"{container_name(check.name)} {version_of(check.probe.__module__)}\n")
        os._exit(EXIT_PASSED)
    if sys.argv[1:] == ["--schema"]:
        log.write(1, described(check))
        os._exit(EXIT_PASSED)
    environ = dict(os.environ)
    if len(sys.argv) > 1:
        problem = f"takes no arguments, found {sys.argv[1]!r}; it is set by variables, see --help (--version: which one this is)"
        log.complain(f"preflight-{check.name}: {problem}")
        os._exit(misconfigured(check, [f"{problem}."], environ, 0.0))
    processes.adopt_orphans()
    nvml.start(log.echo)
    try:
        status = anyio.run(conduct, check, environ)
    except Exception as error:  # of the kit itself: the probe's own end in conduct
        status = _broken(check, error, environ)
    processes.end_all(LAST_SWEEP)
    for stream in (sys.stdout, sys.stderr):
        # what the probe's own libraries printed; None where it was closed
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    # Interpreter shutdown would join threads that hang in a driver call, and fail on streams that
    # cannot be flushed: leave at once.
    os._exit(status)


async def conduct(check: Check[Any], environ: Mapping[str, str]) -> int:
    """The whole run; returns the exit status."""
    started = time.monotonic()
    try:
        settings, kit = _settings(check, environ)
    except SettingsError as error:
        return misconfigured(check, error.problems, environ, time.monotonic() - started)
    run = Run(check, settings, kit, say=log.echo, started=started)
    # Signals stop the probe and hurry the report, and nothing else. The handler stays to the end:
    # default ones would end the process.
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_in_callback)
    sigterm.notify(lambda: loop.call_soon_threadsafe(run.stop))
    try:
        verdict = await _judge(run)
        status = exit_status(check, verdict, kit)
        write = partial(
            report.write_result, check.name, verdict, kit.result_path, gated=not kit.observe
        )
        seconds = time.monotonic() - started
        # Before the report: whatever a connector makes of that, the result is there.
        write(seconds=seconds)
        if trouble := await _report(
            run, events(check.name, check.condition, check.component, verdict)
        ):
            write(seconds=seconds, unreported=trouble)
    finally:
        sigterm.notify(None)
    if run.tools.runs:
        whole = time.monotonic() - started
        log.echo(
            f"took {whole:.3f} s; {run.tools.runs} run(s) of its tools: {run.tools.seconds:.3f} s of that"
        )
    _log_verdict(check, verdict, status, observe=kit.observe)
    return status


def misconfigured(
    check: Check[Any], problems: Sequence[str], environ: Mapping[str, str], seconds: float
) -> int:
    """Say that the check cannot run as it is set; returns the exit status. Nothing is known but the
    variables as they are.
    """
    observe = observes(environ)
    status = EXIT_PASSED if observe else EXIT_MISCONFIGURED
    for problem in problems:
        log.echo(f"misconfigured: {problem}")
    verdict = Verdict(Outcome.MISCONFIGURED, "MISCONFIGURED", " ".join(problems))
    report.write_result(
        check.name, verdict, _result_path(environ), gated=not observe, seconds=seconds
    )
    log.echo(
        f"{check.name}: misconfigured, {len(problems)} problem(s) above; exit {status}{OBSERVED if observe else ''}"
    )
    return status


def _broken(check: Check[Any], error: Exception, environ: Mapping[str, str]) -> int:
    """The kit itself failed: nothing is reported, and the exit status is that of an inconclusive
    check.
    """
    verdict, observe = _by_exception(check.name, error), observes(environ)
    blocks = (
        environ.get(ENV_ON_INCONCLUSIVE, "").strip() or check.on_inconclusive
    ) == "block" and not observe
    report.write_result(check.name, verdict, _result_path(environ), gated=not observe, seconds=0.0)
    _log_verdict(check, verdict, int(blocks), observe=observe)
    return int(blocks)


def _result_path(environ: Mapping[str, str]) -> str:
    return environ.get(ENV_RESULT_PATH, "").strip() or RESULT_PATH


def _log_verdict(check: Check[Any], verdict: Verdict, status: int, *, observe: bool) -> None:
    text = printable(f"{verdict.outcome} {verdict.code}: {verdict.reason}", log.MAX_LINE // 2)
    end = "" if text.endswith((".", "!", "?", "…")) else "."
    log.echo(f"{check.name}: {text}{end} exit {status}{OBSERVED if observe else ''}")


def _in_callback(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """One line for what goes wrong in a callback of the event loop, which is nobody's to catch.

    Nothing for InvalidStateError: a listener that is closed while somebody connects
    (python/cpython, `_sock_accept`).
    """
    error = context.get("exception")
    if isinstance(error, asyncio.InvalidStateError):
        return
    what = (
        f"{type(error).__name__}: {error}" if error is not None else str(context.get("message", ""))
    )
    log.echo(
        printable(f"unexpected in the event loop: {what}; the verdict is unchanged", log.MAX_LINE)
    )


async def _report(run: Run[Any], batch: list[EventDraft]) -> str:
    """Send the events; what goes wrong with that is a line in the log, and its first words are
    returned.
    """
    answer: str | None = None
    if run.stopped:
        run.reporting.deadline = anyio.current_time() + LAST_REPORT
    with run.reporting:
        try:
            answer = await report.send(batch, run.kit, log.echo)
        except Exception as error:
            answer = f"platform connector: the report failed ({type(error).__name__}: {error}); the verdict is unchanged"
            log.echo(answer)
    if run.reporting.cancelled_caught:
        answer = (
            "platform connector: no answer before the check had to stop; the verdict is unchanged"
        )
        log.echo(answer)
    return re.split("[;,] ", answer or "", maxsplit=1)[0]


def exit_status(check: Check[Any], verdict: Verdict, kit: KitSettings) -> int:
    """passed and skipped 0, failed 1, misconfigured 2, inconclusive by ON_INCONCLUSIVE; observe is
    always 0.

    What is 1 may be another status by ``EXIT_CODE_*``: a Job's podFailurePolicy can tell them
    apart.
    """
    if kit.observe:
        return EXIT_PASSED
    if verdict.outcome is Outcome.INCONCLUSIVE:
        if (kit.on_inconclusive or check.on_inconclusive) != "block":
            return EXIT_PASSED
        return kit.exit_peer_failed if verdict.code == PEER_FAILED else kit.exit_inconclusive
    return {Outcome.FAILED: kit.exit_failed, Outcome.MISCONFIGURED: EXIT_MISCONFIGURED}.get(
        verdict.outcome, EXIT_PASSED
    )


def _settings(check: Check[S], environ: Mapping[str, str]) -> tuple[S, KitSettings]:
    problems: list[str] = []
    read_all: list[Any] = []
    for cls in _classes(check):
        try:
            read_all.append(read(cls, environ, _defaults(check)))
        except SettingsError as error:
            problems += error.problems
    if problems:
        raise SettingsError(list(dict.fromkeys(problems)))
    return read_all[0], read_all[1]


def _classes(check: Check[Any]) -> list[type[Any]]:
    return [check.settings, GangSettings if check.gang else KitSettings]


def _defaults(check: Check[Any]) -> dict[str, str]:
    """Variable → what holds in this check where it is not set."""
    return {
        ENV_CHECK_TIMEOUT: check.timeout_said or format_duration(check.timeout),
        ENV_ON_INCONCLUSIVE: check.on_inconclusive,
    }


async def _judge(run: Run[Any]) -> Verdict:
    """The probe's verdict, or what stands in for it."""
    verdict = None
    with run.scope:
        verdict = await _guarded(run)
    if verdict is not None:
        return cleared(verdict, run.check.gpu_tests, run.present)
    if run.stopped:
        return Verdict.inconclusive(
            "TERMINATED", "the check was asked to stop before it could judge."
        )
    allowed = format_duration(round(run.allowed, 3))
    hint = f"raise {ENV_CHECK_TIMEOUT} if this hardware is just slow to test"
    return Verdict.inconclusive("CHECK_TIMEOUT", f"no verdict within {allowed}; {hint}.")


async def _guarded(run: Run[Any]) -> Verdict:
    try:
        return await run.check.probe(run)
    except Exception as error:
        return _by_exception(run.check.name, error)


def _raised(error: Exception) -> Iterator[Exception]:
    """What the tasks of a group raised, which may be several at once: it alone where it is none."""
    if not isinstance(error, ExceptionGroup):
        yield error
        return
    for each in error.exceptions:
        yield from _raised(each)


def _by_exception(check: str, raised: Exception) -> Verdict:
    """The verdict of what has ended the probe; of several, of one that is a verdict."""
    verdicts = (Failed, Inconclusive, Skipped, child.ToolMissing)
    error = min(
        _raised(raised),
        key=lambda each: next((i for i, t in enumerate(verdicts) if isinstance(each, t)), 9),
    )
    if isinstance(error, Inconclusive):
        return Verdict.inconclusive(error.code, error.reason)
    if isinstance(error, Failed):
        return error.verdict
    if isinstance(error, Skipped):
        return Verdict(Outcome.SKIPPED, error.code, error.reason)
    if isinstance(error, child.ToolMissing):
        what = f"{error} in the image {container_name(check)}; build it as its Dockerfile says."
        return Verdict(Outcome.MISCONFIGURED, "TOOL_MISSING", what)
    if os.environ.get("PREFLIGHT_LOG") == "debug":
        log.complain("".join(traceback.format_exception(raised)))
    where = traceback.extract_tb(error.__traceback__)[-1]
    at = f"{Path(where.filename).name}:{where.lineno}"
    what = f"unexpected {type(error).__name__} at {at} ({error}); set PREFLIGHT_LOG=debug for the whole story."
    return Verdict.inconclusive("INTERNAL_ERROR", what)


def described(check: Check[Any]) -> str:
    """The JSON Schema of the check's variables as indented text; see :func:`.settings.schema`."""
    import json  # a run needs none

    return json.dumps(_schema(check), indent=2, ensure_ascii=False) + "\n"


def _schema(check: Check[Any]) -> dict[str, Any]:
    return schema(
        check.name, check.about or ABOUT, _classes(check), _defaults(check), check.tool_variables
    )


def help_text(check: Check[Any]) -> str:
    """The manual of a check: every variable, its default, and the exit codes."""
    lines = [
        f"preflight-{check.name}: {check.about or ABOUT}",
        "",
        "Runs as an init container and takes no arguments. Variables:",
        "",
    ]
    for env, of in _schema(check)["properties"].items():
        default = of.get("default", "required") or "none"
        lines += [f"  {env}", f"      {of['description']} ({of['x-set']}); default: {default}"]
    inconclusive = f"inconclusive (could not judge) exits 1 under ON_INCONCLUSIVE=block and 0 under allow; here {check.on_inconclusive}"
    lines += [
        "",
        "Exit status: 0 passed or skipped, 1 failed, 2 misconfigured;",
        f"  {inconclusive}.",
        "  EXIT_CODE_FAILED, EXIT_CODE_PEER_FAILED and EXIT_CODE_INCONCLUSIVE are in place of the 1 of each.",
        "The last line printed is the verdict; PREFLIGHT_LOG=debug adds the traceback of an internal error.",
    ]
    return "\n".join(lines)
