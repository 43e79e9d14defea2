"""The check's whole way: our GPUs → how they are joined → what to hold them to → measure, until it can be judged."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NoReturn

import anyio
from preflight_proto.check import Check, Gpu, Outcome, Run, Verdict, run_main
from preflight_proto.check import gpus as devices
from preflight_proto.check.nccl import unusual_variables
from preflight_proto.check.topology import find_topology

from . import floors, links, perf
from .judge import SMALLER, Case, Step, Taken, What, decide
from .settings import Settings, size_text

__all__ = ["CHECK", "main"]

RESERVE: Final = 25.0
"""Seconds kept of the time allowed: to end a tool that hangs, to ask the driver, to judge."""


async def probe(run: Run[Settings]) -> Verdict:
    """Reduce over all GPUs of this pod, and find out why where that is slow, wrong or impossible."""
    gpus = await run.gpus()
    if mig := [gpu for gpu in gpus if gpu.mig]:
        return Verdict(
            Outcome.SKIPPED, "MIG", f"NCCL does not run between MIG devices, and this pod was given {len(mig)}."
        )
    if len(gpus) == 1:
        return Verdict(Outcome.SKIPPED, "ONE_GPU", "the pod has one GPU, and between GPUs there is nothing to measure.")
    case, topology_file = await _case(run, gpus)
    reserve = min(RESERVE, 0.2 * (run.deadline - anyio.current_time()))
    longest = 0.0
    while not isinstance(step := decide(case), Verdict):
        _announce(run, case, step)
        started = anyio.current_time()
        result = await perf.run(run, gpus, step, max(run.deadline - started - reserve, 1.0), topology_file)
        spent = anyio.current_time() - started
        longest = max(longest, spent)
        if result.busbw is not None:
            run.progress(f"{_who(case, step)}: {result.busbw:.2f} GB/s, {result.wrong or 0:g} wrong, {spent:.1f} s")
        case = replace(case, taken=(*case.taken, Taken(step, result)))
        if result.busbw is None and not result.too_big:
            case = replace(case, lost=await devices.lost(gpus))
        if run.deadline - anyio.current_time() < reserve + 1.5 * longest:
            case = replace(case, exhausted=True)
    return step


async def _case(run: Run[Settings], gpus: Sequence[Gpu]) -> tuple[Case, str | None]:
    """What is known before anything is measured, and the topology file that NCCL gets."""
    settings = run.settings
    models = sorted({gpu.name for gpu in gpus})
    model = models[0] if len(models) == 1 else ""
    joined, source = await links.find(lambda argv, patience: run.command(argv, timeout=patience), gpus)
    sizes = (settings.size, *(size for size in SMALLER if size < settings.size))
    known = {size: row for size in sizes if (row := floors.find(model, len(gpus), joined, size))}
    topology = await find_topology(settings, os.environ)
    unusual = tuple(unusual_variables(os.environ))
    case = Case(
        tuple(gpus),
        settings.size,
        known,
        comparable=floors.uniform(model) if model else False,
        threshold=settings.threshold,
        unusual=unusual,
        topology_file=topology.path or "",
        shm=perf.shared_memory(),
    )
    run.progress(f"links: {joined} ({source}); {case.shm}")
    run.progress(f"topology: {topology.why}")
    floor, limit = known.get(settings.size), case.limit(settings.size)
    held_to = f"at least {limit:g} GB/s" if limit is not None else "nothing, it is measured only"
    known_from = f" (expected {floor.expected:g}: {floor.source})" if floor else ""
    run.progress(f"{size_text(settings.size)} over {len(gpus)} {', '.join(models)}: held to {held_to}{known_from}")
    if settings.threshold is not None and floor is not None and settings.threshold < floor.floor / 2:
        run.progress(
            f"warning: NCCL_LOOPBACK_THRESHOLD_GBPS is {settings.threshold:g}, less than half of this hardware's floor of {floor.floor:g}: sick GPUs will pass"
        )
    if unusual:
        run.progress(f"warning: {', '.join(unusual)} may slow NCCL down, so a low bandwidth will fail nobody")
    return case, topology.path


def _announce(run: Run[Settings], case: Case, step: Step) -> None:
    if not case.taken:
        run.progress(f"running: {' '.join(perf.argv(run.settings, len(step.gpus), step.size))}")
    elif step.what is not What.PAIR:
        run.progress(f"next: {step.what}, {size_text(step.size)}")
    elif not case.pairs:
        run.progress(f"next: {step.what}")


def _who(case: Case, step: Step) -> str:
    if step.what is What.PAIR:
        return " and ".join(case.gpus[number].uuid for number in step.gpus)
    return f"{len(step.gpus)} GPUs, {size_text(step.size)}"


CHECK: Final = Check(
    name="nccl-loopback",
    condition="NCCLLoopbackTest",
    component="Node",
    settings=Settings,
    probe=probe,
    timeout=600.0,  # NCCL was seen to start for 55 s on eight GPUs, and a slow node is measured up to some twenty times
    about="NCCL bandwidth and correctness between this pod's GPUs, with nccl-tests.",
)


def main() -> NoReturn:
    run_main(CHECK)
