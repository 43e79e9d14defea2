"""From a verdict to HealthEvents: what is raised, and what is cleared.

Pure: an :class:`EventDraft` is plain data with the wire's meaning; :mod:`.report` puts it on the
wire.

Rules of the connector shape this module. It de-duplicates node conditions by the exact text of
``message``, so a message is constant per (code, subject) and measurements go to ``metadata``. It
joins the messages of a condition by semicolons and takes them apart there, so that none has one:
what stands behind it would never be cleared. And it clears by identity (agent, component, check
name, entities), so what a failing verdict raises and what a passing one clears are made by the same
function. A condition of the node is cleared by a passing run of the same check with the same
subject, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..names import container_name
from . import scan
from .presence import PRESENCE
from .verdict import NODE, Action, Finding, Outcome, Subject, Verdict

GPU_ENTITY = "GPU_UUID"
GPU_COMPONENT = "GPU"
"""The componentClass of what is about a GPU, whatever the check's own is."""


@dataclass(frozen=True, slots=True)
class EventDraft:
    """One HealthEvent, before it has a time, a node and a strategy."""

    agent: str
    component: str
    check_name: str
    fatal: bool
    healthy: bool
    message: str
    action: Action
    error_codes: tuple[str, ...] = ()
    entities: tuple[tuple[str, str], ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> tuple[str, str, str, tuple[tuple[str, str], ...]]:
        """What the connector keys a condition by, besides version and node."""
        return self.agent, self.component, self.check_name, self.entities


def cleared(verdict: Verdict, declared: Sequence[str] | None, present: Sequence[str]) -> Verdict:
    """``verdict`` with all that a pass clears on the GPUs that are ``present`` (UUIDs): that they
    are there, and every test of ``declared``.

    None: the probe has said which tests it clears. A verdict that raises what no pass would ever
    clear is inconclusive ``INTERNAL_ERROR``, and so is a pass of declared tests on no GPU: both are
    mistakes of the check, which its first tests then show.
    """
    if declared is not None:
        known = {*declared, PRESENCE, scan.TEST}
        if unknown := sorted(
            {f.subject.test for f in verdict.findings if f.subject.gpu_uuid is not None} - known
        ):
            what = f"the check raised {', '.join(unknown)} about a GPU without naming it in its gpu_tests, and would never clear it"
            return Verdict.inconclusive(
                "INTERNAL_ERROR", f"{what}; it found {verdict.code}: {verdict.reason}"
            )
    if verdict.outcome is not Outcome.PASSED:
        return verdict
    if declared and not present:
        what = f"the check passed its gpu_tests ({', '.join(declared)}) without asking for the GPUs"
        return Verdict.inconclusive("INTERNAL_ERROR", f"{what}; await run.gpus() in its probe.")
    return replace(
        verdict,
        clears=verdict.clears
        | {Subject(test, uuid) for test in (PRESENCE, *(declared or ())) for uuid in present},
    )


def events(check: str, condition: str, component: str, verdict: Verdict) -> list[EventDraft]:
    """The events of one run, unhealthy ones first.

    - one for each finding, and of an inconclusive verdict whose code none of them has one about the
      node that says it;
    - for a passed or failed run, a healthy one for each subject it has seen healthy and no
      finding names. A passed run has always seen the node healthy;
    - none for a skipped or misconfigured run: it has seen nothing.
    """

    if verdict.outcome in {Outcome.SKIPPED, Outcome.MISCONFIGURED}:
        return []
    findings = verdict.findings
    if verdict.outcome is Outcome.INCONCLUSIVE and verdict.code not in {f.code for f in findings}:
        own = Finding(
            code=verdict.code,
            message=f"{check} could not judge this node: {verdict.code}",
            fatal=False,
            action=Action.NONE,
            metadata={"reason": verdict.reason},
        )
        findings = (own, *findings)
    raised = [_event(check, condition, component, finding) for finding in findings]
    if verdict.outcome is Outcome.INCONCLUSIVE:
        return raised
    seen_healthy = set(verdict.clears) | ({NODE} if verdict.outcome is Outcome.PASSED else set())
    # A monitor-level finding on a passed run is an Event of the past; its subject still has no
    # standing fault.
    seen_healthy -= {finding.subject for finding in findings}
    passed = (
        Finding("", f"{check} passed", False, Action.NONE, subject)
        for subject in sorted(seen_healthy)
    )
    cleared = [_event(check, condition, component, each, healthy=True) for each in passed]
    return raised + cleared


def _event(
    check: str, condition: str, component: str, finding: Finding, *, healthy: bool = False
) -> EventDraft:
    subject = finding.subject
    return EventDraft(
        agent=container_name(check),
        component=GPU_COMPONENT if subject.gpu_uuid is not None else component,
        check_name=condition + subject.test,
        fatal=finding.fatal,
        healthy=healthy,
        message=finding.message.replace(";", ","),
        action=finding.action,
        error_codes=(finding.code,) if finding.code else (),
        entities=((GPU_ENTITY, subject.gpu_uuid),) if subject.gpu_uuid is not None else (),
        metadata=finding.metadata,
    )
