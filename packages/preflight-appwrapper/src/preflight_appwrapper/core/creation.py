"""Creating the components in order, each under a name that is in the status by then. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from preflight_appwrapper.api import conditions as c
from preflight_appwrapper.api.types import AppWrapperStatus, ComponentStatus
from preflight_appwrapper.core.components import ComponentError, Named, build, named
from preflight_appwrapper.core.phase_context import PhaseContext, expired
from preflight_appwrapper.core.plan import Confirm, CreateComponent, Next, WrapperAction

_CREATED: Final = "ComponentCreatedSuccessfully"
_LONGEST_PAUSE: Final = 10
_BATCH: Final = 16
"""Components whose names are written at once; each write of a status is as long as all of them."""


class Creation(msgspec.Struct, frozen=True, kw_only=True):
    """``status``: with what is known of the components, and with the name of what is created now.
    ``fatal``: why it can never succeed; ``late``: why it has not, for longer than
    AdmissionGracePeriod. ``done``: everything is created."""

    status: AppWrapperStatus
    actions: tuple[WrapperAction, ...] = ()
    next: Next | None = None
    fatal: str = ""
    late: str = ""
    done: bool = False


def begun_otherwise(context: PhaseContext) -> bool:
    """Say whether a component was begun as another one than is wrapped, so not by us."""
    for i, known in enumerate(context.status.component_status):
        if c.component_is(known) in {"", "False"}:
            continue
        try:
            wanted = named(context.wrapper, i, known.name[-5:])
        except ComponentError:
            return True
        if wanted != Named(known.api_version, known.kind, known.name):
            return True
    return False


def proceed(context: PhaseContext, status: AppWrapperStatus) -> Creation:
    """The first component that is not created decides; ``status`` is the one to go on from."""
    marked = status
    for i, known in enumerate(status.component_status):
        state = c.component_is(known)
        if state == "True":
            continue
        if state != "Unknown" or not known.name:
            return _begin(context, marked, i)
        seen = context.snapshot.component(i)
        if seen.confirmed and seen.state == "present" and seen.ours:
            created = c.put(
                replace(known, uid=seen.uid), c.DEPLOYED, True, _CREATED, now=context.now
            )
            marked = _with(marked, i, created)
            if _create(context, known, i) not in context.snapshot.attempts:
                status = marked  # an earlier leader's: who finds it says so at once
            continue
        creation = _begun(context, marked, i)
        # That others exist can wait for the next names, or for the end.
        return replace(creation, status=status) if creation.actions else creation
    return Creation(status=marked, done=True)


def _begin(context: PhaseContext, status: AppWrapperStatus, first: int) -> Creation:
    """The names from component ``first`` on are written, and that one is created."""
    names: list[Named] = []
    for i in range(first, min(first + _BATCH, len(status.component_status))):
        if i > first and c.component_is(status.component_status[i]) not in {"", "False"}:
            break
        try:
            name = named(context.wrapper, i, context.snapshot.suffix)
            build(replace(context.wrapper, status=status), i, name.name, context.rules)
        except ComponentError as error:
            if not names:
                return Creation(status=status, fatal=str(error))
            break
        if name in names:  # two of one prefix need random characters each
            break
        names.append(name)
        status = _with(status, i, _named(status.component_status[i], name, context.now))
    create = _create(context, status.component_status[first], first)
    return Creation(status=status, actions=(create,), next=_wait(str(names[0])))


def _create(context: PhaseContext, known: ComponentStatus, i: int) -> CreateComponent:
    return CreateComponent(i, known.name, context.wrapper.metadata.uid)


def _named(known: ComponentStatus, name: Named, now: datetime) -> ComponentStatus:
    known = replace(known, name=name.name, kind=name.kind, api_version=name.api_version, uid="")
    known = c.put(known, c.DEPLOYED, None, "ComponentCreationInitiated", now=now)
    return c.drop(known, c.FINISHED)


def _begun(context: PhaseContext, status: AppWrapperStatus, i: int) -> Creation:
    """The name is written; whether the object exists is to be found out."""
    known, seen, now = status.component_status[i], context.snapshot.component(i), context.now
    what, where = f"{known.kind} {known.name}", f"spec.components[{i}].template"
    if seen.state in {"present", "going"} and seen.confirmed:
        if seen.ours:
            waits = _wait(what, "it is created once its predecessor is gone")
            return Creation(status=status, next=waits)
        fatal = f"{where}: {what} exists and belongs to {seen.owner or 'nobody'}; delete it, or choose another name."
        return Creation(status=status, fatal=fatal)
    attempt, ask, create = seen.attempt, Confirm(i), _create(context, known, i)
    if attempt is None:
        there = seen.state == "present" and seen.ours
        return Creation(status=status, actions=(ask if there else create,), next=_wait(what))
    error = c.put(known, c.DEPLOYED, False, "ComponentCreationErrored", attempt.error, now=now)
    errored = _with(status, i, error)
    if attempt.fatal:
        return Creation(status=errored, fatal=f"{where}: {what} was refused: {attempt.error}")
    if attempt.unclear and not seen.confirmed:
        waits = _wait(what, "no answer came, so it is asked for")
        return Creation(status=status, actions=(ask,), next=waits)
    if expired(context.since(status, c.DEPLOYED) or now, context.p.admission, now):
        late = f"{where}: {what} could not be created: {attempt.error}"
        return Creation(status=errored, late=late)
    # 1, 2, 4, 8, 10, 10 … seconds
    pause = min(2 ** min(max(attempt.tries - 1, 0), 10), _LONGEST_PAUSE)
    again = attempt.at + timedelta(seconds=pause)
    if now >= again:
        return Creation(status=status, actions=(create,), next=_wait(what))
    waits = _wait(what, f"the last try failed: {attempt.error:.300}", again)
    return Creation(status=status, next=waits)


def _with(status: AppWrapperStatus, i: int, known: ComponentStatus) -> AppWrapperStatus:
    every = status.component_status
    return replace(status, component_status=(*every[:i], known, *every[i + 1 :]))


def _wait(
    what: str, why: str = "components are created one after another", at: datetime | None = None
) -> Next:
    return Next(f"{what} is created", why, at, waits=("components", "wrapper"))
