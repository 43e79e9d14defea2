"""The context of a decision: all that a phase may ask, and how it answers. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from preflight_appwrapper.api import conditions as c
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper, AppWrapperStatus
from preflight_appwrapper.core.parameters import Parameters
from preflight_appwrapper.core.plan import Next, WrapperEvent, WrapperPlan
from preflight_appwrapper.core.snapshot import WrapperSnapshot
from preflight_appwrapper.core.state_machine import ROWS

__all__ = ["EVACUATIONS", "PhaseContext", "at_once"]

EVACUATIONS: Final = frozenset({"AutopilotNoExecute", "PreflightFailed"})
"""Reasons of the condition Unhealthy by which a workload leaves its nodes, uncounted."""


class PhaseContext(msgspec.Struct, frozen=True, kw_only=True):
    """All that a phase may ask. ``status``: the wrapper's, with times that periods can be counted
    from.
    """

    wrapper: AppWrapper
    status: AppWrapperStatus
    snapshot: WrapperSnapshot
    rules: WrapperRules
    p: Parameters
    now: datetime

    def put(
        self, status: AppWrapperStatus, type_: str, value: bool, reason: str, message: str = ""
    ) -> AppWrapperStatus:
        """``status`` with this condition, of now and of the wrapper's generation."""
        generation = self.wrapper.metadata.generation
        return c.put(status, type_, value, reason, message, now=self.now, generation=generation)

    def say(self, reason: str, message: str, *, warning: bool = False) -> WrapperEvent:
        """Once a version of the wrapper: only one leader can have written the status that this goes
        with.
        """
        return WrapperEvent(
            reason=reason,
            message=message,
            warning=warning,
            key=f"{reason}/{self.wrapper.metadata.resource_version}",
        )

    def take(self, row: str, status: AppWrapperStatus, **more: object) -> WrapperPlan:
        """A step that takes a row of the table, which gives the phase; ``more``:
        fields of the step.
        """
        return msgspec.structs.replace(
            WrapperPlan(status=replace(status, phase=ROWS[row].to), row=row, parameters=self.p),
            **more,
        )

    def stay(self, status: AppWrapperStatus, **more: object) -> WrapperPlan:
        """A step in the same phase; ``more``: fields of the step."""
        return msgspec.structs.replace(WrapperPlan(status=status, parameters=self.p), **more)

    def retry_pause(self, status: AppWrapperStatus) -> float:
        """Return seconds. They double with each evacuation after the first in a row, or a label
        everywhere would move a workload for ever.
        """
        known = c.find(status.conditions, c.UNHEALTHY)
        pause = self.p.retry_pause
        if (
            known is not None
            and known.status == "True"
            and known.reason in EVACUATIONS
            and status.migration_count > 1
        ):
            pause *= 2.0 ** min(status.migration_count - 1, 64)
        return min(pause, self.p.maximum)


def at_once(context: PhaseContext, what: str, why: str) -> Next:
    """Return what follows in the next look, which is now."""
    return Next(what, why, context.now)
