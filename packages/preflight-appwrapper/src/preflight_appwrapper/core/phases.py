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
from preflight_appwrapper.core.phase_context import EVACUATIONS, PhaseContext, at_once
from preflight_appwrapper.core.plan import (
    Confirm,
    Figures,
    Finalizer,
    Holding,
    Next,
    WrapperEvent,
    WrapperPlan,
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

# --- deletion, in whichever phase


def _deleting(context: PhaseContext, status: AppWrapperStatus) -> AppWrapperStatus:
    """Deletion begins now, or goes on with the start that it has."""
    if c.is_true(status, c.DELETING):
        return status
    status = c.drop(c.drop(status, c.HELD), c.DELETING)
    return context.put(status, c.DELETING, True, "DeletionInitiated")


def _delete(context: PhaseContext, plan: WrapperPlan) -> tuple[WrapperPlan, bool]:
    """``step`` with what deletion needs now, and whether everything is deleted."""
    status = plan.status
    if not c.is_true(status, c.DELETING):
        return replace(plan, status=_deleting(context, status)), False
    progress = deletion.progress(status, context.snapshot, context.p, context.now)
    if progress.done:
        return plan, True
    blocked = "; ".join(progress.blocked)
    message = f"cannot be removed even by force: {blocked}" if blocked else ""
    status = context.put(status, c.DELETING, True, "DeletionInitiated", message)
    say = plan.say
    start = c.since(status, c.DELETING)
    if progress.forced:
        event = f"not deleted within {format_duration(context.p.forceful_deletion)}; what is left is deleted by force"
        say = (
            *say,
            WrapperEvent(
                reason="DeletionForced", message=event, warning=True, key=f"DeletionForced/{start}"
            ),
        )
    if blocked:
        key = f"DeletionBlocked/{start}/{blocked}"
        say = (*say, WrapperEvent(reason="DeletionBlocked", message=message, warning=True, key=key))
    return (
        replace(
            plan,
            status=status,
            actions=(*plan.actions, *progress.actions),
            next=progress.next,
            blocked=progress.blocked,
            say=say,
        ),
        False,
    )


def _begin_deletion(context: PhaseContext, plan: WrapperPlan) -> WrapperPlan:
    """``step``, which takes a row, with the first of deletion; whether it is done is for the next
    look, for that is a row of its own.
    """
    plan = replace(plan, status=_deleting(context, plan.status))
    return _or_now(context, _delete(context, plan)[0], "nothing is seen of it any more")


def _or_now(context: PhaseContext, plan: WrapperPlan, why: str) -> WrapperPlan:
    """``step``; where it waits for nothing, deletion goes on at once."""
    return plan if plan.next else replace(plan, next=at_once(context, "deletion", why))


def _undeployed(
    context: PhaseContext, status: AppWrapperStatus, reason: str, *, quota: bool
) -> AppWrapperStatus:
    """Everything is deleted: RD=F, and QR=F where the quota is given back."""
    if not c.is_false(status, c.DEPLOYED):
        status = context.put(status, c.DEPLOYED, False, reason, "everything is deleted")
    if quota:
        status = context.put(status, c.QUOTA, False, reason)
    status = context.put(status, c.DELETING, False, "DeletionComplete")
    components = tuple(_forgotten(context, one) for one in status.component_status)
    return replace(status, component_status=components)


def _forgotten(context: PhaseContext, one: ComponentStatus) -> ComponentStatus:
    if not c.component_is(one):
        return one
    one = c.drop(replace(one, uid=""), c.FINISHED)
    return c.put(one, c.DEPLOYED, False, "ComponentDeleted", now=context.now)


# --- before it runs


def unseen(context: PhaseContext) -> WrapperPlan:
    """Begin with a wrapper that has no phase yet."""
    if _leftover(context):
        return leftover(context)
    status = context.status
    if len(status.component_status) != len(context.wrapper.spec.components):
        status = replace(status, component_status=podsets.initial(context.wrapper.spec.components))
    return context.take(
        "seen", status, next=at_once(context, "Suspended", "it was seen for the first time")
    )


def leftover(context: PhaseContext) -> WrapperPlan:
    """Its status was changed by somebody else, so that nobody knows what exists of it: everything
    is deleted, and made anew.
    """
    return _to_suspending(
        context, "leftover", "something of it exists that its status does not speak of"
    )


def _leftover(context: PhaseContext) -> bool:
    return c.is_true(context.status, c.DEPLOYED) or deletion.leftovers(
        context.status, context.snapshot
    )


def suspended(context: PhaseContext) -> WrapperPlan:
    """Nothing of it exists: created as soon as ``suspend`` is false, the finalizer first."""
    wrapper, status = context.wrapper, context.status
    if _leftover(context):
        return leftover(context)
    if wrapper.spec.suspend:
        return context.stay(status, next=Next("Resuming", "spec.suspend is true"))
    if why := not_judged(wrapper, context.rules):
        status = context.put(status, c.QUOTA, False, NOT_JUDGED, why)
        return _left_alone(context, status, why)
    if FINALIZER not in wrapper.metadata.finalizers:
        waits = Next("Resuming", "the finalizer comes first")
        return context.stay(status, actions=(Finalizer(wanted=True),), next=waits)
    return _resume(context, "resume", "suspend is false")


def _left_alone(context: PhaseContext, status: AppWrapperStatus, why: str) -> WrapperPlan:
    event = WrapperEvent(reason=NOT_JUDGED, message=why, warning=True, key=NOT_JUDGED)
    return context.stay(status, say=(event,), next=Next("Resuming", why))


def _resume(context: PhaseContext, row: str, why: str) -> WrapperPlan:
    status = context.status
    if len(status.component_status) != len(context.wrapper.spec.components):
        status = replace(status, component_status=podsets.initial(context.wrapper.spec.components))
    status = replace(
        status, component_status=tuple(_forgotten(context, one) for one in status.component_status)
    )
    status = context.put(status, c.QUOTA, True, "Resuming", why)
    status = context.put(status, c.DEPLOYED, True, "Resuming", why)
    if row == "resume" or not c.is_false(status, c.READY):
        status = context.put(status, c.READY, False, "Resuming")
    status = context.put(status, c.UNHEALTHY, False, "Resuming")
    plan = context.take(
        row,
        c.drop(status, c.DELETING),
        say=(context.say("Resuming", f"components are created: {why}"),),
    )
    # What was seen under the names of an earlier life says nothing of this one.
    fresh = replace(context, snapshot=replace(context.snapshot, components=()))
    return _creating(fresh, plan)


def _creating(context: PhaseContext, plan: WrapperPlan) -> WrapperPlan:
    creation = proceed(
        context.wrapper, plan.status, context.snapshot, context.rules, p=context.p, now=context.now
    )
    if creation.fatal:
        return _failing(
            context, replace(plan, status=creation.status), "create-fatal", creation.fatal
        )
    if creation.late:
        if creation.status.resetting_count < context.p.retry_limit:
            return _reset(
                context, creation.status, "create-late", "CreateFailed", creation.late, counted=True
            )
        return _failing(
            context, replace(plan, status=creation.status), "create-last", creation.late
        )
    if creation.done and plan.row:
        return replace(plan, next=at_once(context, "Running", "there is nothing to create"))
    if creation.done:
        event = context.say("Running", "all components are created")
        return context.take(
            "created",
            creation.status,
            say=(*plan.say, event),
            next=at_once(context, "Running", "all is created"),
        )
    return replace(
        plan, status=creation.status, actions=(*plan.actions, *creation.actions), next=creation.next
    )


def _failing(context: PhaseContext, plan: WrapperPlan, row: str, why: str) -> WrapperPlan:
    """A wrapper whose first component cannot be created fails in a look of its own, so that each
    row is one write.
    """
    if plan.row:
        return replace(plan, next=at_once(context, "Failed", why))
    return _fail(context, plan.status, row, "CreateFailed", why)


def resuming(context: PhaseContext) -> WrapperPlan:
    """Its components are created one after another."""
    if context.wrapper.spec.suspend:
        return _to_suspending(context, "resuming-suspend", "suspended while it was created")
    return _creating(context, context.stay(context.status))


# --- running


def running(context: PhaseContext) -> WrapperPlan:
    """All components are created; the rules of health decide."""
    if context.wrapper.spec.suspend:
        return _to_suspending(context, "running-suspend", "suspended while it ran")
    wrapper = replace(context.wrapper, status=context.status)
    judgment = judge(wrapper, context.snapshot, context.p, context.rules, context.now)
    status = _marked(context, context.status, judgment)
    if judgment.result == "confirm":
        actions = tuple(Confirm(i) for i in judgment.confirm)
        waits = Next(
            "rule 1: a component is missing", judgment.holding.sentence, waits=("components",)
        )
        return context.stay(context.status, actions=actions, next=waits, holding=judgment.holding)
    if judgment.result == "succeeded":
        return _succeed(context, status, judgment.holding)
    if judgment.result == "held" and context.snapshot.held is not None:
        return _held(context, status, judgment, context.snapshot.held)
    status = c.drop(status, c.HELD)
    if judgment.result in {"healthy", "waiting"}:
        return _healthy(context, status, judgment)
    return _unhealthy(context, status, judgment)


def _marked(
    context: PhaseContext, status: AppWrapperStatus, judgment: HealthJudgment
) -> AppWrapperStatus:
    """Write what the judgment says of readiness, and which components have ended well."""
    status = _readiness(context, status, judgment.holding.figures)
    components = tuple(
        c.put(one, c.FINISHED, True, "ComponentFinished", now=context.now)
        if not c.is_true(one, c.FINISHED)
        and c.component_is(one) == "True"
        and finished(status, context.snapshot, i)
        else one
        for i, one in enumerate(status.component_status)
    )
    return replace(status, component_status=components)


def _readiness(
    context: PhaseContext, status: AppWrapperStatus, figures: Figures
) -> AppWrapperStatus:
    ready = figures.ready >= figures.needed
    if ready == c.is_true(status, c.READY):
        return status
    reason = "SufficientPodsReady" if ready else "InsufficientPodsReady"
    return context.put(status, c.READY, ready, reason, f"{figures.ready} of {figures.needed} pods")


def _succeed(context: PhaseContext, status: AppWrapperStatus, holding: Holding) -> WrapperPlan:
    status = context.put(status, c.QUOTA, False, "Succeeded")
    status = context.put(status, c.DEPLOYED, True, "Succeeded")
    if c.is_true(status, c.UNHEALTHY):
        status = context.put(status, c.UNHEALTHY, False, "FoundNoFailedPods")
    status = c.drop(status, c.DELETING)
    event = context.say("Succeeded", holding.sentence)
    ttl = deadline(context.now.replace(microsecond=0), context.p.success_ttl)
    waits = Next("everything is deleted", "SuccessTTL is over", ttl)
    return context.take("succeeded", status, say=(event,), next=waits, holding=holding)


def _healthy(
    context: PhaseContext, status: AppWrapperStatus, judgment: HealthJudgment
) -> WrapperPlan:
    if c.is_true(status, c.UNHEALTHY):
        status = context.put(
            status, c.UNHEALTHY, False, "FoundNoFailedPods", judgment.holding.sentence
        )
    at, what, why = (
        judgment.at,
        judgment.then or "the rules are looked at again",
        judgment.holding.sentence,
    )
    if status.migration_count:
        ready, held = c.since(status, c.READY), c.is_true(status, c.READY)
        if held and ready is not None and expired(ready, context.p.warmup, context.now):
            status = replace(status, migration_count=0)
        elif held and ready is not None and at is None:
            at, what = deadline(ready, context.p.warmup), "earlier evacuations are forgotten"
    waits = Next(what, why, at, waits=("pods", "components", "nodes", "wrapper"))
    return context.stay(status, next=waits, holding=judgment.holding)


def _held(
    context: PhaseContext, status: AppWrapperStatus, judgment: HealthJudgment, held: HeldEvacuation
) -> WrapperPlan:
    """The workload stays; what is said is the same while it waits, so that it is written once."""
    known, say = c.find(status.conditions, c.HELD), tuple[WrapperEvent, ...]()
    if known is None or known.status != "True" or not known.message.endswith(held.sentence):
        message = f"{judgment.holding.sentence}; {held.sentence}"
        status = context.put(status, c.HELD, True, judgment.reason, message)
        say = (context.say(c.HELD, message, warning=True),)
    if c.is_true(status, c.UNHEALTHY):
        status = context.put(status, c.UNHEALTHY, False, "FoundNoFailedPods", c.HELD)
    watched = ("pods", "components", "nodes", "wrapper")
    waits = Next("evacuation", held.sentence, held.at, waits=watched)
    return context.stay(
        status, say=say, next=waits, holding=judgment.holding, leaves=judgment.leaves
    )


def _unhealthy(
    context: PhaseContext, status: AppWrapperStatus, judgment: HealthJudgment
) -> WrapperPlan:
    known = c.find(status.conditions, c.UNHEALTHY)
    say: tuple[WrapperEvent, ...] = ()
    if known is None or known.status != "True" or known.reason != judgment.reason:
        status = context.put(status, c.UNHEALTHY, True, judgment.reason, judgment.holding.sentence)
        say = (context.say(judgment.reason, judgment.holding.sentence, warning=True),)
    since = c.since(status, c.UNHEALTHY) or context.now
    if judgment.grace and not expired(since, context.p.failure, context.now):
        left = status.resetting_count < context.p.retry_limit and judgment.result != "fail"
        waits = Next(
            "Resetting" if left else "Failed",
            f"FailureGracePeriod is over, unless it is healthy by then ({judgment.holding.sentence})",
            deadline(since, context.p.failure),
            waits=("pods", "components", "nodes", "wrapper"),
        )
        return context.stay(status, say=say, next=waits, holding=judgment.holding)
    if judgment.result == "fail" or status.resetting_count >= context.p.retry_limit:
        plan = _fail(context, status, "failed", judgment.reason, judgment.holding.sentence)
    else:
        row = "reset" if judgment.counts else "evacuate"
        plan = _reset(
            context,
            status,
            row,
            judgment.reason,
            judgment.holding.sentence,
            counted=judgment.counts,
        )
    return replace(plan, say=(*say, *plan.say), holding=judgment.holding, leaves=judgment.leaves)


def _reset(
    context: PhaseContext,
    status: AppWrapperStatus,
    row: str,
    reason: str,
    why: str,
    *,
    counted: bool,
) -> WrapperPlan:
    if counted:
        status = replace(status, resetting_count=status.resetting_count + 1)
    if reason in EVACUATIONS:
        status = replace(status, migration_count=status.migration_count + 1)
    if not c.is_true(status, c.UNHEALTHY):
        status = context.put(status, c.UNHEALTHY, True, reason, why)
    status = c.drop(context.put(status, c.READY, False, "Resetting"), c.DELETING)
    which = (
        f"reset {status.resetting_count} of {context.p.retry_limit}"
        if counted
        else f"evacuation {status.migration_count}"
    )
    again = format_duration(context.retry_pause(status))
    event = context.say(
        "Resetting",
        f"{which}: {why}; created again in {again}, once everything is deleted",
        warning=True,
    )
    return _begin_deletion(context, context.take(row, status, say=(event,)))


def _fail(
    context: PhaseContext, status: AppWrapperStatus, row: str, reason: str, why: str
) -> WrapperPlan:
    if not c.is_true(status, c.UNHEALTHY):
        status = context.put(status, c.UNHEALTHY, True, reason, why)
    status = c.drop(status, c.DELETING)
    if context.p.deletion_on_failure > 0 and not context.wrapper.spec.suspend:
        status = context.put(
            status, c.DELETING, False, "DeletionPaused", "DeletionOnFailureGracePeriod"
        )
        at = deadline(context.now.replace(microsecond=0), context.p.deletion_on_failure)
        waits = Next("deletion", "DeletionOnFailureGracePeriod is over", at)
    else:
        waits = at_once(context, "deletion", "it has failed")
    used = f" after {status.resetting_count} resets" if status.resetting_count else ""
    return context.take(
        row, status, say=(context.say("Failed", f"failed{used}: {why}", warning=True),), next=waits
    )


# --- until nothing is left


def _to_suspending(context: PhaseContext, row: str, why: str) -> WrapperPlan:
    event = context.say("Suspending", why)
    return _begin_deletion(context, context.take(row, context.status, say=(event,)))


def suspending(context: PhaseContext) -> WrapperPlan:
    """Everything is deleted, whatever ``suspend`` says by now."""
    plan, done = _delete(context, context.stay(context.status))
    if not done:
        return _or_now(context, plan, "it is suspended")
    status = _undeployed(context, context.status, "Suspended", quota=True)
    for type_ in (c.READY, c.UNHEALTHY):
        if c.is_true(status, type_):
            status = context.put(status, type_, False, "Suspended")
    event = context.say("Suspended", "everything is deleted")
    return context.take(
        "suspended",
        status,
        say=(event,),
        next=at_once(context, "Suspended", "everything is deleted"),
    )


def resetting(context: PhaseContext) -> WrapperPlan:
    """Everything is deleted; then the pause, counted from when nothing is left."""
    if context.wrapper.spec.suspend:
        return _to_suspending(context, "resetting-suspend", "suspended while it was reset")
    if not c.is_false(context.status, c.DEPLOYED):
        plan, done = _delete(context, context.stay(context.status))
        if not done:
            return _or_now(context, plan, "it is reset")
        status = _undeployed(context, context.status, "Resetting", quota=False)
        at = deadline(context.now.replace(microsecond=0), context.retry_pause(status))
        waits = Next("Resuming", "RetryPausePeriod is over", at)
        return context.take("reset-deleted", status, next=waits)
    since = c.since(context.status, c.DEPLOYED) or context.now
    pause = context.retry_pause(context.status)
    if not expired(since, pause, context.now):
        waits = Next("Resuming", "RetryPausePeriod is over", deadline(since, pause))
        return context.stay(context.status, next=waits)
    if why := not_judged(context.wrapper, context.rules, begun=True):
        return _left_alone(context, context.status, why)
    return _resume(context, "retry", "the pause after the reset is over")


def failed(context: PhaseContext) -> WrapperPlan:
    """The end: deletion, at once or after DeletionOnFailureGracePeriod, and the quota with it."""
    return _ended(context, "failed", "Failed", quota=True)


def succeeded(context: PhaseContext) -> WrapperPlan:
    """The end: deletion after SuccessTTL; the quota was given back at success."""
    return _ended(context, "succeeded", "Succeeded", quota=False)


def _ended(context: PhaseContext, rows: str, reason: str, *, quota: bool) -> WrapperPlan:
    status = context.status
    if c.is_false(status, c.DEPLOYED) and not deletion.leftovers(status, context.snapshot):
        return context.stay(status)
    if c.is_true(status, c.DELETING):
        plan, done = _delete(context, context.stay(status))
        return (
            context.take(f"{rows}-deleted", _undeployed(context, status, reason, quota=quota))
            if done
            else plan
        )
    at = None if c.is_false(status, c.DEPLOYED) else _deletion_due(context, reason)
    if at is not None and context.now < at:
        name = "SuccessTTL" if reason == "Succeeded" else "DeletionOnFailureGracePeriod"
        return context.stay(status, next=Next("deletion", f"{name} is over", at))
    return _begin_deletion(context, context.take(f"{rows}-delete", status))


def _deletion_due(context: PhaseContext, reason: str) -> datetime | None:
    """None: now."""
    if reason == "Succeeded":
        return deadline(c.since(context.status, c.QUOTA) or context.now, context.p.success_ttl)
    paused = c.since(context.status, c.DELETING)
    if paused is None or context.wrapper.spec.suspend or context.p.deletion_on_failure <= 0:
        return None
    return deadline(paused, context.p.deletion_on_failure)


def terminating(context: PhaseContext) -> WrapperPlan:
    """Its user has deleted it: everything goes, and the finalizer last."""
    wrapper, status = context.wrapper, context.status
    if FINALIZER not in wrapper.metadata.finalizers:
        return context.stay(status)
    complete = c.find(status.conditions, c.DELETING)
    told = (
        complete is not None
        and complete.reason == "DeletionComplete"
        and complete.status == "False"
    )
    gone = (
        not c.is_true(status, c.DEPLOYED)
        and not deletion.leftovers(status, context.snapshot)
        and not context.snapshot.pods
    )
    begun = bool(c.find(status.conditions, c.DEPLOYED)) or any(
        one.name for one in status.component_status
    )
    held = c.is_true(status, c.DELETING) or c.is_true(status, c.QUOTA)
    if gone and (told or not begun) and not held:
        waits = Next("the wrapper is gone", "everything is deleted")
        return context.stay(status, actions=(Finalizer(wanted=False),), next=waits)
    if status.phase != "Terminating":
        if gone and c.is_true(status, c.QUOTA):  # in the pause of a reset
            status = context.put(status, c.QUOTA, False, "Terminating")
        event = context.say("Terminating", "the wrapper is being deleted")
        return _begin_deletion(context, context.take("terminating", status, say=(event,)))
    plan, done = _delete(context, context.stay(status))
    if not done:
        return _or_now(context, plan, "it is being deleted")
    status = _undeployed(context, status, "Terminating", quota=True)
    return context.take(
        "gone", status, next=at_once(context, "the finalizer is removed", "everything is deleted")
    )
