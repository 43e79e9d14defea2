"""Health of a running workload: nine rules in their order, of which the first that applies
decides. Pure.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

import msgspec

from preflight_appwrapper.api import conditions as c
from preflight_appwrapper.api.names import PREFIX
from preflight_appwrapper.api.types import Pod
from preflight_appwrapper.core import podsets
from preflight_appwrapper.core.deadlines import deadline, expired, text
from preflight_appwrapper.core.phase_context import PhaseContext
from preflight_appwrapper.core.plan import Figures, Holding
from preflight_appwrapper.core.pods import (
    Exit,
    evacuation_cause,
    examined,
    exits,
    is_examined,
    terminal,
)

Result = Literal["healthy", "waiting", "confirm", "succeeded", "reset", "evacuate", "held", "fail"]

RELEASE: Final = PREFIX + "evacuate"
"""Annotation of a wrapper: since when it waits for the brake. Whoever writes it releases it."""
_PREFLIGHTS_IN_A_ROW = 3
"""Evacuations in a row that do not count: a check that always fails is not the nodes' fault."""


class HealthJudgment(msgspec.Struct, frozen=True):
    """``result``: what follows when no grace is left; ``grace``: the rule has one. ``counts``: a
    reset for it is counted. ``confirm``: components to be asked for. ``at``: when another rule may
    begin to hold, and ``then`` what that is. ``leaves``: node and code of an evacuation."""

    result: Result
    holding: Holding
    reason: str = ""
    grace: bool = False
    counts: bool = False
    confirm: tuple[int, ...] = ()
    at: datetime | None = None
    then: str = ""
    leaves: tuple[str, str] | None = None


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
    status, counts = context.status, {"Pending": 0, "Running": 0, "Succeeded": 0, "Failed": 0}
    for pod in context.snapshot.pods:
        phase = pod.status.phase
        if phase in {"Succeeded", "Failed"}:
            counts[phase] += 1
        elif not pod.going:
            counts["Running" if phase == "Running" else "Pending"] += 1
    credit, ended = _credit(context)
    slacks = podsets.slacks(context.wrapper.spec.components)
    counted = Figures(
        expected=status.expected,
        pending=counts["Pending"],
        running=counts["Running"],
        succeeded=counts["Succeeded"],
        failed=counts["Failed"],
        credit=credit,
        ended=ended,
        slack=sum(
            min(slack, one.expected)
            for i, (slack, one) in enumerate(zip(slacks, status.component_status, strict=False))
            if not finished(context, i)
        ),
    )
    return msgspec.structs.replace(counted, counting=len(_counting(context, counted)))


def _credit(context: PhaseContext) -> tuple[int, int]:
    """Pods that components which have ended well do not need any more: for the others to be ready,
    and for all to have succeeded.

    Of pods that no component owns nobody knows which one they are of. They are first those of the
    components that go on, where it is asked whether one of these lacks any, and last where it is
    asked whether these have succeeded.
    """
    status, snapshot = context.status, context.snapshot
    alive = [pod for pod in snapshot.pods if not _lost(pod)]
    if _all_finished(context):
        rest = max(0, status.expected - len(alive))
        return rest, rest
    credit, surplus, going_on, owners = 0, 0, 0, set[str]()
    for i, known in enumerate(status.component_status):
        seen, ended = snapshot.component(i), finished(context, i)
        uid = known.uid or seen.uid
        if not known.expected:
            continue
        if uid and (seen.verdict.owns_pods or any(pod.owner == uid for pod in snapshot.pods)):
            owners.add(uid)
            owned = sum(pod.owner == uid for pod in alive)
            credit += max(0, known.expected - owned) if ended else 0
        elif ended:
            surplus += known.expected
        else:
            going_on += known.expected
    others = [pod for pod in alive if pod.owner not in owners]
    succeeded = sum(pod.status.phase == "Succeeded" for pod in others)
    ready = credit + max(0, surplus - max(0, len(others) - going_on))
    return ready, credit + max(0, surplus - succeeded)


def _lost(pod: Pod) -> bool:
    """Neither pending nor running, nor succeeded."""
    return pod.status.phase == "Failed" or (pod.going and pod.status.phase != "Succeeded")


def _counting(context: PhaseContext, figures: Figures) -> list[Pod]:
    """Failed pods that nobody has made up for; all of them, where all are to count."""
    failed = [pod for pod in context.snapshot.pods if pod.status.phase == "Failed"]
    if context.rules.failed_pods == "any":
        return failed
    known = enumerate(context.status.component_status)
    ended = {one.uid for i, one in known if one.uid and finished(context, i)}
    all_ended = context.status.expected > 0 and _all_finished(context)
    made_up = figures.ready >= figures.needed or all_ended
    own = {"", context.wrapper.metadata.uid}
    return [p for p in failed if p.owner not in ended and not (made_up and p.owner not in own)]


def judge(context: PhaseContext) -> HealthJudgment:
    """Rules 1 to 9, on a complete view."""
    figures = _figures(context)
    first = (
        _missing(context, figures)
        or _component_failed(context, figures)
        or _succeeded(context, figures)
        or _evacuation(context, figures)
    )
    if first is not None and not (first.leaves and _held(context)):
        return first
    later = _failed_pods(context, figures) or _too_few(context, figures)
    if first is not None:
        # Of a check that has failed the failed pods are a part; whatever else fails is reset.
        by_check = first.reason == "PreflightFailed"
        if by_check or later is None or later.result == "waiting":
            return msgspec.structs.replace(first, result="held", counts=False)
    return later or _healthy(figures)


def _held(context: PhaseContext) -> bool:
    """Say whether the brake has it wait, and nobody has released it since."""
    since = c.since(context.status, c.HELD)
    annotation = context.wrapper.metadata.annotations.get(RELEASE)
    released = since is not None and annotation == text(since)
    return context.snapshot.held is not None and not released


def _missing(context: PhaseContext, figures: Figures) -> HealthJudgment | None:
    ask: dict[int, str] = {}
    for i, known in enumerate(context.status.component_status):
        if c.component_is(known) != "True" or finished(context, i):
            continue
        one, name = context.snapshot.component(i), f"{known.kind} {known.name}"
        same = one.ours and known.uid in {"", one.uid}
        if one.state == "present" and same:
            continue
        if not one.confirmed or one.state == "unknown":
            ask[i] = name
            continue
        what = {"absent": "is gone", "going": "is being deleted"}.get(
            one.state, "is another object of that name"
        )
        sentence = f"{name} {what}, and somebody else did that"
        return HealthJudgment("fail", Holding(1, figures, sentence), "MissingComponent")
    if not ask:
        return None
    sentence = f"{', '.join(ask.values())} not seen by the watch, and asked for"
    return HealthJudgment("confirm", Holding(1, figures, sentence), confirm=tuple(ask))


def _component_failed(context: PhaseContext, figures: Figures) -> HealthJudgment | None:
    for i, known in enumerate(context.status.component_status):
        verdict = context.snapshot.component(i).verdict
        if verdict.says != "failed" or c.component_is(known) != "True":
            continue
        said = f" ({verdict.message})" if verdict.message else ""
        sentence = f"{known.kind} {known.name} says that it has failed{said}"
        failed = (pod for pod in context.snapshot.pods if pod.status.phase == "Failed")
        last = terminal(failed, context.p.exit_codes)
        if last is not None:
            sentence += f"; {_exit(last)}, which ends the retries"
        holding = Holding(2, figures, sentence)
        return HealthJudgment("fail" if last else "reset", holding, "FailedComponent", counts=True)
    return None


def _succeeded(context: PhaseContext, figures: Figures) -> HealthJudgment | None:
    if not 0 < figures.expected <= figures.succeeded + figures.ended:
        return None
    if figures.pending or figures.running or figures.counting:
        return None
    if any(one.verdict.says == "more" for one in context.snapshot.components):
        return None
    sentence = f"{figures.succeeded} of {figures.expected} pods succeeded, and none is left to run"
    return HealthJudgment("succeeded", Holding(3, figures, sentence))


def _evacuation(context: PhaseContext, figures: Figures) -> HealthJudgment | None:
    by = evacuation_cause(context.snapshot.pods, context.snapshot.nodes)
    if by is None:
        return None
    counts = bool(by.code) and context.status.migration_count >= _PREFLIGHTS_IN_A_ROW
    return HealthJudgment(
        "reset" if counts else "evacuate",
        Holding(5 if by.code else 4, figures, by.why),
        "PreflightFailed" if by.code else "AutopilotNoExecute",
        counts=counts,
        leaves=(by.pod.node, by.code),
    )


def _failed_pods(context: PhaseContext, figures: Figures) -> HealthJudgment | None:
    pods = sorted(_counting(context, figures), key=lambda it: it.name)
    if not pods:
        return None
    last = terminal(pods, context.p.exit_codes)
    shown = last or next((one for pod in pods for one in exits(pod)), None)
    what = f"{len(pods)} failed pod{'s' if len(pods) != 1 else ''}"
    sentence = f"{what}, {_exit(shown) if shown else _plain(pods[0])}"
    return HealthJudgment(
        "fail" if last else "reset",
        Holding(6, figures, sentence + (", which ends the retries" if last else "")),
        "FoundFailedPods",
        grace=True,
        counts=True,
    )


def _exit(one: Exit) -> str:
    where = f" on {one.node}" if one.node else ""
    return f"{one.pod}{where} exited with {one.code}"


def _plain(pod: Pod) -> str:
    where = f" on {pod.node}" if pod.node else ""
    return f"{pod.name}{where} failed{f' ({pod.status.reason})' if pod.status.reason else ''}"


def _too_few(context: PhaseContext, figures: Figures) -> HealthJudgment | None:
    if figures.ready >= figures.needed:
        return None
    status, p, now, pods = context.status, context.p, context.now, context.snapshot.pods
    seen = zip(status.component_status, context.snapshot.components, strict=False)
    queued = next((known for known, one in seen if one.verdict.suspended), None)
    if queued is not None:
        sentence = f"{queued.kind} {queued.name} is suspended by itself, so the clock of admission and warm-up is stopped"
        return HealthJudgment("waiting", Holding(9, figures, sentence))
    start, missing = _started(context), figures.needed - figures.existing
    if missing > 0:
        rule, period = 7, p.admission
        what = f"{missing} of {figures.needed} pods do not exist"
    else:
        rule, period = 8, p.warmup + examined(pods, start, now, p.preflight_allowance)
        what = f"{figures.needed - figures.ready} of {figures.needed} pods do not run"
        if is_examined(pods) and not expired(start, period, now):
            period = p.warmup + p.preflight_allowance
    if expired(start, period, now):
        since = (
            "creation began" if start == c.since(status, c.DEPLOYED) else "they were last wanted"
        )
        sentence = f"{what} {(now - start).total_seconds():.0f} s after {since}"
        holding = Holding(rule, figures, sentence)
        return HealthJudgment("reset", holding, "InsufficientPodsReady", grace=True, counts=True)
    return HealthJudgment(
        "waiting",
        Holding(9, figures, f"{what} yet"),
        at=deadline(start, period),
        then=f"rule {rule}: too few pods",
    )


def _started(context: PhaseContext) -> datetime:
    """Since when pods are missed: creation, loss of readiness, or the end of a suspension."""
    status, now = context.status, context.now
    if c.is_true(status, c.READY):
        return now.replace(microsecond=0)
    known = [
        c.since(status, c.DEPLOYED),
        c.since(status, c.READY),
        *(one.verdict.resumed for one in context.snapshot.components),
    ]
    return min(max((at for at in known if at is not None), default=now), now)


def _healthy(figures: Figures) -> HealthJudgment:
    sentence = f"{figures.ready} of {figures.needed} pods run or have succeeded"
    return HealthJudgment("healthy", Holding(9, figures, sentence), "FoundNoFailedPods")
