"""The whole of a decision, as one pure function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from preflight_appwrapper.api import conditions as c
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper
from preflight_appwrapper.core import phases
from preflight_appwrapper.core.creation import begun_otherwise
from preflight_appwrapper.core.deletion import leftovers
from preflight_appwrapper.core.phase_context import PhaseContext
from preflight_appwrapper.core.plan import Next, WrapperEvent, WrapperPlan
from preflight_appwrapper.core.snapshot import WrapperSnapshot

BAD_ANNOTATION: Final = "BadAnnotation"
"""Reason of an Event about a parameter that cannot be read."""

_PHASES: Final[Mapping[str, Callable[[PhaseContext], WrapperPlan]]] = {
    "": phases.unseen,
    "Suspended": phases.suspended,
    "Resuming": phases.resuming,
    "Running": phases.running,
    "Suspending": phases.suspending,
    "Resetting": phases.resetting,
    "Succeeded": phases.ended,
    "Failed": phases.ended,
}


def reconcile(
    wrapper: AppWrapper, snapshot: WrapperSnapshot, rules: WrapperRules, now: datetime
) -> WrapperPlan:
    """Decide what to write and to do now, and what comes next. Never raises."""
    context = PhaseContext.of(wrapper, snapshot, rules, now)
    if not wrapper.ours:
        return context.stay(wrapper.status)
    if not snapshot.complete:
        waits = Next("a decision", "not everything is seen yet", waits=("mirrors",))
        return context.stay(wrapper.status, next=waits)
    forbidden = bool(snapshot.forbidden) and c.is_true(context.status, c.DEPLOYED)
    if forbidden and (plan := _forbidden(context)) is not None:
        return plan
    plan = _phase_of(context)(context)
    bad = (
        WrapperEvent(BAD_ANNOTATION, why, f"annotation/{key}") for key, why in context.p.problems
    )
    status = plan.status if forbidden else c.drop(plan.status, c.FORBIDDEN)
    return replace(plan, say=(*plan.say, *bad), status=status)


def _forbidden(context: PhaseContext) -> WrapperPlan | None:
    """Say that a kind may not be read, in a look of its own: what follows may fail for that. None
    where it says so already.
    """
    kinds = ", ".join(
        f"{'/'.join(filter(None, kind[:2]))} {kind[2]}" for kind in context.snapshot.forbidden
    )
    why = f"{kinds} may not be read, so that it is neither reset nor moved, and not deleted; have an administrator add it to wrappedKinds again"
    known = c.find(context.status, c.FORBIDDEN)
    if known is not None and (known.status, known.message) == ("True", why):
        return None
    status = context.put(context.status, c.FORBIDDEN, True, "KindNotWrapped", why)
    event = WrapperEvent("KindNotWrapped", why, f"KindNotWrapped/{kinds}")
    return context.stay(status, say=(event,), next=context.at_once("a decision", why))


def _phase_of(context: PhaseContext) -> Callable[[PhaseContext], WrapperPlan]:
    wrapper, status = context.wrapper, context.status
    if wrapper.metadata.deletion_timestamp is not None:
        return phases.terminating
    phase, leftover = status.phase, False
    if phase in {"Resuming", "Running"}:
        leftover = len(status.component_status) != len(wrapper.spec.components)
        leftover = leftover or (phase == "Resuming" and begun_otherwise(context))
    elif phase in {"", "Suspended"}:
        leftover = c.is_true(status, c.DEPLOYED) or leftovers(context)
    if leftover:
        return phases.leftover
    # A phase that we do not know, or one that only a deletion leads to, was written by somebody
    # else.
    return _PHASES.get(phase, phases.suspending)
