"""From a diagnostic document to a verdict about the pod's own GPUs.

The document decides, never the exit status alone. Severity decides what an error means, because a warning prints as
`Fail` in DCGM's JSON; a pass needs a Pass for every GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from preflight_proto.check import NODE, Action, Finding, Outcome, Subject, Verdict

from . import summary
from .catalogue import ENVIRONMENT, HARDWARE, Severity, action_for, canonical_test, known
from .parse import Document, Problem, TestResult

__all__ = ["Request", "by_exit_status", "judge"]

RAN = frozenset({0, 205, 226})
"""Exit statuses of a diagnostic that ran: nothing found, an isolate error (-51), some error (-30)."""

_GPU_FACTS = {
    237: ("DCGM_ST_RESET_REQUIRED", "the driver says that a GPU must be reset", Action.COMPONENT_RESET),
    238: ("DCGM_ST_GPU_IS_LOST", "the driver has lost a GPU", Action.CONTACT_SUPPORT),
}
_INFRASTRUCTURE = {
    203: ("ENGINE_STOPPED", "another client stopped the diagnostic"),
    217: ("ENGINE_BUSY", "another diagnostic is running on this engine"),
    222: ("ENGINE_BUSY", "another client uses the engine"),
    235: ("ENGINE_UNREACHABLE", "the engine cannot be reached"),
    244: ("ENGINE_VERSION", "the engine and this dcgmi do not speak the same version"),
    245: ("ENGINE_TIMEOUT", "the engine did not answer in time"),
}


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked of the engine: ``gpus`` maps the *engine's* id of each of our GPUs to its UUID."""

    level: int
    gpus: Mapping[int, str]
    address: str


def judge(document: Document, status: int, request: Request) -> Verdict:
    """The verdict on ``request.gpus``; never raises."""
    if document.runtime_error is not None:
        return Verdict.inconclusive(
            "DIAG_NOT_RUN",
            f"the engine at {request.address} could not run the diagnostic: {summary.short(document.runtime_error)}.",
        )
    graded = [g for result in document.results if (g := _grade(result, request, document.version)) is not None]
    findings = _unique(g.finding for g in graded if g.finding is not None)
    clears = _clears(document, request)
    reasons = summary.reason(findings, request.level)
    broken = [g for g in graded if g.outcome is Outcome.FAILED]
    unclear = [g for g in graded if g.outcome is Outcome.INCONCLUSIVE]
    if broken:
        worst = next((g for g in broken if g.finding is not None and g.finding.fatal), broken[0])
        assert worst.finding is not None
        subject = worst.finding.subject.gpu_uuid or ""
        return Verdict(Outcome.FAILED, worst.finding.code, reasons, findings, clears, subject)
    if status in _GPU_FACTS:
        return _gpu_fact(status, request)
    if unclear:
        return Verdict.inconclusive(unclear[0].code, unclear[0].reason, findings=_harmless(findings, unclear))
    if status not in RAN:
        return by_exit_status(status, request, summary.short(_first_text(document)))
    missing = sorted(set(request.gpus.values()) - _passed(document, request))
    if missing:
        return Verdict.inconclusive(
            "NO_RESULT",
            f"the engine at {request.address} reported no passed test for {', '.join(missing)}; see the engine's log.",
        )
    if status != 0 and not any(result.problems for result in document.results):
        return Verdict.inconclusive(
            "UNEXPLAINED_STATUS", f"dcgmi exited {status} but its document names no error; see the engine's log."
        )
    return Verdict(Outcome.PASSED, "OK", reasons, findings, clears | {NODE})


def by_exit_status(status: int, request: Request, said: str) -> Verdict:
    """The verdict where there is no document to judge; only a lost GPU or a required reset is about hardware."""
    if status in _GPU_FACTS:
        return _gpu_fact(status, request)
    code, what = _INFRASTRUCTURE.get(status, ("ENGINE_ERROR", f"dcgmi exited {status} without a usable document"))
    if status < 0:
        code, what = "DIAG_KILLED", f"dcgmi was killed by signal {-status}"
    detail = f' ("{said}")' if said else ""
    return Verdict.inconclusive(code, f"hostengine {request.address}: {what}{detail}; no verdict about the GPUs.")


@dataclass(frozen=True, slots=True)
class _Graded:
    outcome: Outcome
    code: str = ""
    reason: str = ""
    finding: Finding | None = None


def _grade(result: TestResult, request: Request, version: str) -> _Graded | None:
    """What the worst problem of one result means; None when it says nothing about us."""
    subject = _subject(result, request)
    if subject is None:
        return None
    where = subject.gpu_uuid or "the node"
    if not result.problems:
        if result.status == "fail":
            what = f"the {result.test} test failed on {where} without naming an error; see the engine's log."
            return _Graded(Outcome.INCONCLUSIVE, "UNEXPLAINED_FAIL", what)
        return None
    grades = [_problem(problem, result, subject, request.level, version) for problem in result.problems]
    order = [Outcome.FAILED, Outcome.INCONCLUSIVE, Outcome.PASSED]
    return min(grades, key=lambda g: (order.index(g.outcome), not (g.finding is not None and g.finding.fatal)))


def _problem(problem: Problem, result: TestResult, subject: Subject, level: int, version: str) -> _Graded:
    row = known().get(problem.error_id) if problem.error_id is not None else None
    severity, category = problem.severity, problem.category
    if severity in {None, Severity.NONE, Severity.UNKNOWN}:
        severity = row.severity if row else None
    if category is None:
        category = row.category if row else None
    test = canonical_test(result.test)
    code = row.name if row else f"DCGM_ERROR_{problem.error_id}" if problem.error_id is not None else "DCGM_ERROR"
    if severity is None and result.status == "warn":
        severity = Severity.MONITOR  # the only thing known about it is that DCGM itself calls it a warning
    hardware = category not in ENVIRONMENT
    if severity in {Severity.ISOLATE, Severity.RESET} and hardware:
        outcome, fatal = Outcome.FAILED, True
    elif severity == Severity.TRIAGE and hardware:
        outcome, fatal = Outcome.FAILED, category in HARDWARE
    elif severity in {Severity.MONITOR, Severity.CONFIG}:
        outcome, fatal = Outcome.PASSED, False
    else:
        outcome, fatal = Outcome.INCONCLUSIVE, False
    finding = Finding(
        code=code,
        message=f"{code} on {subject.gpu_uuid or 'the node'} in DCGM's {test} test" + (f": {row.says}" if row else ""),
        fatal=fatal,
        action=action_for(test) if outcome is Outcome.FAILED else Action.NONE,
        subject=subject,
        metadata={
            "test": result.test,
            "error_id": str(problem.error_id),
            "severity": str(severity),
            "category": str(category),
            "detail": summary.short(problem.text, 400),
            "level": str(level),
            "dcgm_version": version,
        },
    )
    return _Graded(
        outcome, code, f"{finding.message} is no verdict about hardware ({summary.short(problem.text)}).", finding
    )


def _subject(result: TestResult, request: Request) -> Subject | None:
    """Whom a result is about; None for a GPU that is not ours."""
    if result.entity is None or result.entity.kind != "gpu":
        return NODE
    uuid = request.gpus.get(result.entity.id)
    return Subject(canonical_test(result.test), uuid) if uuid is not None else None


def _passed(document: Document, request: Request) -> set[str]:
    passed: set[str] = set()
    for result in document.results:
        if result.status == "pass":
            passed |= _uuids(result, request)
    return passed


def _clears(document: Document, request: Request) -> frozenset[Subject]:
    """(test, GPU) pairs that passed and against which nothing is said, whatever name a version gives the test."""
    good: set[Subject] = set()
    bad: set[Subject] = set()
    for result in document.results:
        pairs = {Subject(canonical_test(result.test), uuid) for uuid in _uuids(result, request)}
        if result.status == "pass" and not result.problems:
            good |= pairs
        elif result.status != "skip":
            bad |= pairs
    return frozenset(good - bad)


def _uuids(result: TestResult, request: Request) -> set[str]:
    """The GPUs of ours that a result covers: DCGM 3 reports its deployment tests for all requested GPUs at once."""
    if result.entity is None:
        return set(request.gpus.values())
    return (
        {request.gpus[result.entity.id]} if result.entity.kind == "gpu" and result.entity.id in request.gpus else set()
    )


def _gpu_fact(status: int, request: Request) -> Verdict:
    code, what, action = _GPU_FACTS[status]
    gpus = ", ".join(sorted(request.gpus.values()))
    finding = Finding(
        code, f"{code}: {what}", fatal=True, action=action, metadata={"gpus": gpus, "exit_status": str(status)}
    )
    return Verdict(Outcome.FAILED, code, f"{what}, one of {gpus}; dcgmi exited {status}.", (finding,))


def _unique(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """One finding per (code, subject), fatal ones first."""
    by_identity: dict[tuple[str, Subject], Finding] = {}
    for finding in findings:
        by_identity.setdefault((finding.code, finding.subject), finding)
    return tuple(sorted(by_identity.values(), key=lambda f: (not f.fatal, f.subject, f.code)))


def _harmless(findings: tuple[Finding, ...], unclear: list[_Graded]) -> tuple[Finding, ...]:
    """An inconclusive run sends one event: the first thing that could not be judged."""
    return tuple(f for f in findings if f.code == unclear[0].code)[:1]


def _first_text(document: Document) -> str:
    return next((p.text for result in document.results for p in result.problems), "")
