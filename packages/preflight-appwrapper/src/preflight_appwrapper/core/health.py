"""Health of a running workload: nine rules in order; the first that applies decides. Pure."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Final

from msgspec.structs import replace
from preflight_kube.runtime.events import timestamp

from preflight_appwrapper.api import conditions as c
from preflight_appwrapper.api.names import PREFIX
from preflight_appwrapper.api.types import Pod
from preflight_appwrapper.core import podsets
from preflight_appwrapper.core.phase_context import PhaseContext, deadline, expired
from preflight_appwrapper.core.plan import Figures, HealthJudgment, Result
from preflight_appwrapper.core.pods import (
    Exit,
    evacuation_cause,
    examined,
    exits,
    is_examined,
    last_progress,
    terminal,
)

RELEASE: Final = PREFIX + "evacuate"
"""Annotation of a wrapper: since when it waits for the brake. Whoever writes it releases it."""
_PREFLIGHTS_IN_A_ROW = 3
"""Evacuations in a row that do not count: a check that always fails is not the nodes' fault."""


def _figures(context: PhaseContext) -> tuple[Figures, list[Pod]]:
    """The pods, by what they count as; and the failed ones that nobody has made up for."""
    status = context.status
    phases = Counter(
        pod.status.phase if pod.status.phase in {"Running", "Succeeded", "Failed"} else "Pending"
        for pod in context.snapshot.pods
        if pod.status.phase in {"Succeeded", "Failed"} or not pod.going
    )
    credit, ended = _credit(context)
    slacks = zip(podsets.slacks(context.wrapper.spec.components), context.components, strict=False)
    figures = Figures(
        expected=status.expected,
        pending=phases["Pending"],
        running=phases["Running"],
        succeeded=phases["Succeeded"],
        failed=phases["Failed"],
        credit=credit,
        ended=ended,
        slack=sum(min(slack, known.expected) for slack, (known, _, over) in slacks if not over),
    )
    counting = _counting(context, figures)
    return replace(figures, counting=len(counting)), counting


def _credit(context: PhaseContext) -> tuple[int, int]:
    """Pods that are not needed any more, of components which have ended well, or which have counted
    them as succeeded before a drain took them: for readiness, and for all to have succeeded. Pods
    beyond those expected, of a Job in waves or of what was scaled up, are taken off: they stand for
    none of another component.

    Of pods that no component owns it is not known which one they are of. They are first those of
    the components that go on, where it is asked whether one of these lacks any, and last where it
    is asked whether these have succeeded.
    """
    uids = {known.uid or component.uid for known, component, _ in context.components}
    alive: dict[str, list[str]] = {}  # phases by the uid of a component, or of another owner
    for pod in context.snapshot.pods:
        phases = alive.setdefault(pod.uid if pod.uid in uids else pod.owner, [])
        if pod.status.phase == "Succeeded" or not (pod.status.phase == "Failed" or pod.going):
            phases.append(pod.status.phase)
    if context.all_finished:
        rest = max(0, context.status.expected - sum(map(len, alive.values())))
        return rest, rest
    credit, beyond, surplus, going_on, counted = 0, 0, 0, 0, 0
    for known, component, ended in context.components:
        uid = known.uid or component.uid
        if not known.expected:
            continue
        if uid and (component.verdict.owns_pods or uid in alive):
            owned = alive.pop(uid, [])
            done = owned.count("Running") + owned.count("Succeeded")
            beyond += max(0, done - known.expected)
            lost = component.verdict.succeeded - owned.count("Succeeded")
            lacking = max(0, known.expected - len(owned))
            if component.verdict.owns_pods:
                credit += lacking if ended else min(lacking, max(0, lost))
            elif ended:  # of an MPIJob the launcher, which is a Job's
                surplus += lacking
            else:
                going_on += lacking
        elif ended:
            surplus += known.expected
        else:
            going_on += known.expected
            counted += min(known.expected, component.verdict.succeeded)
    others = [phase for phases in alive.values() for phase in phases]
    succeeded = others.count("Succeeded")
    # Whose child has a pod that waits goes on: none of its pods is one that has been left.
    left = sum(len(phases) for phases in alive.values() if {*phases} <= {"Running", "Succeeded"})
    left = min(left, max(0, len(others) - going_on))
    beyond += max(0, others.count("Running") + succeeded - min(left, surplus) - going_on)
    credit -= beyond
    ready = credit + max(0, surplus - left)
    return ready + max(0, counted - succeeded), credit + max(0, surplus - succeeded)


def _counting(context: PhaseContext, figures: Figures) -> list[Pod]:
    """Failed pods that nobody has made up for; all of them, where all are to count."""
    failed = [pod for pod in context.snapshot.pods if pod.status.phase == "Failed"]
    if context.rules.failed_pods == "any":
        return failed
    ended = {known.uid for known, _, over in context.components if known.uid and over}
    all_ended = context.status.expected > 0 and context.all_finished
    made_up = figures.ready >= figures.needed or all_ended
    own = {"", context.wrapper.metadata.uid}
    return [p for p in failed if p.owner not in ended and not (made_up and p.owner not in own)]


def judge(context: PhaseContext) -> HealthJudgment:
    """Rules 1 to 9, on a complete view."""
    figures, counting = _figures(context)
    return replace(_judged(context, figures, counting), figures=figures)


def _judged(context: PhaseContext, figures: Figures, counting: list[Pod]) -> HealthJudgment:
    first = _missing(context) or _component_failed(context) or _succeeded(context, figures)
    if first is not None and (first.rule, first.result) != (2, "reset"):
        return first
    leaves = _evacuation(context, counting)
    by_check = leaves is not None and leaves.reason == "PreflightFailed"
    # A Job that gives up for its first failed pod has failed by its node, too.
    if leaves is not None and (by_check or first is None) and not _held(context):
        return leaves
    if first is not None:
        return first
    later = _failed_pods(context, counting) or _too_few(context, figures)
    # Of a check that has failed the failed pods are a part; whatever else fails is reset.
    if leaves is not None and (by_check or later is None or later.result == "waiting"):
        return replace(leaves, result="held", counts=False)
    running = f"{figures.ready} of {figures.needed} pods run or have succeeded"
    return later or HealthJudgment("healthy", 9, running, "FoundNoFailedPods")


def _held(context: PhaseContext) -> bool:
    """Say whether the brake has it wait, and nobody has released it since."""
    since = c.since(context.status, c.HELD)
    annotation = context.wrapper.metadata.annotations.get(RELEASE)
    released = since is not None and annotation == timestamp(since)
    return context.snapshot.held is not None and not released


def _missing(context: PhaseContext) -> HealthJudgment | None:
    ask: dict[int, str] = {}
    for i, (known, component, ended) in enumerate(context.components):
        if c.component_is(known) != "True" or ended:
            continue
        name = f"{known.kind} {known.name}"
        same = component.ours and known.uid in {"", component.uid}
        if component.state == "present" and same:
            continue
        last = component.verdict if same or component.state == "absent" else None
        if last is not None and last.says == "failed":
            continue  # it had its say; who has taken it away since, a TTL perhaps, matters no more
        if not component.confirmed or component.state == "unknown":
            ask[i] = name
            continue
        states = {"absent": "is gone", "going": "is being deleted"}
        what = states.get(component.state, "is another object of that name")
        if last is not None and last.disrupted:
            sentence = f"{name} {what} ({last.disrupted})"
            return HealthJudgment("reset", 1, sentence, "MissingComponent", counts=True)
        sentence = f"{name} {what}, and somebody else did that"
        return HealthJudgment("fail", 1, sentence, "MissingComponent")
    sentence = f"{', '.join(ask.values())} not seen by the watch, and asked for"
    return HealthJudgment("confirm", 1, sentence, confirm=tuple(ask)) if ask else None


def _component_failed(context: PhaseContext) -> HealthJudgment | None:
    for known, seen, _ in context.components:
        verdict = seen.verdict
        if verdict.says != "failed" or c.component_is(known) != "True":
            continue
        message = f" ({verdict.message})" if verdict.message else ""
        sentence = f"{known.kind} {known.name} says that it has failed{message}"
        failed = (pod for pod in context.snapshot.pods if pod.status.phase == "Failed")
        last = terminal(failed, context.p.exit_codes)
        if last is not None:
            sentence += f"; {_exit(last)}, which ends the retries"
        result: Result = "fail" if last else "reset"
        return HealthJudgment(result, 2, sentence, "FailedComponent", counts=True)
    return None


def _succeeded(context: PhaseContext, figures: Figures) -> HealthJudgment | None:
    unfinished = (
        not 0 < figures.expected <= figures.succeeded + figures.ended
        or figures.pending
        or figures.running
        or figures.counting
        or any(component.verdict.says == "more" for component in context.snapshot.components)
    )
    sentence = f"{figures.succeeded} of {figures.expected} pods succeeded, and none is left to run"
    return None if unfinished else HealthJudgment("succeeded", 3, sentence)


def _evacuation(context: PhaseContext, counting: list[Pod]) -> HealthJudgment | None:
    # A failed pod that somebody has made up for is no reason any more to stop what runs well.
    failed = {pod.uid for pod in counting}
    pods = [p for p in context.snapshot.pods if p.status.phase != "Failed" or p.uid in failed]
    cause = evacuation_cause(pods, context.snapshot.nodes)
    if cause is None:
        return None
    counts = bool(cause.code) and context.status.migration_count >= _PREFLIGHTS_IN_A_ROW
    return HealthJudgment(
        "reset" if counts else "evacuate",
        5 if cause.code else 4,
        cause.why,
        "PreflightFailed" if cause.code else "AutopilotNoExecute",
        counts=counts,
        leaves=cause,
    )


def _failed_pods(context: PhaseContext, counting: list[Pod]) -> HealthJudgment | None:
    pods = sorted(counting, key=lambda pod: pod.name)
    if not pods:
        return None
    last = terminal(pods, context.p.exit_codes)
    shown = last or next((ended for pod in pods for ended in exits(pod)), None)
    what = f"{len(pods)} failed pod{'s' if len(pods) != 1 else ''}"
    sentence = f"{what}, {_exit(shown) if shown else _plain(pods[0])}"
    sentence += ", which ends the retries" if last else ""
    result: Result = "fail" if last else "reset"
    return HealthJudgment(result, 6, sentence, "FoundFailedPods", grace=True, counts=True)


def _exit(ended: Exit) -> str:
    where = f" on {ended.node}" if ended.node else ""
    return f"{ended.pod}{where} exited with {ended.code}"


def _plain(pod: Pod) -> str:
    where = f" on {pod.node}" if pod.node else ""
    return f"{pod.name}{where} failed{f' ({pod.status.reason})' if pod.status.reason else ''}"


def _too_few(context: PhaseContext, figures: Figures) -> HealthJudgment | None:
    if figures.ready >= figures.needed:
        return None
    every, p, now, pods = context.components, context.p, context.now, context.snapshot.pods
    queued = next((known for known, seen, _ in every if seen.verdict.suspended), None)
    if queued is not None:
        sentence = f"{queued.kind} {queued.name} is suspended by itself, so the clock of admission and warm-up is stopped"
        return HealthJudgment("waiting", 9, sentence)
    going_on = [seen.verdict for _, seen, finished in every if not finished]
    later = sum(verdict.later for verdict in going_on)
    needed = figures.needed - later
    if figures.ready >= needed:
        sentence = f"{later} of {figures.needed} pods are made once others have completed"
        return HealthJudgment("waiting", 9, sentence)
    in_order, missing = any(verdict.in_order for verdict in going_on), needed - figures.existing
    start, begun = _started(context, in_order=in_order)
    what = f"{needed - figures.ready} of {needed} pods do not run"
    if missing > 0:
        what = f"{missing} of {needed} pods do not exist"
    if missing > 0 and not in_order:
        rule, period = 7, p.admission
    else:
        rule, period = 8, p.warmup + examined(pods, start, now, p.preflight_allowance)
        if is_examined(pods) and not expired(start, period, now):
            period = p.warmup + p.preflight_allowance
    if not expired(start, period, now):
        at, then = deadline(start, period), f"rule {rule}: too few pods"
        return HealthJudgment("waiting", 9, f"{what} yet", at=at, then=then)
    sentence = f"{what} {(now - start).total_seconds():.0f} s after {begun}"
    return HealthJudgment("reset", rule, sentence, "InsufficientPodsReady", grace=True, counts=True)


def _started(context: PhaseContext, *, in_order: bool) -> tuple[datetime, str]:
    """Since when pods are missed, and by what: creation, loss of readiness, the end of a
    suspension, or what others did that go before them.
    """
    status, now = context.status, context.now
    known = [
        context.since(status, c.DEPLOYED),
        context.since(status, c.READY),
        *(component.verdict.resumed for component in context.snapshot.components),
    ]
    start = min(max((at for at in known if at is not None), default=now), now)
    if c.is_true(status, c.READY):
        start = now.replace(microsecond=0)
    if in_order:
        start = min(last_progress(context.snapshot.pods, start), now)
    if start == context.since(status, c.DEPLOYED):
        return start, "creation began"
    return start, "others began" if in_order else "they were last wanted"
