"""Conditions of a wrapper and of its components: types, and how they change. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Final, TypeVar

from msgspec.structs import replace

from preflight_appwrapper.api.types import AppWrapperStatus, ComponentStatus, Condition

S = TypeVar("S", AppWrapperStatus, ComponentStatus)
Status = AppWrapperStatus | ComponentStatus

QUOTA: Final = "QuotaReserved"
DEPLOYED: Final = "ResourcesDeployed"
READY: Final = "PodsReady"
UNHEALTHY: Final = "Unhealthy"
DELETING: Final = "DeletingResources"
HELD: Final = "EvacuationHeld"
"""A condition of our own making: it is to leave where it runs, and the brake has it wait."""
FORBIDDEN: Final = "ComponentsForbidden"
"""A condition of our own making: the controller may not read a kind that is wrapped."""
FINISHED: Final = "Finished"
"""A component's condition, of our own making: it was seen to end well, so that it may be gone."""

Written = tuple[str, str, datetime | None]
"""Type, status and time of a condition."""


def find(status: Status, type_: str) -> Condition | None:
    """The condition of this type; None where there is none."""
    for known in status.conditions:
        if known.type == type_:
            return known
    return None


def is_true(status: Status, type_: str, *reasons: str, value: str = "True") -> bool:
    """Say whether there is such a condition, True, and for one of ``reasons`` if any is named."""
    known = find(status, type_)
    return known is not None and known.status == value and (not reasons or known.reason in reasons)


def is_false(status: Status, type_: str, *reasons: str) -> bool:
    """Say the same of False; absent or Unknown is not."""
    return is_true(status, type_, *reasons, value="False")


def since(status: AppWrapperStatus, type_: str) -> datetime | None:
    """Return when the condition got the status that it has, by the clock of who wrote that."""
    known = find(status, type_)
    return known.last_transition_time if known else None


def component_is(component: ComponentStatus) -> str:
    """``True``: created. ``Unknown``: begun. ``False``: deleted, or refused. Empty: never begun."""
    known = find(component, DEPLOYED)
    return known.status if known else ""


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
    """``status`` with this condition (None: Unknown); its time moves with its status, never back:
    clocks of two leaders differ.
    """
    text = "Unknown" if value is None else str(value)
    old, at = find(status, type_), now.replace(microsecond=0)
    if old is not None and (before := old.last_transition_time) is not None:
        at = before if old.status == text else max(at, before.replace(microsecond=0))
    condition = Condition(
        type=type_,
        status=text,
        reason=reason,
        message=message,
        last_transition_time=at,
        observed_generation=generation,
    )
    conditions = {known.type: known for known in status.conditions} | {type_: condition}
    return replace(status, conditions=tuple(conditions.values()))


def drop(status: S, type_: str) -> S:
    """``status`` without this condition, so that the next one of its type has a new time."""
    kept = tuple(known for known in status.conditions if known.type != type_)
    return status if kept == status.conditions else replace(status, conditions=kept)


def dated(status: AppWrapperStatus, now: datetime) -> AppWrapperStatus:
    """``status`` with a time in each condition whose own cannot be read: none is stored without."""
    every: tuple[Status, ...] = (status, *status.component_status)
    at = now.replace(microsecond=0)
    if all(known.last_transition_time for each in every for known in each.conditions):
        return status

    def of(each: S) -> S:
        times = ((known, known.last_transition_time or at) for known in each.conditions)
        known = tuple(replace(known, last_transition_time=time) for known, time in times)
        return replace(each, conditions=known)

    return replace(of(status), component_status=tuple(map(of, status.component_status)))


def written(condition: Condition) -> Written:
    """Return what tells a condition from the same one at another time."""
    return condition.type, condition.status, condition.last_transition_time
