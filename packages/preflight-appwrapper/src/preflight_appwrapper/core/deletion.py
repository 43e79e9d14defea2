"""Deleting everything: by force when it takes long, not believed before two reads agree. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from preflight_appwrapper.api import conditions as c
from preflight_appwrapper.api.types import AppWrapperStatus
from preflight_appwrapper.core.phase_context import PhaseContext, deadline, expired
from preflight_appwrapper.core.plan import Confirm, DeleteObject, List, Next, WrapperAction
from preflight_appwrapper.core.snapshot import WrapperSnapshot

_AGAIN: Final = timedelta(seconds=10)
"""A delete is repeated when the object is still there, and not even going, after so long."""
_FORCE_AGAIN: Final = timedelta(seconds=5)
_APART: Final = timedelta(seconds=1)
"""Between the two reads: a controller may have one create in flight when its object goes."""
_AT_ONCE: Final = 32
"""Pods that are deleted by force in one go."""
_MOST_NAMED: Final = 8


class DeletionProgress(msgspec.Struct, frozen=True, kw_only=True):
    """``done``: nothing is left, by two reads. ``forced``: the period for a normal one is over."""

    done: bool = False
    forced: bool = False
    actions: tuple[WrapperAction, ...] = ()
    next: Next | None = None
    blocked: tuple[str, ...] = ()


class _Left(NamedTuple):
    """What is there yet, and how it goes."""

    delete: DeleteObject
    going: bool
    finalizers: tuple[str, ...]


def leftovers(context: PhaseContext) -> bool:
    """Say whether a component of this wrapper is seen, or something that only belongs to it."""
    return any(True for _ in _things(context.status, context.snapshot))


def progress(context: PhaseContext, status: AppWrapperStatus) -> DeletionProgress:
    """Decide what is to be done now; the deletion began when ``DeletingResources`` became True."""
    snapshot, period, now = context.snapshot, context.p.forceful_deletion, context.now
    things = list(_things(status, snapshot))
    asked = tuple(
        Confirm(i)
        for i, known in enumerate(status.component_status)
        if known.name and snapshot.component(i).state == "unknown"
    )
    if not things and not snapshot.pods:
        if asked:
            return DeletionProgress(actions=asked, next=_wait(None))
        return _assertion(snapshot, now)
    start = context.since(status, c.DELETING) or now
    force = deadline(start, period)
    if expired(start, period, now):
        return _force(things, snapshot, asked, force, now)
    due = _due(things, snapshot, now)
    sent = (thing.delete for thing in things if not thing.going and thing.delete not in due)
    at = min([force, *(snapshot.attempts[delete] + _AGAIN for delete in sent)])
    what = "deletion by force" if at == force else "the delete is repeated"
    return DeletionProgress(actions=(*asked, *due), next=_wait(at, f"{what}, if anything is left"))


def _things(status: AppWrapperStatus, snapshot: WrapperSnapshot) -> Iterator[_Left]:
    """Components that are ours; a name under which somebody else's object lives counts as gone."""
    for i, known in enumerate(status.component_status):
        seen = snapshot.component(i)
        if seen.state in {"present", "going"} and seen.uid and known.name and seen.ours:
            delete = DeleteObject(known.api_version, known.kind, known.name, seen.uid)
            yield _Left(delete, seen.state == "going", seen.finalizers)
    for stray in snapshot.strays:
        delete = DeleteObject(stray.api_version, stray.kind[2], stray.name, stray.uid)
        yield _Left(delete, stray.going, stray.finalizers)


def _wait(at: datetime | None, what: str = "what is left is deleted") -> Next:
    return Next(what, "deletion goes on until nothing is left", at, waits=("components", "pods"))


def _due(things: list[_Left], snapshot: WrapperSnapshot, now: datetime) -> tuple[DeleteObject, ...]:
    """The deletes of what is not going, but those of the last seconds."""
    last = {action: at + _AGAIN for action, at in snapshot.attempts.items()}
    deletes = (thing.delete for thing in things if not thing.going)
    return tuple(delete for delete in deletes if last.get(delete, now) <= now)


def _force(
    things: list[_Left],
    snapshot: WrapperSnapshot,
    asked: tuple[WrapperAction, ...],
    forced_at: datetime,
    now: datetime,
) -> DeletionProgress:
    pods = [
        _Left(
            DeleteObject("v1", "Pod", pod.name, pod.uid, True), pod.going, pod.metadata.finalizers
        )
        for pod in sorted(snapshot.pods, key=lambda pod: pod.name)
    ]
    forced = [pod.delete for pod in pods if pod.delete.uid]
    if snapshot.pods:  # what makes them goes first, also where the period is 0
        asked += _due(things, snapshot, now)
    else:
        forced = [replace(thing.delete, force=True) for thing in things]
    last = {action: at + _FORCE_AGAIN for action, at in snapshot.attempts.items()}
    due = [delete for delete in forced if last.get(delete, now) <= now]
    fresh = last.get(List(), now) > now
    if snapshot.pods and not fresh and any(delete not in last for delete in due):
        waits = _wait(None, "pods are read before force")
        return DeletionProgress(forced=True, actions=(*asked, List()), next=waits)
    later = (last[delete] for delete in forced if delete not in due)
    at = min(later, default=now + _FORCE_AGAIN)
    blocked = []
    if now >= forced_at + _FORCE_AGAIN:  # the same for each leader, so that nobody takes it back
        blocked = [
            f"{it.delete.kind} {it.delete.name} ({why})"
            for it in (*pods, *things)
            if (why := _finalizers(it) or snapshot.refused.get(it.delete.uid))
        ]
    return DeletionProgress(
        forced=True,
        actions=(*asked, *due[:_AT_ONCE]),
        next=_wait(at, "deletion by force is repeated, if anything is left"),
        blocked=tuple(sorted({*blocked})[:_MOST_NAMED]),
    )


def _finalizers(left: _Left) -> str:
    return f"finalizer {', '.join(left.finalizers)[:200]}" if left.finalizers else ""


def _assertion(snapshot: WrapperSnapshot, now: datetime) -> DeletionProgress:
    valid = snapshot.empty
    if len(valid) >= 2 and valid[-1] - valid[0] >= _APART:
        return DeletionProgress(done=True)
    if not valid or now >= valid[0] + _APART:
        return DeletionProgress(actions=(List(),), next=_wait(None, "everything is read once more"))
    return DeletionProgress(next=_wait(valid[0] + _APART, "everything is read once more"))
