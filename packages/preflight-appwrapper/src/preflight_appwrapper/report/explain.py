"""Explanations of a wrapper for people: why it is as it is, and what happens next. Pure: by the
same plan that is acted on.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
from preflight_proto.durations import format_duration
from preflight_proto.printable import printable

from preflight_appwrapper.api import conditions as c
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper, Pod
from preflight_appwrapper.core import podsets
from preflight_appwrapper.core.components import ComponentError, build, named
from preflight_appwrapper.core.deadlines import text as clock
from preflight_appwrapper.core.marks import NOT_JUDGED
from preflight_appwrapper.core.parameters import Parameters, parameters
from preflight_appwrapper.core.plan import WrapperPlan
from preflight_appwrapper.core.pods import exits
from preflight_appwrapper.core.snapshot import WrapperSnapshot
from preflight_appwrapper.core.validation import created

_MOST_PODS = 32


class Shown(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A parameter and where its value is from."""

    name: str
    value: str
    source: str
    written: str = ""


class Coming(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The next thing that happens; ``at`` in UTC where time decides it."""

    what: str
    why: str
    at: str = ""
    within: str = ""
    waits: tuple[str, ...] = ()


class Explanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that `explain` prints, for `-o json`."""

    name: str
    namespace: str
    phase: str
    since: str = ""
    rule: int = 0
    because: str = ""
    next: Coming | None = None
    pods: tuple[str, ...] = ()
    resets: str = ""
    blocked: tuple[str, ...] = ()
    parameters: tuple[Shown, ...] = ()
    problems: tuple[str, ...] = ()


def explain(
    wrapper: AppWrapper, snapshot: WrapperSnapshot, decision: WrapperPlan, now: datetime
) -> Explanation:
    """``decision``: what was decided on this wrapper and ``snapshot`` at ``now``."""
    holding, coming = decision.holding, None
    if decision.next is not None:
        at = decision.next.at
        coming = Coming(
            what=decision.next.what,
            why=printable(decision.next.why),
            at=clock(at) if at else "",
            within=format_duration(max(0, round((at - now).total_seconds()))) if at else "",
            waits=decision.next.waits,
        )
    status, p = decision.status, decision.parameters
    quota = c.find(status.conditions, c.QUOTA)
    if quota is not None and quota.reason == NOT_JUDGED and not wrapper.spec.suspend:
        # the controller's word: who explains has no key
        coming = Coming(what="Resuming", why=printable(quota.message), waits=("wrapper",))
    times = (one.last_transition_time for one in wrapper.status.conditions)
    moved = [at for at in times if at is not None]
    evacuated = f", {status.migration_count} evacuations in a row" if status.migration_count else ""
    figures = holding.figures if holding else None
    because = holding.sentence if holding else _cause(wrapper)
    if figures is not None:
        because += f" (expected {figures.expected}: {figures.pending} pending, {figures.running} running, {figures.succeeded} succeeded, {figures.failed} failed, of which {figures.counting} count)"
    return Explanation(
        name=wrapper.metadata.name,
        namespace=wrapper.metadata.namespace,
        phase=wrapper.status.phase or "not seen yet",
        since=clock(max(moved)) if moved else "",
        rule=holding.rule if holding else 0,
        because=printable(because),
        next=coming,
        pods=tuple(_pod(one) for one in sorted(snapshot.pods, key=lambda it: it.name)[:_MOST_PODS]),
        resets=f"{status.resetting_count} of {p.retry_limit}{evacuated}",
        blocked=tuple(printable(one) for one in decision.blocked),
        parameters=_shown(p),
        problems=tuple(problem for _, problem in p.problems),
    )


def _cause(wrapper: AppWrapper) -> str:
    """Say why nothing is done here, or why it was reset last, or has failed."""
    if not wrapper.ours:
        return f"it is managed by {wrapper.spec.managed_by}, so nothing is done here"
    found = c.find(wrapper.status.conditions, c.UNHEALTHY)
    if found is None or found.status != "True":
        return ""
    return f"{found.reason}: {found.message}" if found.message else found.reason


def _shown(p: Parameters) -> tuple[Shown, ...]:
    return tuple(
        Shown(name=it.name, value=it.shown, source=it.source, written=it.written) for it in p.listed
    )


def _pod(pod: Pod) -> str:
    where = f" on {pod.node}" if pod.node else ", not scheduled"
    ends = ", ".join(f"{one.container} exited with {one.code}" for one in exits(pod))
    going = ", being deleted" if pod.going else ""
    why = f" ({pod.status.reason})" if pod.status.reason else ""
    return printable(
        f"{pod.name}: {pod.status.phase}{why}{where}{going}{f'; {ends}' if ends else ''}"
    )


def text(one: Explanation) -> str:
    """For a terminal."""
    return "\n".join(_lines(one))


def _lines(one: Explanation) -> Iterator[str]:
    yield f"{one.namespace}/{one.name}: {one.phase}{f', last change {one.since}' if one.since else ''}"
    if one.because:
        yield f"  {f'rule {one.rule}: ' if one.rule else ''}{one.because}"
    if one.next is None:
        yield "  next: nothing; it stays as it is until it is deleted"
    else:
        when = f" in {one.next.within}, at {one.next.at}" if one.next.at else ""
        waits = ", ".join(one.next.waits)
        sooner = f"; sooner when one of these changes: {waits}" if waits else ""
        yield f"  next: {one.next.what}{when}: {one.next.why}{sooner}"
    yield f"  resets: {one.resets}"
    yield from (f"  cannot be deleted: {it}" for it in one.blocked)
    yield from (f"  pod {it}" for it in one.pods)
    yield from _settings(one.parameters)
    yield from (f"  problem: {it}" for it in one.problems)


def _settings(listed: tuple[Shown, ...]) -> Iterator[str]:
    for it in listed:
        written = f', written "{it.written}"' if it.written and it.source != "annotation" else ""
        yield f"  {it.name} = {it.value} ({it.source}{written})"


class Plan(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The objects that a manifest would create, without a cluster, and every problem of it."""

    name: str
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    pod_sets: tuple[str, ...]
    objects: tuple[Any, ...]
    parameters: tuple[Shown, ...]


def plan(wrapper: AppWrapper, rules: WrapperRules) -> Plan:
    """``wrapper`` as a file has it, without a cluster. Never raises."""
    judged = created(wrapper, rules, namespace=wrapper.metadata.namespace)
    problems, objects, sets = list(judged.problems), [], []
    for i, component in enumerate(wrapper.spec.components):
        try:
            name = named(wrapper, i, "xxxxx")
            objects.append(build(wrapper, i, name.name, rules))
            sets += [
                f"{name}: {one.count} pods at {one.path}" for one in podsets.pod_sets(component)
            ]
        except ComponentError as error:
            if not any(it.startswith(f"spec.components[{i}]") for it in judged.problems):
                problems.append(str(error))
    return Plan(
        name=wrapper.metadata.name,
        problems=tuple(printable(one) for one in problems),
        warnings=judged.warnings,
        pod_sets=tuple(printable(one) for one in sets),
        objects=tuple(objects),
        parameters=_shown(parameters(wrapper.metadata.annotations, rules)),
    )


def plan_text(one: Plan) -> str:
    """For a terminal, without the objects."""
    count = len(one.objects)
    lines = [f"{one.name}: {count} object{'s' if count != 1 else ''} would be created"]
    lines += [f"  {it}" for it in one.pod_sets]
    lines += list(_settings(one.parameters))
    lines += [f"  warning: {it}" for it in one.warnings]
    lines += [f"  problem: {it}" for it in one.problems]
    return "\n".join(lines)
