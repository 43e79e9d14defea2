"""One function a phase: what follows from the status, the view and the time. Pure.

Each returns a step that writes the status at most once; the row of :mod:`.table` that was taken
gives the next phase.
"""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace
from preflight_proto.durations import format_duration

from preflight_appwrapper.api import conditions as c
from preflight_appwrapper.api.names import FINALIZER
from preflight_appwrapper.api.types import AppWrapperStatus, ComponentStatus
from preflight_appwrapper.core import deletion, podsets
from preflight_appwrapper.core.creation import proceed
from preflight_appwrapper.core.deadlines import deadline, expired
from preflight_appwrapper.core.health import HealthJudgment, finished, judge
from preflight_appwrapper.core.marks import NOT_JUDGED, not_judged
from preflight_appwrapper.core.phase_context import Look, at_once
from preflight_appwrapper.core.plan import (
    AddFinalizer,
    Confirm,
    Figures,
    Holding,
    Next,
    RemoveFinalizer,
    WrapperEvent,
    WrapperStep,
)
from preflight_appwrapper.core.snapshot import HeldEvacuation

__all__ = [
    "failed",
    "leftover",
    "resetting",
    "resuming",
    "running",
    "succeeded",
    "suspended",
    "suspending",
    "terminating",
    "unseen",
]

_EVACUATIONS = frozenset({"AutopilotNoExecute", "PreflightFailed"})


# --- deletion, in whichever phase


def _deleting(look: Look, status: AppWrapperStatus) -> AppWrapperStatus:
    """Deletion begins, or goes on with the start that it has."""
    if c.is_true(status, c.DELETING):
        return status
    return look.put(c.drop(status, c.HELD), c.DELETING, True, "DeletionInitiated")


def _delete(look: Look, step: WrapperStep) -> tuple[WrapperStep, bool]:
    """``step`` with what deletion needs now, and whether everything is deleted."""
    status = step.status
    if not c.is_true(status, c.DELETING):
        return replace(step, status=_deleting(look, status)), False
    found = deletion.progress(status, look.seen, look.p, look.now)
    if found.done:
        return step, True
    blocked = "; ".join(found.blocked)
    message = f"cannot be removed even by force: {blocked}" if blocked else ""
    status = look.put(status, c.DELETING, True, "DeletionInitiated", message)
    say = step.say
    start = c.since(status, c.DELETING)
    if found.forced:
        said = f"not deleted within {format_duration(look.p.forceful_deletion)}; what is left is deleted by force"
        say = (
            *say,
            WrapperEvent(
                reason="DeletionForced", message=said, warning=True, key=f"DeletionForced/{start}"
            ),
        )
    if blocked:
        key = f"DeletionBlocked/{start}/{blocked}"
        say = (*say, WrapperEvent(reason="DeletionBlocked", message=message, warning=True, key=key))
    return (
        replace(
            step,
            status=status,
            actions=(*step.actions, *found.actions),
            next=found.next,
            blocked=found.blocked,
            say=say,
        ),
        False,
    )


def _begin_deletion(look: Look, step: WrapperStep) -> WrapperStep:
    """``step``, which takes a row, with the first of deletion; whether it is done is for the next
    look, for that is a row of its own.
    """
    return _or_now(look, _delete(look, step)[0], "nothing is seen of it any more")


def _or_now(look: Look, step: WrapperStep, why: str) -> WrapperStep:
    """``step``; where it waits for nothing, deletion goes on at once."""
    return step if step.next else replace(step, next=at_once(look, "deletion", why))


def _undeployed(
    look: Look, status: AppWrapperStatus, reason: str, *, quota: bool
) -> AppWrapperStatus:
    """Everything is deleted: RD=F, and QR=F where the quota is given back."""
    status = look.put(status, c.DEPLOYED, False, reason, "everything is deleted")
    if quota:
        status = look.put(status, c.QUOTA, False, reason)
    status = look.put(status, c.DELETING, False, "DeletionComplete")
    components = tuple(_forgotten(look, one) for one in status.component_status)
    return replace(status, component_status=components)


def _forgotten(look: Look, one: ComponentStatus) -> ComponentStatus:
    if not c.component_is(one):
        return one
    one = replace(
        one, uid="", conditions=tuple(it for it in one.conditions if it.type != c.FINISHED)
    )
    return c.put_component(one, c.DEPLOYED, False, "ComponentDeleted", now=look.now)


# --- before it runs


def unseen(look: Look) -> WrapperStep:
    """Of a wrapper that has no phase yet."""
    if _leftover(look):
        return leftover(look)
    status = look.status
    if len(status.component_status) != len(look.wrapper.spec.components):
        status = replace(status, component_status=podsets.initial(look.wrapper.spec.components))
    return look.take(
        "seen", status, next=at_once(look, "Suspended", "it was seen for the first time")
    )


def leftover(look: Look) -> WrapperStep:
    """Its status was changed by somebody else, so that nobody knows what exists of it: everything
    is deleted, and made anew.
    """
    return _to_suspending(
        look, "leftover", "something of it exists that its status does not speak of"
    )


def _leftover(look: Look) -> bool:
    return c.is_true(look.status, c.DEPLOYED) or deletion.leftovers(look.status, look.seen)


def suspended(look: Look) -> WrapperStep:
    """Nothing of it exists: created as soon as ``suspend`` is false, the finalizer first."""
    wrapper, status = look.wrapper, look.status
    if _leftover(look):
        return leftover(look)
    if wrapper.spec.suspend:
        return look.stay(status, next=Next("Resuming", "spec.suspend is true"))
    if why := not_judged(wrapper, look.rules):
        status = look.put(status, c.QUOTA, False, NOT_JUDGED, why)
        return _left_alone(look, status, why)
    if FINALIZER not in wrapper.metadata.finalizers:
        add = AddFinalizer(wrapper.metadata.uid, wrapper.metadata.resource_version)
        return look.stay(
            status,
            actions=(add,),
            next=Next("Resuming", "the finalizer comes first"),
        )
    return _resume(look, "resume", "suspend is false")


def _left_alone(look: Look, status: AppWrapperStatus, why: str) -> WrapperStep:
    said = WrapperEvent(reason=NOT_JUDGED, message=why, warning=True, key=NOT_JUDGED)
    return look.stay(status, say=(said,), next=Next("Resuming", why))


def _resume(look: Look, row: str, why: str) -> WrapperStep:
    status = look.status
    if len(status.component_status) != len(look.wrapper.spec.components):
        status = replace(status, component_status=podsets.initial(look.wrapper.spec.components))
    status = replace(
        status, component_status=tuple(_forgotten(look, one) for one in status.component_status)
    )
    status = look.put(status, c.QUOTA, True, "Resuming", why)
    status = look.put(status, c.DEPLOYED, True, "Resuming", why)
    status = look.put(status, c.READY, False, "Resuming")
    status = look.put(status, c.UNHEALTHY, False, "Resuming")
    step = look.take(
        row,
        c.drop(status, c.DELETING),
        say=(look.say("Resuming", f"components are created: {why}"),),
    )
    # What was seen under the names of an earlier life says nothing of this one.
    fresh = replace(look, seen=replace(look.seen, components=()))
    return _creating(fresh, step)


def _creating(look: Look, step: WrapperStep) -> WrapperStep:
    made = proceed(look.wrapper, step.status, look.seen, look.rules, p=look.p, now=look.now)
    if made.fatal:
        return _failing(look, replace(step, status=made.status), "create-fatal", made.fatal)
    if made.late:
        if made.status.resetting_count < look.p.retry_limit:
            return _reset(look, made.status, "create-late", "CreateFailed", made.late, counted=True)
        return _failing(look, replace(step, status=made.status), "create-last", made.late)
    if made.done and step.row:
        return replace(step, next=at_once(look, "Running", "there is nothing to create"))
    if made.done:
        said = look.say("Running", "all components are created")
        return look.take(
            "created",
            made.status,
            say=(*step.say, said),
            next=at_once(look, "Running", "all is created"),
        )
    return replace(step, status=made.status, actions=(*step.actions, *made.actions), next=made.next)


def _failing(look: Look, step: WrapperStep, row: str, why: str) -> WrapperStep:
    """A wrapper whose first component cannot be created fails in a look of its own, so that each
    row is one write.
    """
    if step.row:
        return replace(step, next=at_once(look, "Failed", why))
    return _fail(look, step.status, row, "CreateFailed", why)


def resuming(look: Look) -> WrapperStep:
    """Its components are created one after another."""
    if look.wrapper.spec.suspend:
        return _to_suspending(look, "resuming-suspend", "suspended while it was created")
    return _creating(look, look.stay(look.status))


# --- running


def running(look: Look) -> WrapperStep:
    """All components are created; the rules of health decide."""
    if look.wrapper.spec.suspend:
        return _to_suspending(look, "running-suspend", "suspended while it ran")
    wrapper = replace(look.wrapper, status=look.status)
    found = judge(wrapper, look.seen, look.p, look.rules, look.now)
    status = _marked(look, look.status, found)
    if found.result == "confirm":
        actions = tuple(Confirm(i) for i in found.confirm)
        waits = Next(
            "rule 1: a component is missing", found.holding.sentence, waits=("components",)
        )
        return look.stay(look.status, actions=actions, next=waits, holding=found.holding)
    if found.result == "succeeded":
        return _succeed(look, status, found.holding)
    if found.result == "held" and look.seen.held is not None:
        return _held(look, status, found, look.seen.held)
    status = c.drop(status, c.HELD)
    if found.result in {"healthy", "waiting"}:
        return _healthy(look, status, found)
    return _unhealthy(look, status, found)


def _marked(look: Look, status: AppWrapperStatus, found: HealthJudgment) -> AppWrapperStatus:
    """What the judgment says of readiness, and which components have ended well and may go."""
    status = _readiness(look, status, found.holding.figures)
    components = tuple(
        c.put_component(one, c.FINISHED, True, "ComponentFinished", now=look.now)
        if not c.is_true(one, c.FINISHED)
        and c.component_is(one) == "True"
        and finished(status, look.seen, i)
        else one
        for i, one in enumerate(status.component_status)
    )
    return (
        status
        if components == status.component_status
        else replace(status, component_status=components)
    )


def _readiness(look: Look, status: AppWrapperStatus, found: Figures) -> AppWrapperStatus:
    ready = found.ready >= found.needed
    if ready == c.is_true(status, c.READY):
        return status
    reason = "SufficientPodsReady" if ready else "InsufficientPodsReady"
    return look.put(status, c.READY, ready, reason, f"{found.ready} of {found.needed} pods")


def _succeed(look: Look, status: AppWrapperStatus, holding: Holding) -> WrapperStep:
    status = look.put(status, c.QUOTA, False, "Succeeded")
    status = look.put(status, c.DEPLOYED, True, "Succeeded")
    status = look.put(status, c.UNHEALTHY, False, "FoundNoFailedPods")
    status = c.drop(status, c.DELETING)
    said = look.say("Succeeded", holding.sentence)
    ttl = deadline(look.now.replace(microsecond=0), look.p.success_ttl)
    waits = Next("everything is deleted", "SuccessTTL is over", ttl)
    return look.take("succeeded", status, say=(said,), next=waits, holding=holding)


def _healthy(look: Look, status: AppWrapperStatus, found: HealthJudgment) -> WrapperStep:
    if c.is_true(status, c.UNHEALTHY):
        status = look.put(status, c.UNHEALTHY, False, "FoundNoFailedPods", found.holding.sentence)
    at, what, why = found.at, found.then or "the rules are looked at again", found.holding.sentence
    if status.migration_count:
        ready, held = c.since(status, c.READY), c.is_true(status, c.READY)
        if held and ready is not None and expired(ready, look.p.warmup, look.now):
            status = replace(status, migration_count=0)
        elif held and ready is not None and at is None:
            at, what = deadline(ready, look.p.warmup), "earlier evacuations are forgotten"
    waits = Next(what, why, at, waits=("pods", "components", "nodes", "wrapper"))
    return look.stay(status, next=waits, holding=found.holding)


def _held(
    look: Look, status: AppWrapperStatus, found: HealthJudgment, held: HeldEvacuation
) -> WrapperStep:
    """The workload stays; what is said is the same while it waits, so that it is written once."""
    known, say = c.find(status.conditions, c.HELD), tuple[WrapperEvent, ...]()
    if known is None or known.status != "True" or not known.message.endswith(held.sentence):
        message = f"{found.holding.sentence}; {held.sentence}"
        status = look.put(status, c.HELD, True, found.reason, message)
        say = (look.say(c.HELD, message, warning=True),)
    if c.is_true(status, c.UNHEALTHY):
        status = look.put(status, c.UNHEALTHY, False, "FoundNoFailedPods", c.HELD)
    watched = ("pods", "components", "nodes", "wrapper")
    waits = Next("evacuation", held.sentence, held.at, waits=watched)
    return look.stay(status, say=say, next=waits, holding=found.holding, leaves=found.leaves)


def _unhealthy(look: Look, status: AppWrapperStatus, found: HealthJudgment) -> WrapperStep:
    known = c.find(status.conditions, c.UNHEALTHY)
    say: tuple[WrapperEvent, ...] = ()
    if known is None or known.status != "True" or known.reason != found.reason:
        status = look.put(status, c.UNHEALTHY, True, found.reason, found.holding.sentence)
        say = (look.say(found.reason, found.holding.sentence, warning=True),)
    since = c.since(status, c.UNHEALTHY) or look.now
    if found.grace and not expired(since, look.p.failure, look.now):
        left = status.resetting_count < look.p.retry_limit and found.result != "fail"
        waits = Next(
            "Resetting" if left else "Failed",
            f"FailureGracePeriod is over, unless it is healthy by then ({found.holding.sentence})",
            deadline(since, look.p.failure),
            waits=("pods", "components", "nodes", "wrapper"),
        )
        return look.stay(status, say=say, next=waits, holding=found.holding)
    if found.result == "fail" or status.resetting_count >= look.p.retry_limit:
        step = _fail(look, status, "failed", found.reason, found.holding.sentence)
    else:
        row = "reset" if found.counts else "evacuate"
        step = _reset(look, status, row, found.reason, found.holding.sentence, counted=found.counts)
    return replace(step, say=(*say, *step.say), holding=found.holding, leaves=found.leaves)


def _reset(
    look: Look, status: AppWrapperStatus, row: str, reason: str, why: str, *, counted: bool
) -> WrapperStep:
    if counted:
        status = replace(status, resetting_count=status.resetting_count + 1)
    if reason in _EVACUATIONS:
        status = replace(status, migration_count=status.migration_count + 1)
    if not c.is_true(status, c.UNHEALTHY):
        status = look.put(status, c.UNHEALTHY, True, reason, why)
    status = look.put(status, c.READY, False, "Resetting")
    status = _deleting(look, c.drop(status, c.DELETING))
    which = (
        f"reset {status.resetting_count} of {look.p.retry_limit}"
        if counted
        else f"evacuation {status.migration_count}"
    )
    again = format_duration(_retry_pause(look, status))
    said = look.say(
        "Resetting",
        f"{which}: {why}; created again in {again}, once everything is deleted",
        warning=True,
    )
    return _begin_deletion(look, look.take(row, status, say=(said,)))


def _fail(look: Look, status: AppWrapperStatus, row: str, reason: str, why: str) -> WrapperStep:
    if not c.is_true(status, c.UNHEALTHY):
        status = look.put(status, c.UNHEALTHY, True, reason, why)
    status = c.drop(status, c.DELETING)
    if look.p.deletion_on_failure > 0 and not look.wrapper.spec.suspend:
        status = look.put(
            status, c.DELETING, False, "DeletionPaused", "DeletionOnFailureGracePeriod"
        )
        at = deadline(look.now.replace(microsecond=0), look.p.deletion_on_failure)
        waits = Next("deletion", "DeletionOnFailureGracePeriod is over", at)
    else:
        waits = at_once(look, "deletion", "it has failed")
    used = f" after {status.resetting_count} resets" if status.resetting_count else ""
    return look.take(
        row, status, say=(look.say("Failed", f"failed{used}: {why}", warning=True),), next=waits
    )


# --- until nothing is left


def _to_suspending(look: Look, row: str, why: str) -> WrapperStep:
    status = look.status
    if not c.is_true(status, c.DELETING):
        status = _deleting(look, c.drop(status, c.DELETING))
    return _begin_deletion(look, look.take(row, status, say=(look.say("Suspending", why),)))


def suspending(look: Look) -> WrapperStep:
    """Everything is deleted, whatever ``suspend`` says by now."""
    step, done = _delete(look, look.stay(look.status))
    if not done:
        return _or_now(look, step, "it is suspended")
    status = _undeployed(look, look.status, "Suspended", quota=True)
    status = look.put(status, c.READY, False, "Suspended")
    status = look.put(status, c.UNHEALTHY, False, "Suspended")
    said = look.say("Suspended", "everything is deleted")
    return look.take(
        "suspended", status, say=(said,), next=at_once(look, "Suspended", "everything is deleted")
    )


def _retry_pause(look: Look, status: AppWrapperStatus) -> float:
    """Seconds. It doubles with each evacuation after the first in a row, or a label everywhere
    would move a workload for ever.
    """
    known = c.find(status.conditions, c.UNHEALTHY)
    pause = look.p.retry_pause
    if (
        known is not None
        and known.status == "True"
        and known.reason in _EVACUATIONS
        and status.migration_count > 1
    ):
        pause *= 2.0 ** min(status.migration_count - 1, 64)
    return min(pause, look.p.maximum)


def resetting(look: Look) -> WrapperStep:
    """Everything is deleted; then the pause, counted from when nothing is left."""
    if look.wrapper.spec.suspend:
        return _to_suspending(look, "resetting-suspend", "suspended while it was reset")
    if not c.is_false(look.status, c.DEPLOYED):
        step, done = _delete(look, look.stay(look.status))
        if not done:
            return _or_now(look, step, "it is reset")
        status = _undeployed(look, look.status, "Resetting", quota=False)
        at = deadline(look.now.replace(microsecond=0), _retry_pause(look, status))
        waits = Next("Resuming", "RetryPausePeriod is over", at)
        return look.take("reset-deleted", status, next=waits)
    since = c.since(look.status, c.DEPLOYED) or look.now
    pause = _retry_pause(look, look.status)
    if not expired(since, pause, look.now):
        waits = Next("Resuming", "RetryPausePeriod is over", deadline(since, pause))
        return look.stay(look.status, next=waits)
    if why := not_judged(look.wrapper, look.rules, begun=True):
        return _left_alone(look, look.status, why)
    return _resume(look, "retry", "the pause after the reset is over")


def failed(look: Look) -> WrapperStep:
    """The end: deletion, at once or after DeletionOnFailureGracePeriod, and the quota with it."""
    return _ended(look, "failed", "Failed", quota=True)


def succeeded(look: Look) -> WrapperStep:
    """The end: deletion after SuccessTTL; the quota was given back at success."""
    return _ended(look, "succeeded", "Succeeded", quota=False)


def _ended(look: Look, rows: str, reason: str, *, quota: bool) -> WrapperStep:
    status = look.status
    if c.is_false(status, c.DEPLOYED) and not deletion.leftovers(status, look.seen):
        return look.stay(status)
    if c.is_true(status, c.DELETING):
        step, done = _delete(look, look.stay(status))
        return (
            look.take(f"{rows}-deleted", _undeployed(look, status, reason, quota=quota))
            if done
            else step
        )
    at = None if c.is_false(status, c.DEPLOYED) else _deletion_due(look, reason)
    if at is not None and look.now < at:
        name = "SuccessTTL" if reason == "Succeeded" else "DeletionOnFailureGracePeriod"
        return look.stay(status, next=Next("deletion", f"{name} is over", at))
    status = _deleting(look, c.drop(status, c.DELETING))
    return _begin_deletion(look, look.take(f"{rows}-delete", status))


def _deletion_due(look: Look, reason: str) -> datetime | None:
    """None: now."""
    if reason == "Succeeded":
        return deadline(c.since(look.status, c.QUOTA) or look.now, look.p.success_ttl)
    paused = c.since(look.status, c.DELETING)
    if paused is None or look.wrapper.spec.suspend or look.p.deletion_on_failure <= 0:
        return None
    return deadline(paused, look.p.deletion_on_failure)


def terminating(look: Look) -> WrapperStep:
    """Its user has deleted it: everything goes, and the finalizer last."""
    wrapper, status = look.wrapper, look.status
    if FINALIZER not in wrapper.metadata.finalizers:
        return look.stay(status)
    complete = c.find(status.conditions, c.DELETING)
    told = (
        complete is not None
        and complete.reason == "DeletionComplete"
        and complete.status == "False"
    )
    gone = (
        not c.is_true(status, c.DEPLOYED)
        and not deletion.leftovers(status, look.seen)
        and not look.seen.pods
    )
    begun = bool(c.find(status.conditions, c.DEPLOYED)) or any(
        one.name for one in status.component_status
    )
    if gone and (told or not begun) and not c.is_true(status, c.DELETING):
        remove = RemoveFinalizer(wrapper.metadata.uid, wrapper.metadata.resource_version)
        waits = Next("the wrapper is gone", "everything is deleted")
        return look.stay(status, actions=(remove,), next=waits)
    if status.phase != "Terminating":
        if not c.is_true(status, c.DELETING):
            status = _deleting(look, c.drop(status, c.DELETING))
        said = look.say("Terminating", "the wrapper is being deleted")
        return _begin_deletion(look, look.take("terminating", status, say=(said,)))
    step, done = _delete(look, look.stay(status))
    if not done:
        return _or_now(look, step, "it is being deleted")
    status = _undeployed(look, status, "Terminating", quota=True)
    return look.take(
        "gone", status, next=at_once(look, "the finalizer is removed", "everything is deleted")
    )
