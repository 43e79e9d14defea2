"""Explanations of a wrapper for people, by the same plan that is acted on. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
from preflight_kube.runtime.events import timestamp
from preflight_proto.durations import format_duration
from preflight_proto.printable import printable

from preflight_appwrapper.api import conditions as c
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper, Pod
from preflight_appwrapper.core import podsets
from preflight_appwrapper.core.components import ComponentError, build, named
from preflight_appwrapper.core.marks import NOT_JUDGED
from preflight_appwrapper.core.parameters import Parameter, parameters
from preflight_appwrapper.core.plan import WrapperPlan
from preflight_appwrapper.core.pods import exits
from preflight_appwrapper.core.snapshot import WrapperSnapshot
from preflight_appwrapper.core.validation import created

_MOST_PODS = 32


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
    parameters: tuple[Parameter, ...] = ()
    problems: tuple[str, ...] = ()


def explain(
    wrapper: AppWrapper, snapshot: WrapperSnapshot, decision: WrapperPlan, now: datetime
) -> Explanation:
    """``decision``: what was decided on this wrapper and ``snapshot`` at ``now``."""
    judgment, coming = decision.judgment, None
    if decision.next is not None:
        at = decision.next.at
        coming = Coming(
            what=decision.next.what,
            why=printable(decision.next.why),
            at=timestamp(at) if at else "",
            within=format_duration(max(0, round((at - now).total_seconds()))) if at else "",
            waits=decision.next.waits,
        )
    status, p = decision.status, decision.parameters
    quota = c.find(status, c.QUOTA)
    if quota is not None and quota.reason == NOT_JUDGED and not wrapper.spec.suspend:
        # the controller's word: who explains has no key
        coming = Coming(what="Resuming", why=printable(quota.message), waits=("wrapper",))
    forbidden = c.find(wrapper.status, c.FORBIDDEN)
    if forbidden is not None:
        coming = Coming(what="a decision", why=printable(forbidden.message), waits=("mirrors",))
    times = (condition.last_transition_time for condition in wrapper.status.conditions)
    moved = [at for at in times if at is not None]
    evacuated = f", {status.migration_count} evacuations in a row" if status.migration_count else ""
    because = judgment.sentence if judgment else _cause(wrapper, decision.blocked)
    if judgment is not None:
        figures = judgment.figures
        because += f" (expected {figures.expected}: {figures.pending} pending, {figures.running} running, {figures.succeeded} succeeded, {figures.failed} failed, of which {figures.counting} count)"
    return Explanation(
        name=wrapper.metadata.name,
        namespace=wrapper.metadata.namespace,
        phase=wrapper.status.phase or "not seen yet",
        since=timestamp(max(moved)) if moved else "",
        rule=judgment.rule if judgment else 0,
        because=printable(because),
        next=coming,
        pods=tuple(map(_pod, sorted(snapshot.pods, key=lambda pod: pod.name)[:_MOST_PODS])),
        resets=f"{status.resetting_count} of {p.retry_limit}{evacuated}",
        blocked=tuple(map(printable, decision.blocked)),
        parameters=p.listed,
        problems=tuple(problem for _, problem in p.problems),
    )


def _cause(wrapper: AppWrapper, blocked: tuple[str, ...]) -> str:
    """Say why nothing is done here, or why it cannot be deleted, was reset last, or has failed."""
    if not wrapper.ours:
        return f"it is managed by {wrapper.spec.managed_by}, so nothing is done here"
    deleting = c.find(wrapper.status, c.DELETING)
    if deleting is not None and deleting.status == "True" and deleting.message and not blocked:
        return deleting.message  # the leader's word: who explains has not tried
    sick = c.find(wrapper.status, c.UNHEALTHY)
    if sick is None or sick.status != "True":
        return ""
    return f"{sick.reason}: {sick.message}" if sick.message else sick.reason


def _pod(pod: Pod) -> str:
    where = f" on {pod.node}" if pod.node else ", not scheduled"
    ends = ", ".join(f"{ended.container} exited with {ended.code}" for ended in exits(pod))
    going = ", being deleted" if pod.going else ""
    why = f" ({pod.status.reason})" if pod.status.reason else ""
    ends = f"; {ends}" if ends else ""
    return printable(f"{pod.name}: {pod.status.phase}{why}{where}{going}{ends}")


def text(explanation: Explanation) -> str:
    """For a terminal."""
    about, coming = explanation, explanation.next
    since = f", last change {about.since}" if about.since else ""
    lines = [f"{about.namespace}/{about.name}: {about.phase}{since}"]
    if about.because:
        lines.append(f"  {f'rule {about.rule}: ' if about.rule else ''}{about.because}")
    if coming is None:
        lines.append("  next: nothing; it stays as it is until it is deleted")
    else:
        when = f" in {coming.within}, at {coming.at}" if coming.at else ""
        waits = ", ".join(coming.waits)
        sooner = f"; sooner when one of these changes: {waits}" if waits else ""
        lines.append(f"  next: {coming.what}{when}: {coming.why}{sooner}")
    lines.append(f"  resets: {about.resets}")
    lines += [f"  cannot be deleted: {object_}" for object_ in about.blocked]
    lines += [f"  pod {pod}" for pod in about.pods]
    lines += _settings(about.parameters)
    return "\n".join((*lines, *(f"  problem: {problem}" for problem in about.problems)))


def _settings(listed: tuple[Parameter, ...]) -> Iterator[str]:
    for shown in listed:
        other = shown.written and shown.source != "annotation"
        written = f', written "{shown.written}"' if other else ""
        yield f"  {shown.name} = {shown.value} ({shown.source}{written})"


class Plan(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The objects that a manifest would create, without a cluster, and every problem of it."""

    name: str
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    pod_sets: tuple[str, ...]
    objects: tuple[Any, ...]
    parameters: tuple[Parameter, ...]


def plan(wrapper: AppWrapper, rules: WrapperRules) -> Plan:
    """``wrapper`` as a file has it, without a cluster. Never raises."""
    judged = created(wrapper, rules, namespace=wrapper.metadata.namespace)
    problems, objects, sets = list(judged.problems), [], []
    for i, component in enumerate(wrapper.spec.components):
        try:
            name = named(wrapper, i, "xxxxx")
            objects.append(build(wrapper, i, name.name, rules))
            known = podsets.pod_sets(component)
            sets += [f"{name}: {pod_set.count} pods at {pod_set.path}" for pod_set in known]
        except ComponentError as error:
            if not any(text.startswith(f"spec.components[{i}]") for text in judged.problems):
                problems.append(str(error))
    return Plan(
        name=wrapper.metadata.name,
        problems=tuple(map(printable, problems)),
        warnings=judged.warnings,
        pod_sets=tuple(map(printable, sets)),
        objects=tuple(objects),
        parameters=parameters(wrapper.metadata.annotations, rules).listed,
    )


def plan_text(planned: Plan) -> str:
    """For a terminal, without the objects."""
    count = len(planned.objects)
    lines = [f"{planned.name}: {count} object{'s' if count != 1 else ''} would be created"]
    lines += [f"  {pod_set}" for pod_set in planned.pod_sets]
    lines += _settings(planned.parameters)
    lines += [f"  warning: {warning}" for warning in planned.warnings]
    return "\n".join((*lines, *(f"  problem: {problem}" for problem in planned.problems)))
