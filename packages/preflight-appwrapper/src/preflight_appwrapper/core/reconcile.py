"""The whole of a decision, as one pure function, and one function a phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from msgspec.structs import replace
from preflight_proto.durations import format_duration

from preflight_appwrapper.api import conditions as c
from preflight_appwrapper.api.names import FINALIZER
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper, AppWrapperStatus, ComponentStatus
from preflight_appwrapper.core import deletion, health, podsets
from preflight_appwrapper.core.creation import begun_otherwise, proceed
from preflight_appwrapper.core.marks import NOT_JUDGED, not_judged
from preflight_appwrapper.core.phase_context import EVACUATIONS, PhaseContext, deadline, expired
from preflight_appwrapper.core.plan import (
    Confirm,
    Figures,
    Finalizer,
    HealthJudgment,
    Next,
    WrapperEvent,
    WrapperPlan,
)
from preflight_appwrapper.core.snapshot import HeldEvacuation, WrapperSnapshot

BAD_ANNOTATION: Final = "BadAnnotation"
"""Reason of an Event about a parameter that cannot be read."""
_WATCHED: Final = ("pods", "components", "nodes", "wrapper")
"""Conditions of a running wrapper that are looked at sooner than time says."""


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
    """Say that a kind may not be read, before what may fail for that; None: it says so already."""
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
        return _terminating
    phase, leftover = status.phase, False
    if phase in {"Resuming", "Running"}:
        leftover = len(status.component_status) != len(wrapper.spec.components)
        leftover = leftover or (phase == "Resuming" and begun_otherwise(context))
    elif phase in {"", "Suspended"}:
        leftover = c.is_true(status, c.DEPLOYED) or deletion.leftovers(context)
    if leftover:
        return _leftover
    # A phase that we do not know, or one that only a deletion leads to, was written by somebody
    # else.
    return _PHASES.get(phase, _suspending)


# --- deletion, in whichever phase


def _deleting(context: PhaseContext, status: AppWrapperStatus) -> AppWrapperStatus:
    """Deletion begins now, or goes on with the start that it has."""
    if c.is_true(status, c.DELETING):
        return status
    status = c.drop(c.drop(status, c.HELD), c.DELETING)
    if c.is_false(status, c.DEPLOYED) and deletion.leftovers(context):
        status = context.put(status, c.DEPLOYED, True, "Resuming", "something of it is left")
    return context.put(status, c.DELETING, True, "DeletionInitiated")


def _delete(context: PhaseContext, plan: WrapperPlan) -> WrapperPlan | None:
    """``plan`` with what deletion needs now; None once everything is deleted."""
    status = plan.status
    if not c.is_true(status, c.DELETING):
        waits = context.at_once("deletion", "everything of it goes")
        return replace(plan, status=_deleting(context, status), next=waits)
    progress = deletion.progress(context, status)
    if progress.done:
        return None
    blocked = "; ".join(progress.blocked)
    message = f"cannot be removed even by force: {blocked}" if blocked else ""
    events, start = list[WrapperEvent](), c.since(status, c.DELETING)
    if progress.forced:
        after = format_duration(context.p.forceful_deletion)
        forced = f"not deleted within {after}; what is left is deleted by force"
        events.append(WrapperEvent("DeletionForced", forced, f"DeletionForced/{start}"))
    if blocked:
        key = f"DeletionBlocked/{start}/{blocked}"
        events.append(WrapperEvent("DeletionBlocked", message, key))
    return replace(
        plan,
        status=context.put(status, c.DELETING, True, "DeletionInitiated", message),
        actions=(*plan.actions, *progress.actions),
        next=progress.next,
        blocked=progress.blocked,
        say=(*plan.say, *events),
    )


def _begin_deletion(context: PhaseContext, plan: WrapperPlan) -> WrapperPlan:
    """``plan``, which takes a row, with the first of deletion; its end is a row of its own."""
    plan = replace(plan, status=_deleting(context, plan.status))
    waits = context.at_once("deletion", "nothing is seen of it any more")
    return _delete(context, plan) or replace(plan, next=waits)


def _undeployed(
    context: PhaseContext, status: AppWrapperStatus, reason: str, *, quota: bool
) -> AppWrapperStatus:
    """Everything is deleted: RD=F, and QR=F where the quota is given back."""
    if not c.is_false(status, c.DEPLOYED):
        status = context.put(status, c.DEPLOYED, False, reason, "everything is deleted")
    if quota:
        status = context.put(status, c.QUOTA, False, reason)
    return _forgotten(context, context.put(status, c.DELETING, False, "DeletionComplete"))


def _forgotten(context: PhaseContext, status: AppWrapperStatus) -> AppWrapperStatus:
    """Say of each component that was ever begun that it was deleted."""

    def deleted(known: ComponentStatus) -> ComponentStatus:
        if not c.component_is(known):
            return known
        known = c.drop(replace(known, uid=""), c.FINISHED)
        return c.put(known, c.DEPLOYED, False, "ComponentDeleted", now=context.now)

    return replace(status, component_status=tuple(map(deleted, status.component_status)))


# --- before it runs


def _unseen(context: PhaseContext) -> WrapperPlan:
    """Begin with a wrapper that has no phase yet."""
    waits = context.at_once("Suspended", "it was seen for the first time")
    return context.take("seen", _described(context), next=waits)


def _described(context: PhaseContext) -> AppWrapperStatus:
    """The status with one entry for each component."""
    status, components = context.status, context.wrapper.spec.components
    if len(status.component_status) == len(components):
        return status
    sets = (podsets.readable(component.template, component.pod_sets) for component in components)
    return replace(
        status, component_status=tuple(ComponentStatus(pod_sets=known) for known in sets)
    )


def _leftover(context: PhaseContext) -> WrapperPlan:
    """Somebody else wrote the status, so nobody knows what exists: all is deleted and made anew."""
    why = "something of it exists that its status does not speak of"
    status = context.put(context.status, c.QUOTA, True, "Resuming", why)
    status = context.put(status, c.DEPLOYED, True, "Resuming", why)
    return _begin_deletion(context, context.take("leftover", status, why))


def _suspended(context: PhaseContext) -> WrapperPlan:
    """Nothing of it exists: created as soon as ``suspend`` is false, the finalizer first."""
    wrapper, status = context.wrapper, context.status
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
    event = WrapperEvent(NOT_JUDGED, why, NOT_JUDGED)
    return context.stay(status, say=(event,), next=Next("Resuming", why))


def _resume(context: PhaseContext, row: str, why: str) -> WrapperPlan:
    status = _forgotten(context, _described(context))
    status = context.put(status, c.QUOTA, True, "Resuming", why)
    status = context.put(status, c.DEPLOYED, True, "Resuming", why)
    if row == "resume" or not c.is_false(status, c.READY):
        status = context.put(status, c.READY, False, "Resuming")
    status = context.put(status, c.UNHEALTHY, False, "Resuming")
    plan = context.take(row, c.drop(status, c.DELETING), f"components are created: {why}")
    # What was seen under the names of an earlier life says nothing of this one.
    fresh = replace(context, snapshot=replace(context.snapshot, components=()))
    return _creating(fresh, plan)


def _creating(context: PhaseContext, plan: WrapperPlan) -> WrapperPlan:
    creation = proceed(context, plan.status)
    status = creation.status
    if why := creation.fatal or creation.late:
        again = creation.late and status.resetting_count < context.p.retry_limit
        if plan.row and not again:  # fails in a look of its own, so that each row is one write
            return replace(plan, status=status, next=context.at_once("Failed", why))
        status = context.put(status, c.UNHEALTHY, True, "CreateFailed", why)
        if again:
            return _reset(context, status, "create-late", "CreateFailed", why)
        return _fail(context, status, "create-fatal" if creation.fatal else "create-last", why)
    if not creation.done:
        actions = (*plan.actions, *creation.actions)
        return replace(plan, status=status, actions=actions, next=creation.next)
    if plan.row:
        return replace(plan, next=context.at_once("Running", "there is nothing to create"))
    waits = context.at_once("Running", "all is created")
    return context.take("created", status, "all components are created", next=waits)


def _resuming(context: PhaseContext) -> WrapperPlan:
    """Its components are created one after another."""
    if context.wrapper.spec.suspend:
        return _to_suspending(context, "resuming-suspend", "suspended while it was created")
    return _creating(context, context.stay(context.status))


# --- running


def _running(context: PhaseContext) -> WrapperPlan:
    """All components are created; the rules of health decide."""
    if context.wrapper.spec.suspend:
        return _to_suspending(context, "running-suspend", "suspended while it ran")
    judgment = health.judge(context)
    if judgment.result == "confirm":
        actions, rule = tuple(map(Confirm, judgment.confirm)), "rule 1: a component is missing"
        waits = Next(rule, judgment.sentence, waits=("components",))
        return context.stay(context.status, actions=actions, next=waits, judgment=judgment)
    status = _marked(context, judgment.figures)
    if judgment.result == "succeeded":
        status = context.put(status, c.QUOTA, False, "Succeeded")
        status = context.put(status, c.DEPLOYED, True, "Succeeded")
        status = c.drop(context.over(status, c.UNHEALTHY, "FoundNoFailedPods"), c.DELETING)
        at = context.ends(context.p.success_ttl)
        waits = Next("everything is deleted", "SuccessTTL is over", at)
        return context.take("succeeded", status, judgment.sentence, next=waits, judgment=judgment)
    if judgment.result == "held" and context.snapshot.held is not None:
        return _held(context, status, judgment, context.snapshot.held)
    status = c.drop(status, c.HELD)
    if judgment.result in {"healthy", "waiting"}:
        return _healthy(context, status, judgment)
    return _unhealthy(context, status, judgment)


def _marked(context: PhaseContext, figures: Figures) -> AppWrapperStatus:
    """The status with what the judgment says of readiness, and which components have ended well."""
    status, ready = context.status, figures.ready >= figures.needed
    if ready != c.is_true(status, c.READY):
        reason = "SufficientPodsReady" if ready else "InsufficientPodsReady"
        message = f"{figures.ready} of {figures.needed} pods"
        status = context.put(status, c.READY, ready, reason, message)
    every = tuple(
        c.put(known, c.FINISHED, True, "ComponentFinished", now=context.now)
        if c.component_is(known) == "True" and finished
        else known
        for known, _, finished in context.components
    )
    return replace(status, component_status=every)


def _healthy(
    context: PhaseContext, status: AppWrapperStatus, judgment: HealthJudgment
) -> WrapperPlan:
    status = context.over(status, c.UNHEALTHY, "FoundNoFailedPods", judgment.sentence)
    at, what = judgment.at, judgment.then or "the rules are looked at again"
    ready = context.since(status, c.READY)
    if status.migration_count and ready is not None and c.is_true(status, c.READY):
        if expired(ready, context.p.warmup, context.now):
            status = replace(status, migration_count=0)
        elif at is None:
            at, what = deadline(ready, context.p.warmup), "earlier evacuations are forgotten"
    waits = Next(what, judgment.sentence, at, waits=_WATCHED)
    return context.stay(status, next=waits, judgment=judgment)


def _held(
    context: PhaseContext, status: AppWrapperStatus, judgment: HealthJudgment, held: HeldEvacuation
) -> WrapperPlan:
    """The workload stays; what is said is the same while it waits, so that it is written once."""
    known, say = c.find(status, c.HELD), tuple[WrapperEvent, ...]()
    if known is None or known.status != "True" or not known.message.endswith(held.sentence):
        message = f"{judgment.sentence}; {held.sentence}"
        status = context.put(status, c.HELD, True, judgment.reason, message)
        say = (context.say(c.HELD, message, warning=True),)
    status = context.over(status, c.UNHEALTHY, "FoundNoFailedPods", c.HELD)
    waits = Next("evacuation", held.sentence, held.at, waits=_WATCHED)
    return context.stay(status, say=say, next=waits, judgment=judgment)


def _unhealthy(
    context: PhaseContext, status: AppWrapperStatus, judgment: HealthJudgment
) -> WrapperPlan:
    why, reason, say = judgment.sentence, judgment.reason, tuple[WrapperEvent, ...]()
    if not c.is_true(status, c.UNHEALTHY, reason):
        status = context.put(status, c.UNHEALTHY, True, reason, why)
        say = (context.say(reason, why, warning=True),)
    left = status.resetting_count < context.p.retry_limit and judgment.result != "fail"
    since = context.since(status, c.UNHEALTHY) or context.now
    if judgment.grace and not expired(since, context.p.failure, context.now):
        waits = Next(
            "Resetting" if left else "Failed",
            f"FailureGracePeriod is over, unless it is healthy by then ({why})",
            deadline(since, context.p.failure),
            waits=_WATCHED,
        )
        return context.stay(status, say=say, next=waits, judgment=judgment)
    if left:
        row = "reset" if judgment.counts else "evacuate"
        plan = _reset(context, status, row, reason, why)
    else:
        plan = _fail(context, status, "failed", why)
    return replace(plan, say=(*say, *plan.say), judgment=judgment)


def _reset(
    context: PhaseContext, status: AppWrapperStatus, row: str, reason: str, why: str
) -> WrapperPlan:
    counted = row != "evacuate"
    status = replace(
        status,
        resetting_count=status.resetting_count + counted,
        migration_count=status.migration_count + (reason in EVACUATIONS),
    )
    which = f"evacuation {status.migration_count}"
    if counted:
        which = f"reset {status.resetting_count} of {context.p.retry_limit}"
    status = c.drop(context.put(status, c.READY, False, "Resetting"), c.DELETING)
    again = format_duration(context.retry_pause(status))
    message = f"{which}: {why}; created again in {again}, once everything is deleted"
    return _begin_deletion(context, context.take(row, status, message))


def _fail(context: PhaseContext, status: AppWrapperStatus, row: str, why: str) -> WrapperPlan:
    status, waits = c.drop(status, c.DELETING), context.at_once("deletion", "it has failed")
    if context.p.deletion_on_failure > 0 and not context.wrapper.spec.suspend:
        period = "DeletionOnFailureGracePeriod"
        status = context.put(status, c.DELETING, False, "DeletionPaused", period)
        waits = Next("deletion", f"{period} is over", context.ends(context.p.deletion_on_failure))
    used = f" after {status.resetting_count} resets" if status.resetting_count else ""
    return context.take(row, status, f"failed{used}: {why}", next=waits)


# --- until nothing is left


def _to_suspending(context: PhaseContext, row: str, why: str) -> WrapperPlan:
    return _begin_deletion(context, context.take(row, context.status, why))


def _suspending(context: PhaseContext) -> WrapperPlan:
    """Everything is deleted, whatever ``suspend`` says by now."""
    if plan := _delete(context, context.stay(context.status)):
        return plan
    status = _undeployed(context, context.status, "Suspended", quota=True)
    for type_ in (c.READY, c.UNHEALTHY):
        status = context.over(status, type_, "Suspended")
    waits = context.at_once("Suspended", "everything is deleted")
    return context.take("suspended", status, waits.why, next=waits)


def _resetting(context: PhaseContext) -> WrapperPlan:
    """Everything is deleted; then the pause, counted from when nothing is left."""
    if context.wrapper.spec.suspend:
        return _to_suspending(context, "resetting-suspend", "suspended while it was reset")
    if not c.is_false(context.status, c.DEPLOYED) or deletion.leftovers(context):
        if plan := _delete(context, context.stay(context.status)):
            return plan
        status = _undeployed(context, context.status, "Resetting", quota=False)
        at = context.ends(context.retry_pause(status))
        waits = Next("Resuming", "RetryPausePeriod is over", at)
        return context.take("reset-deleted", status, next=waits)
    since = context.since(context.status, c.DEPLOYED) or context.now
    pause = context.retry_pause(context.status)
    if not expired(since, pause, context.now):
        waits = Next("Resuming", "RetryPausePeriod is over", deadline(since, pause))
        return context.stay(context.status, next=waits)
    if why := not_judged(context.wrapper, context.rules, begun=True):
        return _left_alone(context, context.status, why)
    return _resume(context, "retry", "the pause after the reset is over")


def _ended(context: PhaseContext) -> WrapperPlan:
    """Everything is deleted once its time is over; with what has failed its quota goes, too."""
    status, reason, row = context.status, context.status.phase, context.status.phase.lower()
    deployed = not c.is_false(status, c.DEPLOYED)
    if not deployed and not deletion.leftovers(context):
        return context.stay(status)
    if c.is_true(status, c.DELETING):
        if plan := _delete(context, context.stay(status)):
            return plan
        status = _undeployed(context, status, reason, quota=reason == "Failed")
        return context.take(f"{row}-deleted", status)
    since = context.since(status, c.QUOTA if reason == "Succeeded" else c.DELETING)
    name, period = "SuccessTTL", context.p.success_ttl
    if reason == "Failed":
        name, period = "DeletionOnFailureGracePeriod", context.p.deletion_on_failure
        period = 0 if since is None or context.wrapper.spec.suspend else period
    at = deadline(since or context.now, period)
    if deployed and context.now < at:
        return context.stay(status, next=Next("deletion", f"{name} is over", at))
    return _begin_deletion(context, context.take(f"{row}-delete", status))


def _terminating(context: PhaseContext) -> WrapperPlan:
    """Its user has deleted it: everything goes, and the finalizer last."""
    wrapper, status = context.wrapper, context.status
    if FINALIZER not in wrapper.metadata.finalizers:
        return context.stay(status)
    deleted = c.is_false(status, c.DELETING, "DeletionComplete")
    left = deletion.leftovers(context) or bool(context.snapshot.pods)
    gone = not left and not c.is_true(status, c.DEPLOYED)
    named = any(known.name for known in status.component_status)
    created = named or c.find(status, c.DEPLOYED) is not None
    held = c.is_true(status, c.DELETING) or c.is_true(status, c.QUOTA)
    if gone and (deleted or not created) and not held:
        waits = Next("the wrapper is gone", "everything is deleted")
        return context.stay(status, actions=(Finalizer(wanted=False),), next=waits)
    if status.phase != "Terminating":
        if gone and c.is_true(status, c.QUOTA):  # in the pause of a reset
            status = context.put(status, c.QUOTA, False, "Terminating")
        begun = context.take("terminating", status, "the wrapper is being deleted")
        return _begin_deletion(context, begun)
    if plan := _delete(context, context.stay(status)):
        return plan
    status = _undeployed(context, status, "Terminating", quota=True)
    waits = context.at_once("the finalizer is removed", "everything is deleted")
    return context.take("gone", status, next=waits)


_PHASES: Final[Mapping[str, Callable[[PhaseContext], WrapperPlan]]] = {
    "": _unseen,
    "Suspended": _suspended,
    "Resuming": _resuming,
    "Running": _running,
    "Suspending": _suspending,
    "Resetting": _resetting,
    "Succeeded": _ended,
    "Failed": _ended,
}
