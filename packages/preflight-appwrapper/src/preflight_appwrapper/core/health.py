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


def finished(context: PhaseContext, index: int) -> bool:
    """Say whether the component has ended well, now or when it was last seen."""
    known = context.status.component_status[index]
    verdict = context.snapshot.component(index).verdict
    return verdict.says == "finished" or c.is_true(known, c.FINISHED)


def _all_finished(context: PhaseContext) -> bool:
    """Say whether all components that make pods have ended well."""
    return all(
        finished(context, i)
        for i, known in enumerate(context.status.component_status)
        if known.expected
    )


def _figures(context: PhaseContext) -> Figures:
    """The pods, by what they count as."""
    status = context.status
    phases = Counter(
        pod.status.phase if pod.status.phase in {"Running", "Succeeded", "Failed"} else "Pending"
        for pod in context.snapshot.pods
        if pod.status.phase in {"Succeeded", "Failed"} or not pod.going
    )
    credit, ended = _credit(context)
    slacks = zip(
        podsets.slacks(context.wrapper.spec.components), status.component_status, strict=False
    )
    figures = Figures(
        expected=status.expected,
        pending=phases["Pending"],
        running=phases["Running"],
        succeeded=phases["Succeeded"],
        failed=phases["Failed"],
        credit=credit,
        ended=ended,
        slack=sum(
            min(slack, known.expected)
            for i, (slack, known) in enumerate(slacks)
            if not finished(context, i)
        ),
    )
    return replace(figures, counting=len(_counting(context, figures)))


def _credit(context: PhaseContext) -> tuple[int, int]:
    """Pods that are not needed any more, of components which have ended well, or which have counted
    them as succeeded before a drain took them: for readiness, and for all to have succeeded.

    Of pods that no component owns it is not known which one they are of. They are first those of
    the components that go on, where it is asked whether one of these lacks any, and last where it
    is asked whether these have succeeded.
    """
    status, pods = context.status, context.snapshot.pods
    alive = [
        pod
        for pod in pods
        if pod.status.phase == "Succeeded" or not (pod.status.phase == "Failed" or pod.going)
    ]
    if _all_finished(context):
        rest = max(0, status.expected - len(alive))
        return rest, rest
    credit, surplus, going_on, counted, owners = 0, 0, 0, 0, set[str]()
    for i, known in enumerate(status.component_status):
        component, ended = context.snapshot.component(i), finished(context, i)
        uid = known.uid or component.uid
        if not known.expected:
            continue
        if uid and (
            component.verdict.owns_pods or any(uid in _component_uids(pod) for pod in pods)
        ):
            owners.add(uid)
            owned = [pod.status.phase for pod in alive if uid in _component_uids(pod)]
            lost = component.verdict.succeeded - owned.count("Succeeded")
            lacking = max(0, known.expected - len(owned))
            credit += lacking if ended else min(lacking, max(0, lost))
        elif ended:
            surplus += known.expected
        else:
            going_on += known.expected
            counted += min(known.expected, component.verdict.succeeded)
    others = [pod for pod in alive if not owners.intersection(_component_uids(pod))]
    succeeded = sum(pod.status.phase == "Succeeded" for pod in others)
    ready = credit + max(0, surplus - max(0, len(others) - going_on))
    return ready + max(0, counted - succeeded), credit + max(0, surplus - succeeded)


def _component_uids(pod: Pod) -> tuple[str, str]:
    """The uids of the component that a pod belongs to, or is."""
    return pod.owner, pod.uid


def _counting(context: PhaseContext, figures: Figures) -> list[Pod]:
    """Failed pods that nobody has made up for; all of them, where all are to count."""
    failed = [pod for pod in context.snapshot.pods if pod.status.phase == "Failed"]
    if context.rules.failed_pods == "any":
        return failed
    components = enumerate(context.status.component_status)
    ended = {known.uid for i, known in components if known.uid and finished(context, i)}
    all_ended = context.status.expected > 0 and _all_finished(context)
    made_up = figures.ready >= figures.needed or all_ended
    own = {"", context.wrapper.metadata.uid}
    return [p for p in failed if p.owner not in ended and not (made_up and p.owner not in own)]


def judge(context: PhaseContext) -> HealthJudgment:
    """Rules 1 to 9, on a complete view."""
    figures = _figures(context)
    return replace(_judged(context, figures), figures=figures)


def _judged(context: PhaseContext, figures: Figures) -> HealthJudgment:
    leaves, failed = _evacuation(context), _component_failed(context)
    if leaves is not None and leaves.reason == "PreflightFailed" and not _held(context):
        # A Job that gives up for its first failed pod has failed by its node, too.
        failed = leaves if failed is not None and failed.result == "reset" else failed
    first = _missing(context) or failed or _succeeded(context, figures) or leaves
    if first is not None and not (first.leaves and _held(context)):
        return first
    later = _failed_pods(context, figures) or _too_few(context, figures)
    if first is not None:
        # Of a check that has failed the failed pods are a part; whatever else fails is reset.
        by_check = first.reason == "PreflightFailed"
        if by_check or later is None or later.result == "waiting":
            return replace(first, result="held", counts=False)
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
    for i, known in enumerate(context.status.component_status):
        if c.component_is(known) != "True" or finished(context, i):
            continue
        component, name = context.snapshot.component(i), f"{known.kind} {known.name}"
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
    for i, known in enumerate(context.status.component_status):
        verdict = context.snapshot.component(i).verdict
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


def _evacuation(context: PhaseContext) -> HealthJudgment | None:
    cause = evacuation_cause(context.snapshot.pods, context.snapshot.nodes)
    if cause is None:
        return None
    counts = bool(cause.code) and context.status.migration_count >= _PREFLIGHTS_IN_A_ROW
    return HealthJudgment(
        "reset" if counts else "evacuate",
        5 if cause.code else 4,
        cause.why,
        "PreflightFailed" if cause.code else "AutopilotNoExecute",
        counts=counts,
        leaves=(cause.pod.node, cause.code),
    )


def _failed_pods(context: PhaseContext, figures: Figures) -> HealthJudgment | None:
    pods = sorted(_counting(context, figures), key=lambda pod: pod.name)
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
    status, p, now, pods = context.status, context.p, context.now, context.snapshot.pods
    pairs = zip(status.component_status, context.snapshot.components, strict=False)
    queued = next((known for known, component in pairs if component.verdict.suspended), None)
    if queued is not None:
        sentence = f"{queued.kind} {queued.name} is suspended by itself, so the clock of admission and warm-up is stopped"
        return HealthJudgment("waiting", 9, sentence)
    going_on = [
        component.verdict
        for i, component in enumerate(context.snapshot.components)
        if not finished(context, i)
    ]
    needed = figures.needed - sum(verdict.later for verdict in going_on)
    if figures.ready >= needed:
        later = figures.needed - needed
        sentence = f"{later} of {figures.needed} pods are made once others have completed"
        return HealthJudgment("waiting", 9, sentence)
    in_order = any(verdict.in_order for verdict in going_on)
    start, missing = _started(context), needed - figures.existing
    if in_order:
        start = min(last_progress(pods, start), now)
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
    begun = start == c.since(status, c.DEPLOYED)
    since = "others began" if in_order else "they were last wanted"
    since = "creation began" if begun else since
    sentence = f"{what} {(now - start).total_seconds():.0f} s after {since}"
    return HealthJudgment("reset", rule, sentence, "InsufficientPodsReady", grace=True, counts=True)


def _started(context: PhaseContext) -> datetime:
    """Since when pods are missed: creation, loss of readiness, or the end of a suspension."""
    status, now = context.status, context.now
    if c.is_true(status, c.READY):
        return now.replace(microsecond=0)
    known = [
        c.since(status, c.DEPLOYED),
        c.since(status, c.READY),
        *(component.verdict.resumed for component in context.snapshot.components),
    ]
    return min(max((at for at in known if at is not None), default=now), now)
