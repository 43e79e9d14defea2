"""Conditions of a wrapper and of its components: types, reasons, and how they change. Pure.

``lastTransitionTime`` moves only when ``status`` moves; a message may change without it. Times have
whole seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, TypeVar

from msgspec.structs import replace

from preflight_appwrapper.api.types import AppWrapperStatus, ComponentStatus, Condition

S = TypeVar("S", AppWrapperStatus, ComponentStatus)

QUOTA: Final = "QuotaReserved"
DEPLOYED: Final = "ResourcesDeployed"
READY: Final = "PodsReady"
UNHEALTHY: Final = "Unhealthy"
DELETING: Final = "DeletingResources"
HELD: Final = "EvacuationHeld"
"""A condition of our own making: it is to leave where it runs, and the brake has it wait."""
FINISHED: Final = "Finished"
"""A component's condition, of our own making: it was seen to end well, so that it may be gone."""

Written = tuple[str, str, datetime | None]
"""Type, status and time of a condition."""
_MOST: Final = 32
"""Conditions that are kept; we have six."""


def find(conditions: tuple[Condition, ...], type_: str) -> Condition | None:
    """The condition of this type; None where there is none."""
    return next((one for one in conditions if one.type == type_), None)


def is_true(status: AppWrapperStatus | ComponentStatus, type_: str, *reasons: str) -> bool:
    """Say whether there is such a condition, True, and for one of ``reasons`` if any is named."""
    return _is("True", status, type_, reasons)


def is_false(status: AppWrapperStatus | ComponentStatus, type_: str, *reasons: str) -> bool:
    """Say the same of False; absent or Unknown is not."""
    return _is("False", status, type_, reasons)


def _is(
    value: str, status: AppWrapperStatus | ComponentStatus, type_: str, reasons: tuple[str, ...]
) -> bool:
    found = find(status.conditions, type_)
    return found is not None and found.status == value and (not reasons or found.reason in reasons)


def since(status: AppWrapperStatus, type_: str) -> datetime | None:
    """Return when the condition got the status that it has."""
    found = find(status.conditions, type_)
    return found.last_transition_time if found else None


def component_is(one: ComponentStatus) -> str:
    """``True``: created. ``Unknown``: begun. ``False``: deleted, or refused. Empty: never begun."""
    found = find(one.conditions, DEPLOYED)
    return found.status if found else ""


def put(
    status: S,
    type_: str,
    value: bool | None,
    reason: str,
    message: str = "",
    *,
    now: datetime,
    generation: int = 0,
) -> S:
    """``status``, of a wrapper or of a component, with this condition; ``value`` None: Unknown. Its
    time moves only where its status does, and never back: clocks of two leaders differ.
    """
    text = "Unknown" if value is None else str(value)
    old, at = find(status.conditions, type_), now.replace(microsecond=0)
    before = old.last_transition_time if old is not None else None
    if old is not None and before is not None:
        at = before if old.status == text else max(at, before.replace(microsecond=0))
    condition = Condition(
        type=type_,
        status=text,
        reason=reason,
        message=message,
        last_transition_time=at,
        observed_generation=generation,
    )
    if old is None:
        return replace(status, conditions=(*status.conditions, condition))
    kept = tuple(condition if one is old else one for one in status.conditions)
    return replace(status, conditions=kept)


def drop(status: S, type_: str) -> S:
    """``status`` without this condition, so that the next one of its type has a new time."""
    return replace(status, conditions=tuple(one for one in status.conditions if one.type != type_))


def repaired(
    status: AppWrapperStatus, now: datetime, first_seen: Mapping[Written, datetime] = {}
) -> AppWrapperStatus:
    """``status`` with each condition once, and a time that a period can be counted from: when this
    leader has first seen it, where it knows that better than a timestamp does.
    """
    kept: dict[str, Condition] = {}
    for one in status.conditions[: 4 * _MOST]:
        if one.type and one.type not in kept and len(kept) < _MOST:
            at = first_seen.get(written(one), one.last_transition_time)
            at = now.replace(microsecond=0) if at is None or at > now else at
            kept[one.type] = replace(one, last_transition_time=at)
    conditions = tuple(kept.values())
    return status if conditions == status.conditions else replace(status, conditions=conditions)


def restored(
    status: AppWrapperStatus, used: AppWrapperStatus, before: AppWrapperStatus
) -> AppWrapperStatus:
    """``status``, which was made from ``used`` instead of ``before``, with the times that are
    written there, and none earlier: nothing is written because clocks differ.
    """
    if used is before:
        return status
    known = {one.type: one for one in used.conditions}
    times = {one.type: one.last_transition_time for one in before.conditions}
    made = []
    for one in status.conditions:
        old, at = times.get(one.type), one.last_transition_time
        same = one.type in known and written(known[one.type]) == written(one)
        if old is not None and at is not None and (same or old > at):
            one = replace(one, last_transition_time=old)  # noqa: PLW2901
        made.append(one)
    conditions = tuple(made)
    return (
        before
        if replace(status, conditions=conditions) == before
        else replace(status, conditions=conditions)
    )


def written(one: Condition) -> Written:
    """Return what tells a condition from the same one at another time."""
    return one.type, one.status, one.last_transition_time
