"""What to hold the GPUs to, and one measurement after another until it can be judged.

Loaded while the tool is asked what it can do: nothing here is needed before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import anyio
from preflight_proto.check import Gpu, Outcome, Run, Verdict, alive, counters, scan, throttling
from preflight_proto.check import gpus as devices
from preflight_proto.check.nccl import bends, workload_variables
from preflight_proto.check.settings import size_text
from preflight_proto.check.topology import find_topology

from . import floors, links, perf, verdicts
from .judge import SMALLER, Progress, Step, StepKind, StepResult, decide
from .settings import Settings

RESERVE: Final = 25.0
"""Seconds kept of the time allowed: to end a tool that hangs, to ask the driver, to judge."""
ANSWER: Final = 5.0
"""Seconds that the driver has to answer for a GPU when a tool cannot be ended."""
LAST: Final = 1.0
"""Seconds of those that nobody else gets: a driver that hangs answers too late to be judged by."""
FIRST: Final = 0.45
"""Part of the time that the first run may take; the rest is for finding where it hangs."""

SLOWER: Final = 1.5
"""Times as long as the longest run so far a healthy one may take: no step begins with less."""


async def measure(
    run: Run[Settings], watch: counters.DriverWatch, *, writes_json: bool = False
) -> Verdict:
    """The verdict about the GPUs of ``watch``, by a tool that can write JSON or not."""
    case = replace(await _case(run, watch.gpus), held=watch.held)
    verdict, case = await _measure(run, case, watch, writes_json=writes_json)
    return _with_watch(run, verdict, case, watch)


async def _measure(
    run: Run[Settings], case: Progress, watch: counters.DriverWatch, *, writes_json: bool = False
) -> tuple[Verdict, Progress]:
    """Take the steps that the judge asks for, until it has a verdict."""
    gpus, longest = case.gpus, 0.0
    reserve = min(RESERVE, 0.2 * (run.deadline - anyio.current_time()))
    while not isinstance(step := decide(case), Verdict):
        _announce(run, case, step)
        started, periods = anyio.current_time(), throttling.read()
        allowed = _allowed(case, step, max(run.deadline - started - reserve, 1.0), longest)
        async with counters.sampled(gpus if step.what is not StepKind.PAIR else ()) as samples:
            result = await perf.run(run, case, step, allowed, writes_json=writes_json)
        spent = anyio.current_time() - started
        if result.stuck:
            case = replace(case, silent=await alive.silent(gpus, ANSWER))
        if step.decides:
            watch.samples += samples
            with _in_time(run):
                await watch.poll()
            signs = scan.findings(watch.signs)
            throttled = throttling.part(periods, throttling.read())
            case = replace(case, signs=signs, throttled=max(case.throttled, throttled))
        if result.busbw is not None:
            run.progress(
                f"{_who(case, step)}: {result.busbw:.2f} GB/s, {result.wrong or 0:g} wrong, {spent:.1f} s"
            )
        case = replace(case, results=(*case.results, StepResult(step, result)))
        if result.busbw is None and not result.too_big:
            with _in_time(run):
                case = replace(case, lost=await devices.lost(gpus))
        if not result.timed_out:
            longest = max(longest, spent)
        if run.deadline - anyio.current_time() < reserve + max(SLOWER * longest, 1.0):
            case = replace(case, exhausted=True)
    if step.outcome is not Outcome.FAILED:
        # A GPU may go at the end of a run that has all its rows: its counters are just not known.
        case = replace(case, lost=await devices.lost(gpus))
        step = verdicts.lost(gpus, case.lost) if case.lost else step
    return step, case


def _in_time(run: Run[Settings]) -> anyio.CancelScope:
    return anyio.CancelScope(deadline=run.deadline - LAST)


def _allowed(case: Progress, step: Step, left: float, longest: float) -> float:
    """Seconds that one run may take."""
    # Never less than what a healthy run may take; else a GPU would seem to hang.
    share = max(left / (len(case.gpus) + 2), min(left, SLOWER * longest), 1.0)
    if any(taken.result.timed_out for taken in case.results):
        return share
    if step.what in {StepKind.PAIR, StepKind.WITHOUT}:  # if it hangs: with whom, and with whom not?
        return max(share, min(left / 2, 3 * longest + 5))
    if not case.results and len(case.gpus) > 2:
        return max(FIRST * left, 1.0)
    return left if step.decides else min(left, 3 * longest + 5)


def _with_watch(
    run: Run[Settings], verdict: Verdict, case: Progress, watch: counters.DriverWatch
) -> Verdict:
    """The verdict beside what the driver said, and the measurement for the fleet's baseline."""
    signs = watch.signs
    measured = next(
        (t for t in case.results if t.step.what is StepKind.ALL and t.result.busbw is not None),
        None,
    )
    if verdict.code in {"SLOW_GPU", "SLOW_NODE", "BELOW_ONE_SOURCE"} and signs:
        verdict = replace(verdict, reason=f"{verdict.reason} The driver says: {scan.words(signs)}.")
    verdict = watch.beside(verdict)
    if measured is None or verdict.measured is None:
        return verdict
    result = measured.result
    details = {
        "model": case.gpus[0].name if len({gpu.name for gpu in case.gpus}) == 1 else "mixed",
        "gpus": str(len(case.gpus)),
        "links": case.links,
        "size": size_text(measured.step.size),
        "nccl": result.library,
        "nccl_tests": result.version,
    }
    details = {name: value for name, value in details.items() if value}
    curve = {size_text(size): round(busbw, 2) for size, busbw in result.curve}
    run.progress(
        f"measurement: {json.dumps({**details, 'busbw_gbps': verdict.measured, 'curve': curve})}"
    )
    return replace(verdict, details=details)


async def _case(run: Run[Settings], gpus: Sequence[Gpu]) -> Progress:
    """What is known before anything is measured."""
    settings = run.settings
    models = sorted({gpu.name for gpu in gpus})
    model = models[0] if len(models) == 1 else ""
    joined, source, kinds = await links.find(run.query, gpus)
    sizes = (settings.size, *(size for size in SMALLER if size < settings.size))
    direct = any(kind.startswith(links.DIRECT) for kind in kinds.values())
    rows = {size: floors.find(model, len(gpus), joined, size, direct=direct) for size in sizes}
    known = {size: row for size, row in rows.items() if row is not None}
    # The workload's own file is one of its variables; what decides is run with the operator's.
    topology = await find_topology(
        settings, {name: v for name, v in os.environ.items() if name != "NCCL_TOPO_FILE"}
    )
    asked = workload_variables(os.environ)
    case = Progress(
        tuple(gpus),
        settings.size,
        known,
        comparable=floors.uniform(model) if model else False,
        threshold=settings.threshold,
        variables=tuple(asked) if any(bends(name) for name in asked) else (),
        topology_file=topology.path or "",
        shm=await anyio.to_thread.run_sync(perf.shared_memory),
        kinds=kinds,
        links=joined.value,
    )
    run.progress(f"links: {joined} ({source}); {case.shm}")
    run.progress(f"topology: {topology.why}")
    floor, limit = known.get(settings.size), case.limit(settings.size)
    held_to = (
        f"at least {limit:g} GB/s" if limit is not None else "each other, as no floor is known"
    )
    known_from = f" (expected {floor.expected:g}: {floor.source})" if floor else ""
    run.progress(
        f"{size_text(settings.size)} over {len(gpus)} {', '.join(models)}: held to {held_to}{known_from}"
    )
    if (
        settings.threshold is not None
        and floor is not None
        and settings.threshold < floor.floor / 2
    ):
        run.progress(
            f"warning: NCCL_LOOPBACK_THRESHOLD_GBPS is {settings.threshold:g}, less than half of this hardware's floor of {floor.floor:g}: sick GPUs will pass"
        )
    if case.variables:
        run.progress(
            f"the workload sets {', '.join(case.variables)}: what decides is measured without, and once more with them"
        )
    return case


def _announce(run: Run[Settings], case: Progress, step: Step) -> None:
    if not case.results:
        run.progress(f"running: {' '.join(perf.argv(run.settings, step))}")
    elif step.what is StepKind.VARIABLE:
        run.progress(f"next: all GPUs with {step.variables[0]}")
    elif step.what not in {StepKind.PAIR, StepKind.WITHOUT}:
        run.progress(f"next: {step.what}, {size_text(step.size)}")
    elif not any(taken.step.what is step.what for taken in case.results):
        run.progress(f"next: {step.what}")


def _who(case: Progress, step: Step) -> str:
    if step.what is StepKind.PAIR:
        return " and ".join(case.gpus[number].uuid for number in step.gpus)
    return f"{len(step.gpus)} GPUs, {size_text(step.size)}"
