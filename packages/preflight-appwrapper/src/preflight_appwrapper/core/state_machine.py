"""The state machine as a table, which gives each next phase; the README has the same rows. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple, cast

from preflight_appwrapper.api.types import PHASES, Phase

TABLE: Final = """\
| row | phase | when | next | effects |
| --- | --- | --- | --- | --- |
| `seen` | *(empty)* | first sight | Suspended | `componentStatus`: pod sets as declared, else as they follow from the kind |
| `leftover` | *(empty)*, Suspended, Resuming, Running | something of it exists that the status does not speak of | Suspending | QR=T, RD=T; deletion, as the status was changed by somebody else |
| `resume` | Suspended | `suspend` is false | Resuming | judged, else `NotJudged`; finalizer first; QR=T, RD=T, PodsReady=F, Unhealthy=F, DeletingResources removed |
| `resuming-suspend` | Resuming | `suspend` is true | Suspending | deletion |
| `created` | Resuming | all components are created | Running | each name stands in the status before its create is sent |
| `create-fatal` | Resuming | a create that can never succeed | Failed | Unhealthy=T `CreateFailed` |
| `create-late` | Resuming | creates fail for longer than AdmissionGracePeriod, a reset is left | Resetting | Unhealthy=T `CreateFailed`; counted; deletion |
| `create-last` | Resuming | the same, no reset is left | Failed | Unhealthy=T `CreateFailed` |
| `running-suspend` | Running | `suspend` is true | Suspending | deletion |
| `succeeded` | Running | rule 3 | Succeeded | QR=F at once |
| `reset` | Running | rule 2, 5, 6, 7 or 8, grace over, a reset is left | Resetting | counted; deletion |
| `evacuate` | Running | rule 4 or 5, a reset is left | Resetting | not counted; `migrationCount` +1; deletion |
| `failed` | Running | rule 1, a terminal exit code, or no reset is left | Failed | Unhealthy=T |
| `suspended` | Suspending | everything is deleted | Suspended | RD=F, QR=F; also if `suspend` is false by now |
| `resetting-suspend` | Resetting | `suspend` is true | Suspending | deletion goes on |
| `reset-deleted` | Resetting | everything is deleted | Resetting | RD=F; RetryPausePeriod begins; QR stays T |
| `retry` | Resetting | RetryPausePeriod is over | Resuming | RD=T, Unhealthy=F, DeletingResources removed |
| `failed-delete` | Failed | DeletionOnFailureGracePeriod is over or 0, or `suspend` is true | Failed | deletion |
| `failed-deleted` | Failed | everything is deleted | Failed | RD=F, QR=F |
| `succeeded-delete` | Succeeded | SuccessTTL is over since QR=F | Succeeded | deletion |
| `succeeded-deleted` | Succeeded | everything is deleted | Succeeded | RD=F |
| `terminating` | any other | `deletionTimestamp` is set | Terminating | deletion, or going on with one |
| `gone` | Terminating | everything is deleted | Terminating | RD=F, QR=F; then the finalizer is removed |
"""


class Row(NamedTuple):
    """``phases``: those it starts from. ``to``: the next one."""

    phases: tuple[Phase, ...]
    to: Phase


def _row(line: str) -> tuple[str, Row]:
    name, phases, _, to, _ = (cell.strip() for cell in line.strip("|").split("|"))
    starts = [cast("Phase", phase.replace("*(empty)*", "")) for phase in phases.split(", ")]
    phases_of = PHASES[:-1] if phases == "any other" else tuple(starts)
    return name.strip("`"), Row(phases_of, cast("Phase", to))


ROWS: Final = dict(map(_row, TABLE.splitlines()[2:]))
