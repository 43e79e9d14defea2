"""The page that every check runs through: settings → probe → events → report → result → exit.

    CHECK = Check(name="dcgm-diag", condition="DcgmDiagnostic", component="GPU", settings=Settings, probe=probe)

    def main() -> NoReturn:
        run_main(CHECK)

Whatever happens inside the probe ends as an outcome: an unexpected exception is inconclusive ``INTERNAL_ERROR``, SIGTERM
is inconclusive ``TERMINATED``, a spent deadline is inconclusive ``CHECK_TIMEOUT``. None of them is a hardware verdict.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, NoReturn, TypeVar

import anyio

from ..durations import format_duration
from ..names import ENV_CHECK_TIMEOUT
from ..result import VERSION, Result, encode_result
from ..roster import Roster
from . import child, gpus, report
from .events import events
from .gang import Gang, GangSettings
from .kit import KitSettings
from .settings import SettingsError, manual, read
from .verdict import Inconclusive, Outcome, Skipped, Verdict

__all__ = ["Check", "Run", "conduct", "run_main"]

S = TypeVar("S")

EXIT_PASSED: Final = 0
EXIT_MISCONFIGURED: Final = 2
PEER_FAILED: Final = "PEER_FAILED"
"""The code of a check that another member of its gang has ended."""

GANG_MARGIN: Final = 60.0
"""Seconds beyond GANG_TIMEOUT after which even a wait that hangs ends."""


@dataclass(frozen=True, kw_only=True)
class Check(Generic[S]):
    """What makes a check: its names, its settings class and its probe.

    ``condition`` is the base of the events' checkName and ``component`` their componentClass; ``timeout`` (seconds) and
    ``on_inconclusive`` hold where ``CHECK_TIMEOUT`` and ``ON_INCONCLUSIVE`` are not set. ``gang`` says that the probe asks
    for :meth:`Run.roster`.
    """

    name: str
    condition: str
    component: str
    settings: type[S]
    probe: Callable[[Run[S]], Awaitable[Verdict]]
    timeout: float = 300.0
    on_inconclusive: str = "block"
    gang: bool = False
    about: str = ""


class Run(Generic[S]):
    """One run, as the probe sees it."""

    def __init__(
        self,
        check: Check[S],
        settings: S,
        kit: KitSettings,
        *,
        gang: GangSettings | None,
        say: Callable[[str], None],
        started: float,
    ) -> None:
        self.check, self.settings, self.kit = check, settings, kit
        self._say = say
        self._gang = Gang(gang, say, lambda: time.monotonic() - started) if gang is not None else None
        self.scope = anyio.CancelScope()
        self.stopped = False
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
        """End the probe now; the run is then inconclusive ``TERMINATED``."""
        self.stopped = True
        self.scope.cancel()

    def progress(self, text: str) -> None:
        """One plain line for ``kubectl logs``."""
        self._say(text)

    @property
    def gang(self) -> Gang:
        """The gang controller's answers. Raises :class:`RuntimeError` unless the check says ``gang=True``."""
        if self._gang is None:
            raise RuntimeError(f"the check {self.check.name} asks for a roster but does not say gang=True")
        return self._gang

    async def roster(self) -> Roster:
        """The sealed roster to join; see :meth:`.gang.Gang.sealed` for what it raises.

        ``CHECK_TIMEOUT`` starts anew when this returns: waiting for the others is ``GANG_TIMEOUT``'s. May be asked again after
        :meth:`roster_changed`, and then waits for a newer generation.
        """
        self.restart_deadline(self.gang.patience + GANG_MARGIN)
        roster = await self.gang.sealed()
        self.restart_deadline(self.kit.check_timeout or self.check.timeout)
        return roster

    async def roster_changed(self, roster: Roster) -> Roster:
        """Returns, with the newer answer, once ``roster`` no longer holds; see :meth:`.gang.Gang.changed`."""
        return await self.gang.changed(roster)

    async def gpus(self) -> tuple[gpus.Gpu, ...]:
        """The GPUs of this container. A wrong count or none at all ends the run inconclusive."""
        try:
            found, source = await gpus.find(
                lambda argv, patience: self.command(argv, timeout=patience), self.kit.expected_gpus
            )
        except gpus.GpusUnavailable as error:
            raise Inconclusive(error.code, error.reason) from None
        self.progress(f"{source} lists {len(found)} GPU(s), {found[0].name}: {', '.join(gpu.uuid for gpu in found)}")
        return found

    async def command(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        max_output: int = child.MAX_OUTPUT,
        terminate: signal.Signals = signal.SIGTERM,
    ) -> child.Completed:
        """Run a tool; see :func:`preflight_proto.check.child.run`. An uncaught ToolMissing ends the run inconclusive."""
        return await child.run(argv, timeout=timeout, env=env, max_output=max_output, terminate=terminate)


def run_main(check: Check[Any]) -> NoReturn:
    """Run ``check`` as a process: arguments, environment, signals, exit status."""
    if any(argument in {"-h", "--help"} for argument in sys.argv[1:]):
        print(help_text(check))
        sys.exit(EXIT_PASSED)
    if len(sys.argv) > 1:
        print(
            f"preflight-{check.name}: takes no arguments, found {sys.argv[1]!r}; it is set by variables, see --help",
            file=sys.stderr,
        )
        sys.exit(EXIT_MISCONFIGURED)
    status = anyio.run(conduct, check, dict(os.environ))
    # Interpreter shutdown would join threads that hang in a driver call: everything is written, so leave at once.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def conduct(check: Check[Any], environ: Mapping[str, str]) -> int:
    """The whole run; returns the exit status."""
    started = time.monotonic()
    try:
        settings, kit, gang = _settings(check, environ)
    except SettingsError as error:
        verdict = Verdict(Outcome.MISCONFIGURED, "MISCONFIGURED", " ".join(error.problems))
        for problem in error.problems:
            _line(f"misconfigured: {problem}")
        _write_result(
            check, verdict, environ.get("PREFLIGHT_RESULT_PATH", ""), gated=True, seconds=time.monotonic() - started
        )
        _line(f"{check.name}: misconfigured, {len(error.problems)} problem(s) above; exit {EXIT_MISCONFIGURED}")
        return EXIT_MISCONFIGURED
    run = Run(check, settings, kit, gang=gang, say=_line, started=started)
    async with anyio.create_task_group() as group:
        # Signals stop the probe and nothing else: the report has its budget within the kubelet's grace period.
        await group.start(_stop_on_signal, run)
        verdict = await _judge(run)
        status = exit_status(check, verdict, kit)
        await report.send(events(check.name, check.condition, check.component, verdict), kit, _line)
        _write_result(check, verdict, kit.result_path, gated=not kit.observe, seconds=time.monotonic() - started)
        group.cancel_scope.cancel()
    observed = " (observe: not gated)" if kit.observe else ""
    _line(f"{check.name}: {verdict.outcome} {verdict.code}: {verdict.reason} exit {status}{observed}")
    return status


def exit_status(check: Check[Any], verdict: Verdict, kit: KitSettings) -> int:
    """passed and skipped 0, failed 1, misconfigured 2, inconclusive by ON_INCONCLUSIVE; observe is always 0.

    What is 1 may be another status by ``EXIT_CODE_*``: a Job's podFailurePolicy can tell them apart.
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


def _settings(check: Check[S], environ: Mapping[str, str]) -> tuple[S, KitSettings, GangSettings | None]:
    problems: list[str] = []
    read_all: list[Any] = []
    for cls in _classes(check):
        try:
            read_all.append(read(cls, environ))
        except SettingsError as error:
            problems += error.problems
    if problems:
        raise SettingsError(problems)
    return read_all[0], read_all[1], read_all[2] if check.gang else None


def _classes(check: Check[Any]) -> list[type[Any]]:
    return [check.settings, KitSettings, *([GangSettings] if check.gang else [])]


async def _stop_on_signal(run: Run[Any], *, task_status: anyio.abc.TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            run.stop()


async def _judge(run: Run[Any]) -> Verdict:
    """The probe's verdict, or what stands in for it."""
    verdict = None
    with run.scope:
        verdict = await _guarded(run)
    if verdict is not None:
        return verdict
    if run.stopped:
        return Verdict.inconclusive("TERMINATED", "the check was told to stop before it could judge.")
    allowed = format_duration(round(run.allowed, 3))
    hint = f"raise {ENV_CHECK_TIMEOUT} if this hardware is just slow to test"
    return Verdict.inconclusive("CHECK_TIMEOUT", f"no verdict within {allowed}; {hint}.")


async def _guarded(run: Run[Any]) -> Verdict:
    try:
        return await run.check.probe(run)
    except Exception as error:
        return _by_exception(error)


def _by_exception(error: Exception) -> Verdict:
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]  # a task group wraps what its only failing task raised
    if isinstance(error, Inconclusive):
        return Verdict.inconclusive(error.code, error.reason)
    if isinstance(error, Skipped):
        return Verdict(Outcome.SKIPPED, error.code, error.reason)
    if isinstance(error, child.ToolMissing):
        return Verdict.inconclusive(
            "TOOL_MISSING", f"{error.tool} is not on PATH in this image; build the image on a base that has it."
        )
    if os.environ.get("PREFLIGHT_LOG") == "debug":
        traceback.print_exception(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    at = f"{Path(where.filename).name}:{where.lineno}"
    what = f"unexpected {type(error).__name__} at {at} ({error}); set PREFLIGHT_LOG=debug for the whole story."
    return Verdict.inconclusive("INTERNAL_ERROR", what)


def _write_result(check: Check[Any], verdict: Verdict, path: str, *, gated: bool, seconds: float) -> None:
    result = Result(
        v=VERSION,
        check=check.name,
        outcome=verdict.outcome.value,
        code=verdict.code,
        gated=gated,
        duration=round(seconds, 3),
        subject=verdict.subject,
        reason=verdict.reason,
        measured=verdict.measured,
        expected=verdict.expected,
    )
    try:
        Path(path or "/dev/termination-log").write_bytes(encode_result(result))
    except OSError as error:
        _line(f"result: {path} cannot be written ({error.strerror}); the exit status still says the verdict")


def _line(text: str) -> None:
    print(" ".join(text.split()), flush=True)


def help_text(check: Check[Any]) -> str:
    """The manual of a check: every variable, its default, and the exit codes."""
    lines = [
        f"preflight-{check.name}: {check.about or 'a preflight check'}",
        "",
        "Runs as an init container and takes no arguments. Variables:",
        "",
    ]
    # A later class may ask more strictly for a variable of an earlier one: its word is the manual's.
    rows = {row[0]: row for cls in _classes(check) for row in manual(cls)}
    for env, meaning, default in rows.values():
        lines += [f"  {env}", f"      {meaning}; default: {default}"]
    inconclusive = f"inconclusive (could not judge) exits 1 under ON_INCONCLUSIVE=block and 0 under allow; here {check.on_inconclusive}"
    lines += [
        "",
        "Exit status: 0 passed or skipped, 1 failed, 2 misconfigured;",
        f"  {inconclusive}.",
        "  EXIT_CODE_FAILED, EXIT_CODE_PEER_FAILED and EXIT_CODE_INCONCLUSIVE are in place of the 1 of each.",
        "The last line printed is the verdict; PREFLIGHT_LOG=debug adds the traceback of an internal error.",
    ]
    return "\n".join(lines)
