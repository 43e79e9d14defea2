"""The whole of a decision, as one pure function: a wrapper, what is seen of it, the rules and the
time give what to write and do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from preflight_appwrapper.api import conditions as c
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper
from preflight_appwrapper.core import phases
from preflight_appwrapper.core.parameters import parameters
from preflight_appwrapper.core.phase_context import Look
from preflight_appwrapper.core.plan import Next, WrapperEvent, WrapperStep
from preflight_appwrapper.core.snapshot import WrapperView

__all__ = ["BAD_ANNOTATION", "step"]

BAD_ANNOTATION: Final = "BadAnnotation"
"""Reason of an Event about a parameter that cannot be read."""

_PHASES: Final[Mapping[str, Callable[[Look], WrapperStep]]] = {
    "": phases.unseen,
    "Suspended": phases.suspended,
    "Resuming": phases.resuming,
    "Running": phases.running,
    "Suspending": phases.suspending,
    "Resetting": phases.resetting,
    "Succeeded": phases.succeeded,
    "Failed": phases.failed,
}


def step(wrapper: AppWrapper, seen: WrapperView, rules: WrapperRules, now: datetime) -> WrapperStep:
    """What is to be written, done and said now, and what comes next. ``now`` has a time zone. Never
    raises.

    The status is written first, with the wrapper's resourceVersion; a conflict means that all of
    this is to be looked at again. Then come the actions, in their order; what each of them finds is
    seen in the next look.
    """
    p = parameters(wrapper.metadata.annotations, rules)
    if not wrapper.ours:
        return WrapperStep(status=wrapper.status, parameters=p)
    if not seen.complete:
        waits = Next("a decision", "not everything is seen yet", waits=("mirrors",))
        return WrapperStep(status=wrapper.status, next=waits, parameters=p)
    look = Look(
        wrapper=wrapper,
        status=c.repaired(wrapper.status, now, seen.first_seen),
        seen=seen,
        rules=rules,
        p=p,
        now=now,
    )
    if wrapper.metadata.deletion_timestamp is not None:
        made = phases.terminating(look)
    else:
        if wrapper.status.phase in {"Resuming", "Running"} and len(
            wrapper.status.component_status
        ) != len(wrapper.spec.components):
            return _restored(phases.leftover(look), look)
        # A phase that we do not know, or one that only a deletion leads to, was written by somebody
        # else.
        made = _PHASES.get(wrapper.status.phase, phases.suspending)(look)
    said = tuple(
        WrapperEvent(reason=BAD_ANNOTATION, message=problem, warning=True, key=f"annotation/{key}")
        for key, problem in p.problems
    )
    say = tuple(one for one in (*made.say, *said) if one.key not in seen.said)
    return _restored(replace(made, say=say), look)


def _restored(made: WrapperStep, look: Look) -> WrapperStep:
    return replace(made, status=c.restored(made.status, look.status, look.wrapper.status))
