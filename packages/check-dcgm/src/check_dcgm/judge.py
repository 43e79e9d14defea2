"""From a diagnostic document to a verdict about the pod's own GPUs.

Judged by what ran: each test that the level requires must have passed on each of our GPUs. A
hardware test that failed is never a pass, whatever the severity of its error; in the software test,
which reports warnings too, the severity decides. The document decides, and the exit status where
there is none; both together where the engine could not run the diagnostic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from preflight_proto.check import NODE, Action, Finding, Gpu, Outcome, Subject, Verdict
from preflight_proto.check.presence import PRESENCE

from . import alarms, summary
from .catalogue import (
    CATEGORIES,
    CUDA,
    ENVIRONMENT,
    HARDWARE,
    PERFORMANCE,
    SOFTWARE,
    ErrorSeverity,
    KnownError,
    action_for,
    canonical_test,
    known,
    required,
)
from .parse import UNREADABLE, Document, DocumentProblem, TestResult

LOST: Final = "LOST"
"""The status in the engine's list of all GPUs that NVML's "GPU is lost" makes. ``INACCESSIBLE``
says only that the engine could not open it, "usually due to cgroups" (dcgm_structs.h).
"""
RAN = frozenset({0, 205, 226})
"""Exit statuses of a diagnostic that ran: nothing found, an isolate error (-51),
some error (-30).
"""

GPU_FACTS = {
    237: (
        "DCGM_ST_RESET_REQUIRED",
        "the driver says that a GPU must be reset",
        Action.COMPONENT_RESET,
    ),
    238: ("DCGM_ST_GPU_IS_LOST", "the driver has lost a GPU", Action.CONTACT_SUPPORT),
}
_INFRASTRUCTURE = {
    198: (
        "NO_TEST",
        "the engine has no test for these GPUs; are DCGM's diagnostic packages installed beside it?",
    ),
    202: ("ENGINE_PAUSED", "the engine is paused"),
    203: (
        "ENGINE_STOPPED",
        "the engine's diagnostic was killed: another client stopped it, or it crashed",
    ),
    204: ("ENGINE_INCOMPLETE", "the engine does not find its diagnostic program"),
    215: ("ENGINE_INCOMPLETE", "the engine could not start its diagnostic program"),
    217: ("ENGINE_BUSY", "another diagnostic is running on this engine"),
    222: ("ENGINE_BUSY", "another client uses the engine"),
    223: (
        "ENGINE_INCOMPLETE",
        "the engine has no diagnostic module, as the one inside dcgm-exporter",
    ),
    233: (
        "MIXED_GPUS",
        "the pod's GPUs are of different models, and DCGM tests one model at a time",
    ),
    235: ("ENGINE_UNREACHABLE", "the engine cannot be reached"),
    244: (
        "ENGINE_VERSION",
        "the engine refuses its diagnostic to this dcgmi, which is of another version",
    ),
    245: ("ENGINE_TIMEOUT", "the engine did not answer in time"),
    250: ("NOT_SUPPORTED", "the engine does not support the diagnostic on this node"),
}
_SKIPPED = "it was skipped, and the engine does not say why"
_PARTS = frozenset(
    {"switch", "link", "nvswitch", "nvlink", "cpu", "cpu_core", "cpucore", "connectx"}
)
"""Entities that are the node's, besides GPUs."""


@dataclass(frozen=True, slots=True)
class DiagRequest:
    """What was asked of the engine: ``gpus`` maps the *engine's* id of each of our GPUs to its
    UUID.

    ``details`` has what the driver says of them; ``optional`` are tests that need not have run;
    ``table`` is the error table.
    """

    level: int
    gpus: Mapping[int, str]
    address: str
    details: Mapping[str, Gpu] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    table: Mapping[int, KnownError] = field(default_factory=known)

    @property
    def model(self) -> str:
        """The product name of the GPUs; the diagnostic runs on one model at a time."""
        return next((gpu.name for gpu in self.details.values()), "")


def judge(document: Document, status: int, request: DiagRequest) -> Verdict:
    """The verdict on ``request.gpus``; never raises."""
    if document.runtime_error is not None and not document.results:
        return _not_run(document.runtime_error, status, request)
    graded = [grade for result in document.results for grade in _grades(result, document, request)]
    findings = _unique(grade.finding for grade in graded if grade.finding is not None)
    clears = _clears(document, request)
    broken = [g for g in graded if g.outcome is Outcome.FAILED and g.finding is not None]
    unclear = [g for g in graded if g.outcome is Outcome.INCONCLUSIVE]
    if broken:
        worst = next((g for g in broken if g.finding is not None and g.finding.fatal), broken[0])
        assert worst.finding is not None
        subject = worst.finding.subject.gpu_uuid or ""
        return Verdict(
            Outcome.FAILED,
            worst.finding.code,
            summary.reason(findings, request.level),
            findings,
            clears,
            subject,
        )
    if status in GPU_FACTS:
        return _gpu_fact(status, request)
    if document.runtime_error is not None:
        return _not_run(document.runtime_error, status, request)
    if unclear:
        return Verdict.inconclusive(unclear[0].code, unclear[0].reason, findings=findings)
    if status not in RAN:
        return by_exit_status(status, request, summary.short(_first_text(document)))
    if untested := _untested(document, request):
        return Verdict.inconclusive("NOT_TESTED", untested, findings=findings)
    if unexplained := _unexplained(document, status, request):
        return Verdict.inconclusive("UNEXPLAINED_STATUS", unexplained, findings=findings)
    return Verdict(Outcome.PASSED, "OK", summary.reason(findings, request.level), findings, clears)


def by_exit_status(status: int, request: DiagRequest, excerpt: str) -> Verdict:
    """The verdict where there is no document to judge; only a lost GPU or a required reset is about
    hardware.
    """
    if status in GPU_FACTS:
        return _gpu_fact(status, request)
    code, what = _INFRASTRUCTURE.get(
        status, ("ENGINE_ERROR", f"dcgmi exited {status}, which is no end of a diagnostic")
    )
    if status < 0:
        code, what = "DIAG_KILLED", f"dcgmi was killed by signal {-status}"
    detail = f' ("{excerpt}")' if excerpt else ""
    return Verdict.inconclusive(
        code,
        f"hostengine {request.address}: {what}{detail}; no verdict about the GPUs, see the engine's log.",
    )


def _not_run(error: str, status: int, request: DiagRequest) -> Verdict:
    """The engine says why it ran nothing; the exit status says what kind of reason that is."""
    if status in GPU_FACTS or status in _INFRASTRUCTURE or status < 0:
        return by_exit_status(status, request, summary.short(error))
    return Verdict.inconclusive(
        "DIAG_NOT_RUN",
        f"the engine at {request.address} could not run the diagnostic: {summary.short(error)}; see its log.",
    )


@dataclass(frozen=True, slots=True)
class _Graded:
    outcome: Outcome
    code: str = ""
    reason: str = ""
    finding: Finding | None = None


def _grades(result: TestResult, document: Document, request: DiagRequest) -> list[_Graded]:
    """What each problem of one result means; empty when it says nothing about us."""
    if result.entity is not None and result.entity.kind not in _PARTS | {"gpu"}:
        if result.status in {"pass", "skip"} and not result.problems:
            return []
        whose = (
            "a GPU whose number cannot be read"
            if result.entity.kind == UNREADABLE
            else result.entity.kind
        )
        what = f"the {result.test} test failed on {whose}; see the engine's log."
        return [_Graded(Outcome.INCONCLUSIVE, "UNEXPLAINED_FAIL", what)]
    subject = _subject(result, request)
    if subject is None:
        return []
    if result.problems:
        grades = [
            _problem(problem, result, subject, document, request) for problem in result.problems
        ]
        return [grade for grade in grades if grade is not None]
    if result.status not in {"fail", "warn"} or _judged_elsewhere(result, document, request):
        return []
    where = subject.gpu_uuid or "the node"
    what = (
        f"the {result.test} test failed on {where} without naming an error; see the engine's log."
    )
    return [_Graded(Outcome.INCONCLUSIVE, "UNEXPLAINED_FAIL", what)]


def _judged_elsewhere(result: TestResult, document: Document, request: DiagRequest) -> bool:
    """Tell whether the test failed here only because it fails everywhere at once, for an error of
    one of ours or of nobody, which is judged where it is told: DCGM 4's software test does, the
    memory test has one result for all GPUs, and others end for all where CUDA refuses them one.
    """
    others = [row for row in document.results if row.test == result.test and row.problems]
    if canonical_test(result.test) != SOFTWARE:
        return any(
            row.status == result.status and _subject(row, request) is not None for row in others
        )
    if result.entity is None:
        return bool(
            others
        )  # the row is everybody's, and its problems were given to the GPUs that they are about
    return any(_subject(row, request) is not None for row in others)


def _severity(
    problem: DocumentProblem, table: Mapping[int, KnownError]
) -> tuple[int | None, int | None, KnownError | None]:
    """(severity, category, row): the document's own where it has them, else the table's; an
    operator's row before both.
    """
    row = table.get(problem.error_id) if problem.error_id is not None else None
    severity, category = problem.severity, problem.category
    if row is not None and row.pinned:
        return row.severity, row.category, row
    if severity not in set(ErrorSeverity) - {ErrorSeverity.NONE, ErrorSeverity.UNKNOWN}:
        severity = row.severity if row else None
    if category not in CATEGORIES:
        category = row.category if row else None
    return severity, category, row


def _by_table(
    severity: int | None, category: int | None, row: KnownError | None
) -> tuple[Outcome, bool]:
    """(outcome, fatal) of an error that counts."""
    own = row is not None and (row.pinned or (row.severity, row.category) == (severity, category))
    if own and row is not None and row.fatal:
        return Outcome.FAILED, True  # whatever its severity: DCGM calls a narrow link configuration
    if category in ENVIRONMENT:
        return Outcome.INCONCLUSIVE, False
    if severity in {ErrorSeverity.ISOLATE, ErrorSeverity.RESET}:
        return Outcome.FAILED, row.fatal if own and row is not None else True
    if severity == ErrorSeverity.TRIAGE:
        return (
            Outcome.FAILED,
            row.fatal if own and row is not None else category in HARDWARE | PERFORMANCE,
        )
    return Outcome.INCONCLUSIVE, False


def _problem(
    problem: DocumentProblem,
    result: TestResult,
    subject: Subject,
    document: Document,
    request: DiagRequest,
) -> _Graded | None:
    declared, category, row = _severity(problem, request.table)
    severity = declared
    test = canonical_test(result.test)
    around = alarms.Circumstances(document.version, document.driver, request.model)
    says = alarms.explains(test, problem, around)
    if says is not None and not says.text and row is not None and row.pinned:
        says = None  # of the error itself the operator's row has the last word
    if severity is None and result.status == "warn":
        severity = (
            ErrorSeverity.MONITOR
        )  # the only thing known about it is that DCGM itself calls it a warning
    harmless = severity in {ErrorSeverity.MONITOR, ErrorSeverity.CONFIG}
    # DCGM's memory test prints for all GPUs what became of the last one, and its pcie and stress
    # tests print Pass for what they measure at their end alone.
    broken = test != SOFTWARE and (category == CUDA or (row is not None and row.fatal))
    faulty = broken and alarms.names_a_fault(problem.text)
    if result.status == "skip" and not faulty and (harmless or severity is None):
        return None  # why it was skipped, which matters where the test is required
    if result.status == "pass" and harmless and not broken:
        outcome, fatal = Outcome.PASSED, False
    elif says is not None and says.effect in {"inconclusive", "not tested"}:
        outcome, fatal = Outcome.INCONCLUSIVE, False
    elif says is not None and says.effect == "fatal":
        outcome, fatal = Outcome.FAILED, True
    elif test == SOFTWARE and harmless:
        outcome, fatal = Outcome.PASSED, False
    elif test != SOFTWARE and alarms.names_a_fault(problem.text):
        outcome, fatal = Outcome.FAILED, True
    else:
        outcome, fatal = _by_table(severity, category, row)
    code = (
        row.name
        if row
        else f"DCGM_ERROR_{problem.error_id}"
        if problem.error_id is not None
        else "DCGM_ERROR"
    )
    gpu = request.details.get(subject.gpu_uuid or "")
    metadata = {
        "test": result.test,
        "error_id": str(problem.error_id),
        "severity": str(declared),
        "category": str(category),
        "detail": summary.short(problem.text, 400),
        "level": str(request.level),
        "dcgm_version": document.version,
        "pci_bus_id": gpu.pci_bus_id if gpu else "",
        "serial": summary.serial(gpu, document, request.gpus) if gpu else "",
        "known": f"{says.says} ({says.link})" if says else "",
        "advice": row.advice if row else "",
    }
    where = subject.gpu_uuid or "the node"
    action = Action(says.action) if says is not None and says.action else action_for(test, row)
    finding = Finding(
        code=code,
        message=f"{code} on {where} in DCGM's {test} test" + (f": {row.says}" if row else ""),
        fatal=fatal,
        action=action if outcome is Outcome.FAILED else Action.NONE,
        subject=subject,
        metadata={key: value for key, value in metadata.items() if value},
    )
    reason = f"{finding.message} is not a verdict about hardware ({summary.short(problem.text)})"
    todo = row.advice if row is not None and row.advice else "see the engine's log"
    reason += f": {says.says} ({says.link})" if says is not None else f"; {todo}"
    if says is not None and says.code:
        code = says.code
    return _Graded(outcome, code, f"{reason}.", finding)


def _subject(result: TestResult, request: DiagRequest) -> Subject | None:
    """Whom a result is about; None for a GPU that is not ours."""
    if result.entity is None or result.entity.kind != "gpu":
        return NODE
    uuid = request.gpus.get(result.entity.id)
    return Subject(canonical_test(result.test), uuid) if uuid is not None else None


def _untested(document: Document, request: DiagRequest) -> str:
    """Which required tests did not run on which of our GPUs, and why, as one sentence; empty when
    all did.
    """
    around = alarms.Circumstances(document.version, document.driver, request.model)
    ran: set[tuple[str, str]] = set()
    why: dict[tuple[str, str], str] = {}
    for result in document.results:
        test = canonical_test(result.test)
        hollow = [
            p
            for p in result.problems
            if (s := alarms.explains(test, p, around)) and s.effect == "not tested"
        ]
        # Of the hardware tests only a pass is left here: what failed is a verdict already. The
        # software test warns.
        good = result.status == "pass" or (test == SOFTWARE and result.status in {"fail", "warn"})
        everybody = result.entity is None and result.status == "skip"
        for uuid in set(request.gpus.values()) if everybody else _uuids(result, request):
            if good and not hollow:
                ran.add((test, uuid))
            elif info := result.info or next((p.text for p in result.problems if p.text), ""):
                why[test, uuid] = (
                    info if why.get((test, uuid), _SKIPPED) == _SKIPPED else why[test, uuid]
                )
            elif result.status == "skip":
                why.setdefault((test, uuid), _SKIPPED)
    missing: dict[tuple[str, str], list[str]] = {}
    for uuid in sorted(set(request.gpus.values())):
        # One on which nothing at all ran is not excused.
        excused = request.optional if any(uuid == other for _, other in ran) else frozenset()
        for test in sorted(required(request.level) - excused):
            if (test, uuid) not in ran:
                reason = why.get((test, uuid)) or "the engine reports no result of it"
                missing.setdefault((test, summary.short(reason, 120)), []).append(uuid)
    if not missing:
        return ""
    listed = "; ".join(
        f"{test} on {', '.join(uuids)} ({reason})" for (test, reason), uuids in missing.items()
    )
    todo = "see why in the engine's log"
    if any(test not in request.optional for test, _ in missing):
        todo += ", or name one that these GPUs cannot have in DCGM_OPTIONAL_TESTS"
    return f"level {request.level} requires tests that did not run: {listed}; {todo}."


def _unexplained(document: Document, status: int, request: DiagRequest) -> str:
    """Why an exit status does not fit the document, as one sentence; empty when it does."""
    problems = [problem for result in document.results for problem in result.problems]
    if status != 0 and not problems:
        return f"dcgmi exited {status} but its document names no error; see the engine's log."
    if status != 205:
        return ""
    for problem in problems:
        row = request.table.get(problem.error_id) if problem.error_id is not None else None
        once = row.severity_once if row else ()
        if problem.error_id is None or ErrorSeverity.ISOLATE in {
            problem.severity,
            row.severity if row else None,
            *once,
        }:
            return ""
    return "dcgmi exited 205 (an error that asks to isolate a GPU) but its document names none; see the engine's log."


def _clears(document: Document, request: DiagRequest) -> frozenset[Subject]:
    """(test, GPU) pairs that passed and against which nothing is said, whatever name a version
    gives the test.
    """
    good: set[Subject] = set()
    bad: set[Subject] = set()
    for result in document.results:
        pairs = {Subject(canonical_test(result.test), uuid) for uuid in _uuids(result, request)}
        if result.status == "pass" and not result.problems:
            good |= pairs
        elif result.status != "skip" or result.problems:
            bad |= pairs
    return frozenset(good - bad)


def _uuids(result: TestResult, request: DiagRequest) -> set[str]:
    """The GPUs of ours that a result covers: up to 3.3 a deployment test has one result for all
    requested GPUs.
    """
    if result.entity is None:
        return set(request.gpus.values()) if canonical_test(result.test) == SOFTWARE else set()
    return (
        {request.gpus[result.entity.id]}
        if result.entity.kind == "gpu" and result.entity.id in request.gpus
        else set()
    )


def _gpu_fact(status: int, request: DiagRequest) -> Verdict:
    code, what, action = GPU_FACTS[status]
    uuids = sorted(request.gpus.values())
    gpus = ", ".join(uuids)
    alone = uuids[0] if len(uuids) == 1 else ""
    finding = Finding(
        code,
        f"{code}: {what}",
        fatal=True,
        action=action,
        subject=Subject(PRESENCE, alone) if alone else NODE,
        metadata={"gpus": gpus, "exit_status": str(status)},
    )
    whom = alone or f"one of {gpus}"
    reason = f"{what}, {whom}; dcgmi exited {status}; {summary.DO[action]}."
    return Verdict(Outcome.FAILED, code, reason, (finding,), subject=alone)


def _unique(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """One finding per (code, subject), the fatal one of two, fatal ones first."""
    by_identity: dict[tuple[str, Subject], Finding] = {}
    for finding in findings:
        known_one = by_identity.get((finding.code, finding.subject))
        if known_one is None or (finding.fatal and not known_one.fatal):
            by_identity[finding.code, finding.subject] = finding
    return tuple(sorted(by_identity.values(), key=lambda f: (not f.fatal, f.subject, f.code)))


def _first_text(document: Document) -> str:
    return next((p.text for result in document.results for p in result.problems), "")


def confirmed(verdict: Verdict, listed: Mapping[str, int], statuses: Mapping[str, str]) -> Verdict:
    """``verdict`` (``GPU_MISSING``) with what the engine says of each GPU that it names.

    Two sources make it fatal: the driver does not list the GPU, and the engine, which lists the
    GPUs that are there, calls it lost or does not list it either while the driver calls it lost. An
    engine that lists none of the pod's GPUs is not a source.
    """
    findings = tuple(_confirmed(finding, listed, statuses) for finding in verdict.findings)
    return replace(verdict, findings=findings)


def _confirmed(finding: Finding, listed: Mapping[str, int], statuses: Mapping[str, str]) -> Finding:
    uuid = finding.subject.gpu_uuid
    if uuid is None or not listed:
        return finding
    status = statuses.get(uuid)
    if status == LOST:
        reason, fatal = f"its status is {status}", True
    elif uuid not in listed:
        reason = f"its status is {status}" if status else "it does not list the GPU"
        fatal = any(key.startswith("lost_by_") for key in finding.metadata)
    else:
        return replace(finding, metadata={**finding.metadata, "engine": "it lists the GPU"})
    return replace(
        finding,
        fatal=finding.fatal or fatal,
        metadata={**finding.metadata, "lost_by_engine": reason},
    )
