"""Health of a running workload: nine rules in their order, of which the first that applies
decides. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final, Literal

import msgspec

from preflight_appwrapper.api import conditions as c
from preflight_appwrapper.api.names import PREFIX
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper, AppWrapperStatus, Pod
from preflight_appwrapper.core import podsets
from preflight_appwrapper.core.deadlines import deadline, expired, text
from preflight_appwrapper.core.parameters import Parameters
from preflight_appwrapper.core.plan import Figures, Holding
from preflight_appwrapper.core.pods import (
    Exit,
    evacuation_cause,
    examined,
    exits,
    is_examined,
    terminal,
)
from preflight_appwrapper.core.snapshot import WrapperSnapshot

__all__ = ["RELEASE", "HealthJudgment", "count_pods", "finished", "judge"]

Result = Literal["healthy", "waiting", "confirm", "succeeded", "reset", "evacuate", "held", "fail"]

RELEASE: Final = PREFIX + "evacuate"
"""Annotation of a wrapper: since when it waits for the brake. Whoever writes it releases it."""
_PREFLIGHTS_IN_A_ROW = 3
"""So many evacuations in a row are not counted against the workload; a check that always fails is
not the nodes' fault.
"""


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


def finished(status: AppWrapperStatus, snapshot: WrapperSnapshot, index: int) -> bool:
    """Say whether the component has ended well, now or when it was last seen."""
    known = status.component_status[index]
    return snapshot.component(index).verdict.says == "finished" or c.is_true(known, c.FINISHED)


def count_pods(wrapper: AppWrapper, snapshot: WrapperSnapshot, rules: WrapperRules) -> Figures:
    """The pods, by what they count as."""
    status = wrapper.status
    counts = {"Pending": 0, "Running": 0, "Succeeded": 0}
    failed = [pod for pod in snapshot.pods if pod.status.phase == "Failed"]
    for pod in snapshot.pods:
        phase = pod.status.phase
        if phase == "Succeeded":
            counts[phase] += 1
        elif phase != "Failed" and not pod.going:
            counts["Running" if phase == "Running" else "Pending"] += 1
    credit, ended = _credit(status, snapshot)
    slacks = podsets.slacks(wrapper.spec.components)
    slack = sum(
        min(slacks[i], one.expected)
        for i, one in enumerate(status.component_status[: len(slacks)])
        if not finished(status, snapshot, i)
    )
    counted = Figures(
        expected=status.expected,
        pending=counts["Pending"],
        running=counts["Running"],
        succeeded=counts["Succeeded"],
        failed=len(failed),
        credit=credit,
        ended=ended,
        slack=slack,
    )
    counting = (
        len(failed)
        if rules.failed_pods == "any"
        else len(list(_counting(wrapper, snapshot, counted)))
    )
    return msgspec.structs.replace(counted, counting=counting)


def _credit(status: AppWrapperStatus, snapshot: WrapperSnapshot) -> tuple[int, int]:
    """Pods that components which have ended well do not need any more: for the others to be ready,
    and for all to have succeeded.

    Of pods that no component owns nobody knows which one they are of. They are first those of the
    components that go on, where it is asked whether one of these lacks any, and last where it is
    asked whether these have succeeded.
    """
    with_pods = [(i, one) for i, one in enumerate(status.component_status) if one.expected]
    alive = [pod for pod in snapshot.pods if not _lost(pod)]
    if all(finished(status, snapshot, i) for i, _ in with_pods):
        rest = max(0, status.expected - len(alive))
        return rest, rest
    credit, surplus, going_on, owners = 0, 0, 0, set[str]()
    for i, known in with_pods:
        uid, ended = known.uid or snapshot.component(i).uid, finished(status, snapshot, i)
        if uid and (
            snapshot.component(i).verdict.owns_pods
            or any(pod.owner == uid for pod in snapshot.pods)
        ):
            owners.add(uid)
            owned = sum(1 for pod in alive if pod.owner == uid)
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


def _counting(wrapper: AppWrapper, snapshot: WrapperSnapshot, figures: Figures) -> Iterator[Pod]:
    """Failed pods that nobody has made up for."""
    status = wrapper.status
    made_up = figures.ready >= figures.needed
    ended = {
        known.uid
        for i, known in enumerate(status.component_status)
        if known.uid and finished(status, snapshot, i)
    }
    with_pods = [i for i, known in enumerate(status.component_status) if known.expected]
    all_ended = bool(with_pods) and all(finished(status, snapshot, i) for i in with_pods)
    for pod in snapshot.pods:
        if pod.status.phase != "Failed":
            continue
        replaced = bool(pod.owner) and pod.owner != wrapper.metadata.uid
        if (replaced and (made_up or all_ended)) or pod.owner in ended:
            continue
        yield pod


def judge(
    wrapper: AppWrapper,
    snapshot: WrapperSnapshot,
    p: Parameters,
    rules: WrapperRules,
    now: datetime,
) -> HealthJudgment:
    """Rules 1 to 9, on a complete view."""
    figures = count_pods(wrapper, snapshot, rules)
    first = (
        _missing(wrapper, snapshot, figures)
        or _component_failed(wrapper, snapshot, figures, p)
        or _succeeded(snapshot, figures)
        or _evacuation(wrapper, snapshot, figures)
    )
    held = first is not None and first.leaves is not None and _held(wrapper, snapshot)
    if first is not None and not held:
        return first
    later = _failed_pods(wrapper, snapshot, figures, p, rules) or _too_few(
        wrapper, snapshot, figures, p, now
    )
    if first is not None:
        # Of a check that has failed the failed pods are a part; whatever else fails is reset.
        by_check = first.reason == "PreflightFailed"
        if by_check or later is None or later.result == "waiting":
            return msgspec.structs.replace(first, result="held", counts=False)
    return later or _healthy(figures)


def _held(wrapper: AppWrapper, snapshot: WrapperSnapshot) -> bool:
    """Say whether the brake has it wait, and nobody has released it since."""
    since = c.since(wrapper.status, c.HELD)
    released = since is not None and wrapper.metadata.annotations.get(RELEASE) == text(since)
    return snapshot.held is not None and not released


def _missing(
    wrapper: AppWrapper, snapshot: WrapperSnapshot, figures: Figures
) -> HealthJudgment | None:
    status, ask = wrapper.status, []
    for i, known in enumerate(status.component_status):
        if c.component_is(known) != "True" or finished(status, snapshot, i):
            continue
        one = snapshot.component(i)
        same = one.ours and (not known.uid or known.uid == one.uid)
        if one.state == "present" and same:
            continue
        if not one.confirmed or one.state == "unknown":
            ask.append(i)
            continue
        what = {"absent": "is gone", "going": "is being deleted"}.get(
            one.state, "is another object of that name"
        )
        sentence = f"{known.kind} {known.name} {what}, and somebody else did that"
        return HealthJudgment("fail", Holding(1, figures, sentence), "MissingComponent")
    if not ask:
        return None
    names = ", ".join(
        f"{status.component_status[i].kind} {status.component_status[i].name}" for i in ask
    )
    sentence = f"{names} not seen by the watch, and asked for"
    return HealthJudgment("confirm", Holding(1, figures, sentence), confirm=tuple(ask))


def _component_failed(
    wrapper: AppWrapper, snapshot: WrapperSnapshot, figures: Figures, p: Parameters
) -> HealthJudgment | None:
    for i, known in enumerate(wrapper.status.component_status):
        one = snapshot.component(i)
        if one.verdict.says != "failed" or c.component_is(known) != "True":
            continue
        said = f" ({one.verdict.message})" if one.verdict.message else ""
        sentence = f"{known.kind} {known.name} says that it has failed{said}"
        last = terminal(
            (pod for pod in snapshot.pods if pod.status.phase == "Failed"), p.exit_codes
        )
        if last is not None:
            sentence += f"; {_exit(last)}, which ends the retries"
        return HealthJudgment(
            "fail" if last else "reset",
            Holding(2, figures, sentence),
            "FailedComponent",
            counts=True,
        )
    return None


def _succeeded(snapshot: WrapperSnapshot, figures: Figures) -> HealthJudgment | None:
    if not 0 < figures.expected <= figures.succeeded + figures.ended:
        return None
    if figures.pending or figures.running or figures.counting:
        return None
    if any(one.verdict.says == "more" for one in snapshot.components):
        return None
    sentence = f"{figures.succeeded} of {figures.expected} pods succeeded, and none is left to run"
    return HealthJudgment("succeeded", Holding(3, figures, sentence))


def _evacuation(
    wrapper: AppWrapper, snapshot: WrapperSnapshot, figures: Figures
) -> HealthJudgment | None:
    by = evacuation_cause(snapshot.pods, snapshot.nodes)
    if by is None:
        return None
    counts = bool(by.code) and wrapper.status.migration_count >= _PREFLIGHTS_IN_A_ROW
    return HealthJudgment(
        "reset" if counts else "evacuate",
        Holding(5 if by.code else 4, figures, by.why),
        "PreflightFailed" if by.code else "AutopilotNoExecute",
        counts=counts,
        leaves=(by.pod.node, by.code),
    )


def _failed_pods(
    wrapper: AppWrapper,
    snapshot: WrapperSnapshot,
    figures: Figures,
    p: Parameters,
    rules: WrapperRules,
) -> HealthJudgment | None:
    if not figures.counting:
        return None
    pods = [pod for pod in snapshot.pods if pod.status.phase == "Failed"]
    if rules.failed_pods != "any":
        pods = list(_counting(wrapper, snapshot, figures))
    pods.sort(key=lambda it: it.name)
    last = terminal(pods, p.exit_codes)
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


def _too_few(
    wrapper: AppWrapper, snapshot: WrapperSnapshot, figures: Figures, p: Parameters, now: datetime
) -> HealthJudgment | None:
    if figures.ready >= figures.needed:
        return None
    queued = next((i for i, one in enumerate(snapshot.components) if one.verdict.suspended), None)
    if queued is not None and queued < len(wrapper.status.component_status):
        known = wrapper.status.component_status[queued]
        sentence = f"{known.kind} {known.name} is suspended by itself, so the clock of admission and warm-up is stopped"
        return HealthJudgment("waiting", Holding(9, figures, sentence))
    start = _started(wrapper.status, snapshot, now)
    missing = figures.needed - figures.existing
    if missing > 0:
        rule, period, extra, what = (
            7,
            p.admission,
            0.0,
            f"{missing} of {figures.needed} pods do not exist",
        )
    else:
        spent = examined(snapshot.pods, start, now, p.preflight_allowance)
        extra = p.preflight_allowance if is_examined(snapshot.pods) else spent
        rule, period, what = (
            8,
            p.warmup,
            f"{figures.needed - figures.ready} of {figures.needed} pods do not run",
        )
        if expired(start, period + spent, now):
            extra = spent
    if expired(start, period + extra, now):
        sentence = (
            f"{what} {(now - start).total_seconds():.0f} s after {_text(start, wrapper.status)}"
        )
        return HealthJudgment(
            "reset",
            Holding(rule, figures, sentence),
            "InsufficientPodsReady",
            grace=True,
            counts=True,
        )
    return HealthJudgment(
        "waiting",
        Holding(9, figures, f"{what} yet"),
        at=deadline(start, period + extra),
        then=f"rule {rule}: too few pods",
    )


def _text(start: datetime, status: AppWrapperStatus) -> str:
    return "creation began" if start == c.since(status, c.DEPLOYED) else "they were last wanted"


def _started(status: AppWrapperStatus, snapshot: WrapperSnapshot, now: datetime) -> datetime:
    """Since when pods are missed: creation, or the loss of readiness, or the end of a component's
    own suspension.
    """
    if c.is_true(status, c.READY):
        return now.replace(microsecond=0)
    known = [
        c.since(status, c.DEPLOYED),
        c.since(status, c.READY),
        *(one.verdict.resumed for one in snapshot.components),
    ]
    return min(max((at for at in known if at is not None), default=now), now)


def _healthy(figures: Figures) -> HealthJudgment:
    sentence = f"{figures.ready} of {figures.needed} pods run or have succeeded"
    return HealthJudgment("healthy", Holding(9, figures, sentence), "FoundNoFailedPods")
