"""Health of a running workload: nine rules in order; the first that applies decides. Pure."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from itertools import chain
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
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_PHASES: Final = _ENDED | {"Running"}
"""All others are pending, also those that nobody knows."""
_PREFLIGHTS_IN_A_ROW = 3
"""Evacuations in a row that do not count: a check that always fails is not the nodes' fault."""


def _figures(context: PhaseContext) -> tuple[Figures, list[Pod]]:
    """The pods, by what they count as; and the failed ones that nobody has made up for."""
    places = {
        uid: place
        for place, (known, seen, _) in enumerate(context.components)
        for uid in {known.uid, seen.uid} - {""}
        if known.expected  # else whose template another component has
    }
    every = [known.expected for known, *_ in context.components]
    pods: list[list[str]] = [[] for _ in (*every, "unknown")]  # by component their phases
    for pod in context.snapshot.pods:
        phase = pod.status.phase
        phase = phase if phase in _PHASES else "Pending"
        if phase in _ENDED or not pod.going:
            place = places.get(pod.uid, places.get(pod.owner, pod.component))
            pods[place if place < len(every) else -1].append(phase)
    phases = Counter(chain(*pods))
    slacks = dict(enumerate(podsets.slacks(context.wrapper.spec.components)))
    needed = [
        known.expected - (0 if ended else min(slacks.get(i, 0), known.expected))
        for i, (known, _, ended) in enumerate(context.components)
    ]
    figures = Figures(
        expected=sum(every),
        pending=phases["Pending"],
        running=phases["Running"],
        succeeded=phases["Succeeded"],
        failed=phases["Failed"],
        needed=sum(needed),
        ready=_covered(context, pods, needed, "Running", "Succeeded"),
        existing=_covered(context, pods, needed, "Pending", "Running", "Succeeded"),
        ended=_covered(context, pods, every, "Succeeded"),
    )
    counting = _counting(context, figures)
    return replace(figures, counting=len(counting)), counting


def _covered(context: PhaseContext, pods: list[list[str]], wanted: list[int], *phases: str) -> int:
    """How many of the pods ``wanted`` of each component are in one of the phases, or needed no
    more: it has ended well, or has counted them as succeeded before a drain took them.

    Pods of which it is not known whose they are (an earlier version of this controller has made
    them, and no component owns them) stand for those that do not exist where no component's own
    would be, first for those that have been counted, where all have such counts, and are last
    believed to be a success of what goes on.
    """
    covered, lacking, counted, left, uncounted = 0, 0, 0, 0, 0
    for place, (known, seen, ended) in enumerate(context.components):
        there, verdict, most = pods[place], seen.verdict, wanted[place]
        alive = len(there) - there.count("Failed")
        lost = min(verdict.succeeded - there.count("Succeeded"), known.expected - alive)
        lost, absent = max(0, lost), max(0, most - alive)
        if ended:
            covered += most
            left += 0 if verdict.owns_pods else absent
        elif verdict.owns_pods:
            covered += min(sum(map(there.count, phases)) + lost, most)
        else:
            covered += min(sum(map(there.count, phases)), most)
            lacking += absent
            counted += min(lost, absent)
            uncounted += 0 if lost else absent
    others = sum(map(pods[-1].count, phases)) - (0 if "Running" in phases else left)
    counted -= 0 if left or uncounted else pods[-1].count("Succeeded")
    return covered + min(lacking, max(0, others) + max(0, counted))


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
        not 0 < figures.expected <= figures.ended
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
