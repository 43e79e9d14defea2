"""Deleting everything: once normally, by force when that takes too long, and not believed before
two consistent reads agree. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec
from preflight_kube.api.kinds import kind_of

from preflight_appwrapper.api import conditions as c
from preflight_appwrapper.api.types import AppWrapperStatus
from preflight_appwrapper.core.deadlines import deadline, expired
from preflight_appwrapper.core.decode import ComponentObject
from preflight_appwrapper.core.parameters import Parameters
from preflight_appwrapper.core.plan import Confirm, DeleteObject, List, Next, WrapperAction
from preflight_appwrapper.core.snapshot import WrapperSnapshot

__all__ = ["DeletionProgress", "leftovers", "progress"]

_AGAIN: Final = timedelta(seconds=10)
"""A delete is repeated when the object is still there, and not even going, after so long."""
_FORCE_AGAIN: Final = timedelta(seconds=5)
_APART: Final = timedelta(seconds=1)
"""Between the two reads: a controller may have one create in flight when its object goes."""
_AT_ONCE: Final = 32
"""Pods that are deleted by force in one go."""
_MOST_NAMED: Final = 8


class DeletionProgress(msgspec.Struct, frozen=True, kw_only=True):
    """``done``: nothing is left, by two reads. ``forced``: the period for a normal deletion is
    over.
    """

    done: bool = False
    forced: bool = False
    actions: tuple[WrapperAction, ...] = ()
    next: Next | None = None
    blocked: tuple[str, ...] = ()


def _deletes(one: ComponentObject, *, force: bool) -> DeleteObject:
    return DeleteObject(one.api_version, one.kind[2], one.name, one.uid, force)


def leftovers(status: AppWrapperStatus, snapshot: WrapperSnapshot) -> bool:
    """Say whether a component of this wrapper is seen, or something that only belongs to it."""
    return bool(snapshot.strays) or any(True for _ in _things(status, snapshot))


def progress(
    status: AppWrapperStatus, snapshot: WrapperSnapshot, p: Parameters, now: datetime
) -> DeletionProgress:
    """Decide what is to be done now; ``DeletingResources`` is True in ``status``, and its
    transition is when the deletion began.
    """
    start = c.since(status, c.DELETING) or now
    things = list(_things(status, snapshot))
    asked = [
        Confirm(i)
        for i, known in enumerate(status.component_status)
        if known.name and snapshot.component(i).state == "unknown"
    ]
    if not things and not snapshot.pods:
        return (
            _assertion(snapshot, now)
            if not asked
            else DeletionProgress(actions=tuple(asked), next=_wait(None))
        )
    if expired(start, p.forceful_deletion, now):
        return _force(things, snapshot, asked, deadline(start, p.forceful_deletion), now)
    return _normal(things, snapshot, asked, deadline(start, p.forceful_deletion), now)


def _things(status: AppWrapperStatus, snapshot: WrapperSnapshot) -> Iterator[ComponentObject]:
    """Components that are ours; a name under which somebody else's object lives counts as gone."""
    for i, known in enumerate(status.component_status):
        one = snapshot.component(i)
        if one.state not in {"present", "going"} or not one.uid or not known.name:
            continue
        if one.ours:
            yield ComponentObject(
                kind=kind_of(known.api_version, known.kind),
                namespace="",
                name=known.name,
                uid=one.uid,
                version=0,
                going=one.state == "going",
                finalizers=one.finalizers,
            )
    yield from snapshot.strays


def _wait(at: datetime | None, what: str = "what is left is deleted") -> Next:
    return Next(what, "deletion goes on until nothing is left", at, waits=("components", "pods"))


def _normal(
    things: list[ComponentObject],
    snapshot: WrapperSnapshot,
    asked: list[Confirm],
    force: datetime,
    now: datetime,
) -> DeletionProgress:
    actions: list[WrapperAction] = list(asked)
    again: list[datetime] = [force]
    for one in things:
        if one.going:
            continue
        delete = _deletes(one, force=False)
        last = snapshot.attempts.get(delete.key)
        if last is None or now >= last + _AGAIN:
            actions.append(delete)
        else:
            again.append(last + _AGAIN)
    at = min(again)
    what = "deletion by force" if at == force else "the delete is repeated"
    return DeletionProgress(actions=tuple(actions), next=_wait(at, f"{what}, if anything is left"))


def _force(
    things: list[ComponentObject],
    snapshot: WrapperSnapshot,
    asked: list[Confirm],
    forced_at: datetime,
    now: datetime,
) -> DeletionProgress:
    pods = sorted((pod for pod in snapshot.pods if pod.uid), key=lambda it: it.name)
    forced = [DeleteObject("v1", "Pod", pod.name, pod.uid, force=True) for pod in pods]
    if not snapshot.pods:
        forced = [_deletes(one, force=True) for one in things]
    due = [
        one
        for one in forced
        if one.key not in snapshot.attempts or now >= snapshot.attempts[one.key] + _FORCE_AGAIN
    ]
    last = [snapshot.attempts[one.key] + _FORCE_AGAIN for one in forced if one not in due]
    listed = snapshot.attempts.get(List().key)
    fresh = listed is not None and now < listed + _FORCE_AGAIN
    if snapshot.pods and not fresh and any(one.key not in snapshot.attempts for one in due):
        return DeletionProgress(
            forced=True, actions=(*asked, List()), next=_wait(None, "pods are read before force")
        )
    actions = due[:_AT_ONCE]
    at = min(last, default=now + _FORCE_AGAIN)
    blocked = []
    if now >= forced_at + _FORCE_AGAIN:  # the same for each leader, so that nobody takes it back
        held = [("Pod", pod.name, pod.metadata.finalizers) for pod in snapshot.pods]
        held += [(one.kind[2], one.name, one.finalizers) for one in things]
        blocked = [
            f"{kind} {name} (finalizer {', '.join(by)[:200]})" for kind, name, by in held if by
        ]
    return DeletionProgress(
        forced=True,
        actions=(*asked, *actions),
        next=_wait(at, "deletion by force is repeated, if anything is left"),
        blocked=tuple(sorted(blocked)[:_MOST_NAMED]),
    )


def _assertion(snapshot: WrapperSnapshot, now: datetime) -> DeletionProgress:
    valid = snapshot.empty
    if len(valid) >= 2 and valid[-1] - valid[0] >= _APART:
        return DeletionProgress(done=True)
    if not valid or now >= valid[0] + _APART:
        return DeletionProgress(actions=(List(),), next=_wait(None, "everything is read once more"))
    return DeletionProgress(next=_wait(valid[0] + _APART, "everything is read once more"))
