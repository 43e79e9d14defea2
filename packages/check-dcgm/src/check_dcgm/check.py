"""The check's whole way: our GPUs → the engine's list → the diagnostic → the document → the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

import anyio
from preflight_proto.check import Check, Completed, Inconclusive, Outcome, Run, Verdict, run_main
from preflight_proto.durations import format_duration

from . import hostengine, judge, parse, summary
from .settings import TIMEOUTS, Settings

__all__ = ["CHECK", "main"]

PAUSE: Final = 3.0
"""Seconds between two looks at a busy engine."""
STILL_RUNNING: Final = 30.0
"""Seconds between two lines of a long diagnostic."""
MARGIN: Final = 120.0
"""Seconds for everything but waiting and diagnosing."""


async def probe(run: Run[Settings]) -> Verdict:
    """Diagnose the GPUs that this pod was given, and no others."""
    settings = run.settings
    allowed = run.kit.check_timeout or TIMEOUTS[settings.level]
    patience = settings.queue_timeout if settings.queue_timeout is not None else TIMEOUTS[settings.level]
    run.restart_deadline(patience + allowed + MARGIN)  # waiting for a neighbour is not the diagnostic's time

    gpus = await run.gpus()
    if mig := [gpu for gpu in gpus if gpu.mig]:
        return Verdict(Outcome.SKIPPED, "MIG", f"DCGM cannot diagnose MIG devices, and this pod was given {len(mig)}.")
    ours = [gpu.uuid for gpu in gpus]

    async def command(argv: Sequence[str], timeout: float) -> Completed:
        return await run.command(argv, timeout=timeout, terminate=hostengine.ON_TIMEOUT)

    engine = await hostengine.connect(command, settings.tools, settings.address)
    _refuse_foreign(engine, ours)
    request = judge.Request(settings.level, {engine.gpus[uuid]: uuid for uuid in ours}, settings.address)

    done = await _diagnose(run, engine, ours, allowed, patience)
    if done.timed_out:
        left = "" if engine.heartbeat else " the engine may go on with it for a while;"
        return Verdict.inconclusive(
            "CHECK_TIMEOUT",
            f"no result within {format_duration(allowed)};{left} raise CHECK_TIMEOUT if that is too short.",
        )
    try:
        document = parse.parse(done.stdout)
    except parse.Unreadable as error:
        return judge.by_exit_status(done.returncode, request, summary.short(f"{error} {done.stderr}"))
    for line in summary.lines(document, request.gpus):
        run.progress(line)

    after = await hostengine.connect(command, [engine.tool], settings.address)
    if {uuid: after.gpus.get(uuid) for uuid in ours} != {uuid: engine.gpus[uuid] for uuid in ours}:
        raise Inconclusive(
            "GPU_MAP_CHANGED",
            f"hostengine {settings.address} renumbered its GPUs during the diagnostic; run the check again.",
        )
    return judge.judge(document, done.returncode, request)


def _refuse_foreign(engine: hostengine.Engine, ours: Sequence[str]) -> None:
    missing = [uuid for uuid in ours if uuid not in engine.gpus]
    if missing:
        lists = ", ".join(sorted(engine.gpus)) or "no GPU at all"
        raise Inconclusive(
            "WRONG_HOSTENGINE",
            f"hostengine {engine.address} does not list {', '.join(missing)} (it lists {lists}); it is another node's engine, or it has lost sight of the GPU.",
        )


async def _diagnose(
    run: Run[Settings], engine: hostengine.Engine, ours: Sequence[str], allowed: float, patience: float
) -> Completed:
    """Run the diagnostic; while a neighbour's occupies the engine, wait for at most ``patience`` seconds."""
    argv = hostengine.diag_argv(engine, run.settings.level, ours)
    run.progress(f"running: {' '.join(argv)}")
    give_up = anyio.current_time() + patience
    waiting = False
    while True:
        done = await _with_progress(run, argv, allowed)
        if done.returncode not in hostengine.BUSY:
            return done
        if anyio.current_time() + PAUSE > give_up:
            raise Inconclusive(
                "ENGINE_BUSY",
                f"hostengine {engine.address} was busy with another diagnostic for {format_duration(patience)}; raise DCGM_QUEUE_TIMEOUT to wait longer.",
            )
        if not waiting:
            run.progress(f"the engine is busy with another diagnostic; waiting for up to {format_duration(patience)}")
            waiting = True
        await anyio.sleep(PAUSE)


async def _with_progress(run: Run[Settings], argv: Sequence[str], allowed: float) -> Completed:
    async def tick() -> None:
        started = anyio.current_time()
        while True:
            await anyio.sleep(STILL_RUNNING)
            run.progress(
                f"still running after {format_duration(round(anyio.current_time() - started))} of at most {format_duration(allowed)}"
            )

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        done = await run.command(argv, timeout=allowed, terminate=hostengine.ON_TIMEOUT)
        group.cancel_scope.cancel()
    return done


CHECK: Final = Check(
    name="dcgm-diag",
    condition="DcgmDiagnostic",
    component="GPU",
    settings=Settings,
    probe=probe,
    on_inconclusive="allow",  # an outage of DCGM must not stop a cluster
    about="DCGM diagnostics of this pod's own GPUs, run by the node's hostengine.",
)


def main() -> NoReturn:
    run_main(CHECK)
