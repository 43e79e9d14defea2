"""The state machine as a table. The code takes each next phase from here; the README shows the same
rows. Pure.
"""

from __future__ import annotations

from typing import Final

import msgspec

from preflight_appwrapper.api.types import PHASES, Phase

__all__ = ["ROWS", "Row", "markdown"]


class Row(msgspec.Struct, frozen=True):
    """``phases``: those it starts from. ``to``: the next one; empty: the wrapper is gone."""

    name: str
    phases: tuple[Phase, ...]
    when: str
    to: Phase
    effects: str


_ALL: Final = PHASES

ROWS: Final[dict[str, Row]] = {
    row.name: row
    for row in (
        Row(
            "seen",
            ("",),
            "first sight",
            "Suspended",
            "`componentStatus`: pod sets as declared, else as they follow from the kind",
        ),
        Row(
            "leftover",
            ("", "Suspended", "Resuming", "Running"),
            "something of it exists that the status does not speak of",
            "Suspending",
            "deletion, as the status was changed by somebody else",
        ),
        Row(
            "resume",
            ("Suspended",),
            "`suspend` is false",
            "Resuming",
            "judged, else `NotJudged`; finalizer first; QR=T, RD=T, PodsReady=F, Unhealthy=F, DeletingResources removed",
        ),
        Row("resuming-suspend", ("Resuming",), "`suspend` is true", "Suspending", "deletion"),
        Row(
            "created",
            ("Resuming",),
            "all components are created",
            "Running",
            "status written before and after each create",
        ),
        Row(
            "create-fatal",
            ("Resuming",),
            "a create that can never succeed",
            "Failed",
            "Unhealthy=T `CreateFailed`",
        ),
        Row(
            "create-late",
            ("Resuming",),
            "creates fail for longer than AdmissionGracePeriod, a reset is left",
            "Resetting",
            "Unhealthy=T `CreateFailed`; counted; deletion",
        ),
        Row(
            "create-last",
            ("Resuming",),
            "the same, no reset is left",
            "Failed",
            "Unhealthy=T `CreateFailed`",
        ),
        Row("running-suspend", ("Running",), "`suspend` is true", "Suspending", "deletion"),
        Row("succeeded", ("Running",), "rule 3", "Succeeded", "QR=F at once"),
        Row(
            "reset",
            ("Running",),
            "rule 2, 5, 6, 7 or 8, grace over, a reset is left",
            "Resetting",
            "counted; deletion",
        ),
        Row(
            "evacuate",
            ("Running",),
            "rule 4 or 5, a reset is left",
            "Resetting",
            "not counted; `migrationCount` +1; deletion",
        ),
        Row(
            "failed",
            ("Running",),
            "rule 1, a terminal exit code, or no reset is left",
            "Failed",
            "Unhealthy=T",
        ),
        Row(
            "suspended",
            ("Suspending",),
            "everything is deleted",
            "Suspended",
            "RD=F, QR=F; also if `suspend` is false by now",
        ),
        Row(
            "resetting-suspend",
            ("Resetting",),
            "`suspend` is true",
            "Suspending",
            "deletion goes on",
        ),
        Row(
            "reset-deleted",
            ("Resetting",),
            "everything is deleted",
            "Resetting",
            "RD=F; RetryPausePeriod begins; QR stays T",
        ),
        Row(
            "retry",
            ("Resetting",),
            "RetryPausePeriod is over",
            "Resuming",
            "RD=T, Unhealthy=F, DeletingResources removed",
        ),
        Row(
            "failed-delete",
            ("Failed",),
            "DeletionOnFailureGracePeriod is over or 0, or `suspend` is true",
            "Failed",
            "deletion",
        ),
        Row("failed-deleted", ("Failed",), "everything is deleted", "Failed", "RD=F, QR=F"),
        Row(
            "succeeded-delete",
            ("Succeeded",),
            "SuccessTTL is over since QR=F",
            "Succeeded",
            "deletion",
        ),
        Row("succeeded-deleted", ("Succeeded",), "everything is deleted", "Succeeded", "RD=F"),
        Row(
            "terminating",
            _ALL[:-1],
            "`deletionTimestamp` is set",
            "Terminating",
            "deletion, or going on with one",
        ),
        Row(
            "gone",
            ("Terminating",),
            "everything is deleted",
            "Terminating",
            "RD=F, QR=F; then the finalizer is removed",
        ),
    )
}


def markdown() -> str:
    """The table as the README has it."""
    lines = ["| row | phase | when | next | effects |", "| --- | --- | --- | --- | --- |"]
    for row in ROWS.values():
        phases = (
            "any other"
            if len(row.phases) > 4
            else ", ".join(phase or "*(empty)*" for phase in row.phases)
        )
        lines.append(f"| `{row.name}` | {phases} | {row.when} | {row.to} | {row.effects} |")
    return "\n".join(lines)
