"""What a verdict clears besides what it says itself, so that nothing that a check has raised stays
for good.

Pure. A condition of the node is cleared by a passing run of the same check with the same subject,
and by nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from . import scan
from .presence import PRESENCE
from .verdict import Outcome, Subject, Verdict


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
