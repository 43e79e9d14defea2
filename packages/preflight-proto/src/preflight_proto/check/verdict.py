"""What a probe concludes: a :class:`Verdict` with its findings, and what it clears.

Pure data. A verdict knows nothing of gRPC, exit codes or Kubernetes; :mod:`.events` turns it into
HealthEvents and :mod:`.runner` into a result and an exit status.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

CAMEL_CASE: Final = re.compile(r"[A-Z0-9][A-Za-z0-9]*")


class _NoVerdict(Exception):
    """``code`` is from the check's closed set, ``reason`` is one sentence."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Inconclusive(_NoVerdict):
    """Raised by a probe that cannot judge."""


class Skipped(_NoVerdict):
    """Raised by a probe that has nothing to test here."""


class Failed(Exception):
    """Raised by a part of the kit that has come to a verdict by itself, as :meth:`.runner.Run.gpus`
    does about a GPU that is missing.
    """

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


class Outcome(StrEnum):
    """How a run ended. Exit status: passed 0, skipped 0, failed 1, misconfigured 2, inconclusive by
    ``ON_INCONCLUSIVE``.
    """

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"
    MISCONFIGURED = "misconfigured"
    INCONCLUSIVE = "inconclusive"


class Action(StrEnum):
    """The recommended actions of a HealthEvent, by their names on the wire."""

    NONE = "NONE"
    COMPONENT_RESET = "COMPONENT_RESET"
    CONTACT_SUPPORT = "CONTACT_SUPPORT"
    RUN_FIELDDIAG = "RUN_FIELDDIAG"
    RESTART_VM = "RESTART_VM"
    RESTART_BM = "RESTART_BM"
    REPLACE_VM = "REPLACE_VM"
    RUN_DCGMEUD = "RUN_DCGMEUD"


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """What a node condition is about: the node, or one test on exactly one GPU.

    ``test`` is CamelCase and becomes the suffix of the event's ``checkName`` (``DcgmDiagnostic`` +
    ``Memory``). A subject without a GPU is the node's own and has no suffix: a healthy event
    without entities clears *everything* under its name, so it must never share a name with GPU
    conditions. Raises :class:`ValueError` for a test that is not CamelCase: the kind of the entity,
    ``GPU_UUID``, is the kit's to add.
    """

    test: str = ""
    gpu_uuid: str | None = None

    def __post_init__(self) -> None:
        if bool(self.test) != (self.gpu_uuid is not None):
            raise ValueError(
                f"a subject has both a test and a GPU, or neither; got {self.test!r} and {self.gpu_uuid!r}"
            )
        if self.test and not CAMEL_CASE.fullmatch(self.test):
            raise ValueError(
                f"a subject's test is CamelCase, as Memory or PcieWidth; got {self.test!r}"
            )
        if self.gpu_uuid == "":
            raise ValueError(f"the subject {self.test} has no GPU; give its UUID")


NODE = Subject()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, as it will be reported: one finding, one event.

    ``message`` must be constant for a given (code, subject): no measurements, times or peers and no
    ``;``. The connector de-duplicates conditions by its exact text. What was measured goes to
    ``metadata`` (string to string).
    """

    code: str
    message: str
    fatal: bool
    action: Action
    subject: Subject = NODE
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a probe.

    ``code`` is from a closed set per check (``OK``, ``DCGM_FR_FAULTY_MEMORY``, ``ENGINE_BUSY`` …).
    ``reason`` is one sentence for people: what, where, what was found, what to do. ``clears`` are
    the subjects this run has seen healthy. ``measured`` and ``expected`` are GB/s where the check
    has any; ``details`` says of what, for a fleet's baseline (model, number, links, size,
    versions).
    """

    outcome: Outcome
    code: str
    reason: str
    findings: tuple[Finding, ...] = ()
    clears: frozenset[Subject] = frozenset()
    subject: str = ""
    measured: float | None = None
    expected: float | None = None
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def blames(self) -> str:
        """The code of what the node, or a GPU of it, is to be seen to for: of a failed verdict's
        first finding that is fatal or asks for an action. Empty where it accuses nobody, as of a
        member of a gang that another one makes slow."""
        if self.outcome is not Outcome.FAILED:
            return ""
        return next(
            (
                finding.code
                for finding in self.findings
                if finding.fatal or finding.action is not Action.NONE
            ),
            "",
        )

    @classmethod
    def passed(
        cls, reason: str, *, measured: float | None = None, expected: float | None = None
    ) -> Verdict:
        """All is well: the kit clears the node, and every test in ``Check.gpu_tests`` on every GPU
        of this pod.
        """
        return cls(Outcome.PASSED, "OK", reason, measured=measured, expected=expected)

    @classmethod
    def inconclusive(cls, code: str, reason: str, *, findings: tuple[Finding, ...] = ()) -> Verdict:
        """The check could not judge. Never fatal; the kit adds the one non-fatal event."""
        if any(f.fatal for f in findings):
            raise ValueError("an inconclusive verdict carries no fatal finding")
        return cls(Outcome.INCONCLUSIVE, code, reason, findings=findings)
