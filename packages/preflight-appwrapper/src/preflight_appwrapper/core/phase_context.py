"""The context of a decision: all that a phase may ask, how it answers, and periods. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Final, NamedTuple, Self

import msgspec
from msgspec.structs import replace

from preflight_appwrapper.api import conditions as c
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper, AppWrapperStatus, ComponentStatus, Phase
from preflight_appwrapper.core.parameters import Parameters, parameters
from preflight_appwrapper.core.plan import Next, WrapperEvent, WrapperPlan
from preflight_appwrapper.core.snapshot import SeenComponent, WrapperSnapshot

EVACUATIONS: Final = frozenset({"AutopilotNoExecute", "PreflightFailed"})
"""Reasons of the condition Unhealthy by which a workload leaves its nodes, uncounted."""
_ROWS: Final[Mapping[Phase, str]] = {
    "Suspended": "seen suspended",
    "Resuming": "resume retry",
    "Running": "created",
    "Suspending": "leftover resuming-suspend running-suspend resetting-suspend",
    "Resetting": "create-late reset evacuate reset-deleted",
    "Succeeded": "succeeded succeeded-delete succeeded-deleted",
    "Failed": "create-fatal create-last failed failed-delete failed-deleted",
    "Terminating": "terminating gone",
}
ROWS: Final = {row: phase for phase, rows in _ROWS.items() for row in rows.split()}
"""The phase that each row of the state table leads to; the README has the table."""
_LAST: Final = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)


class ComponentHealth(NamedTuple):
    """A component as the status has it, and as it is seen. ``finished``: it has ended well, now or
    when it was last seen."""

    known: ComponentStatus
    seen: SeenComponent
    finished: bool


class PhaseContext(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All that a phase may ask. ``status``: the wrapper's, with a time in each condition."""

    wrapper: AppWrapper
    status: AppWrapperStatus
    snapshot: WrapperSnapshot
    rules: WrapperRules
    p: Parameters
    now: datetime

    @classmethod
    def of(
        cls, wrapper: AppWrapper, snapshot: WrapperSnapshot, rules: WrapperRules, now: datetime
    ) -> Self:
        """The context of a decision at ``now``. Never raises."""
        status = c.dated(wrapper.status, now)
        p = parameters(wrapper.metadata.annotations, rules)
        return cls(wrapper=wrapper, status=status, snapshot=snapshot, rules=rules, p=p, now=now)

    @cached_property
    def components(self) -> tuple[ComponentHealth, ...]:
        """All of them, in their order."""
        seen = map(self.snapshot.component, range(len(self.status.component_status)))
        return tuple(
            ComponentHealth(
                known, it, it.verdict.says == "finished" or c.is_true(known, c.FINISHED)
            )
            for known, it in zip(self.status.component_status, seen, strict=True)
        )

    @cached_property
    def all_finished(self) -> bool:
        """Say whether all components that make pods have ended well."""
        return all(component.finished for component in self.components if component.known.expected)

    def put(
        self, status: AppWrapperStatus, type_: str, value: bool, reason: str, message: str = ""
    ) -> AppWrapperStatus:
        """``status`` with this condition, of now and of the wrapper's generation."""
        generation = self.wrapper.metadata.generation
        now = max(self.now, c.since(self.status, type_) or self.now)  # clocks of leaders differ
        return c.put(status, type_, value, reason, message, now=now, generation=generation)

    def since(self, status: AppWrapperStatus, type_: str) -> datetime | None:
        """Return when a period of the condition began, by this leader's clock alone."""
        known = c.find(status, type_)
        if known is None:
            return None
        at = self.snapshot.first_seen.get(c.written(known), known.last_transition_time)
        return min(at or self.now, self.now)

    def over(
        self, status: AppWrapperStatus, type_: str, reason: str, message: str = ""
    ) -> AppWrapperStatus:
        """``status`` with this condition False, if it is True."""
        true = c.is_true(status, type_)
        return self.put(status, type_, False, reason, message) if true else status

    def ends(self, seconds: float) -> datetime:
        """The end of a period that begins as the status is written now."""
        return deadline(self.now.replace(microsecond=0), seconds)

    def say(self, reason: str, message: str, *, warning: bool = False) -> WrapperEvent:
        """Once a version of the wrapper, whose status only one leader can have written."""
        key = f"{reason}/{self.wrapper.metadata.resource_version}"
        return WrapperEvent(reason, message, key, warning)

    def take(
        self, row: str, status: AppWrapperStatus, message: str = "", **more: object
    ) -> WrapperPlan:
        """A step that takes a row of the table, to its phase. ``message``: of an Event of that."""
        phase = ROWS[row]
        if message:
            more["say"] = (self.say(phase, message, warning=phase in {"Resetting", "Failed"}),)
        return self.stay(replace(status, phase=phase), row=row, **more)

    def stay(self, status: AppWrapperStatus, **more: object) -> WrapperPlan:
        """A step in the same phase; ``more``: its fields."""
        return replace(WrapperPlan(status=status, parameters=self.p), **more)

    def at_once(self, what: str, why: str) -> Next:
        """Return what follows in the next look, which is now."""
        return Next(what, why, self.now)

    def retry_pause(self, status: AppWrapperStatus) -> float:
        """Return seconds, doubled with each evacuation in a row: a label may be everywhere."""
        again = max(status.migration_count - 1, 0)
        moved = c.is_true(status, c.UNHEALTHY, *EVACUATIONS)
        return min(self.p.retry_pause * (2.0 ** min(again, 64) if moved else 1), self.p.maximum)


def deadline(since: datetime, seconds: float) -> datetime:
    """The end of a period; a second later where ``since`` is a whole one, and may have been cut.
    One of zero is over at once.
    """
    if seconds <= 0:
        return since
    try:
        return since + timedelta(seconds=seconds + (0 if since.microsecond else 1))
    except OverflowError:
        return _LAST


def expired(since: datetime, seconds: float, now: datetime) -> bool:
    """Say whether :func:`deadline` has come."""
    return seconds <= 0 or now >= deadline(since, seconds)
