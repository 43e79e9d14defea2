"""Running `all_reduce_perf`: its arguments, its environment, its end.

One process drives all GPUs (`-g`), as ADR-026 has it: no MPI, no launcher. Never `-J`: its file holds the whole environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from preflight_proto.check import Gpu, Run
from preflight_proto.check import nccl as words

from . import measurement
from .judge import Step
from .measurement import Measurement
from .settings import Settings

__all__ = ["argv", "environment", "run", "shared_memory"]

SHM = Path("/dev/shm")  # noqa: S108 (NCCL's, not ours)


def argv(settings: Settings, count: int, size: int) -> list[str]:
    """One size, floats, summed, every element compared."""
    return [
        settings.tool,
        *("-b", str(size), "-e", str(size)),
        *("-g", str(count)),
        *("-n", str(settings.iterations), "-w", str(settings.warmup)),
        *("-d", "float", "-o", "sum", "-c", "1"),
    ]


def environment(
    environ: Mapping[str, str], gpus: Sequence[Gpu], step: Step, topology_file: str | None
) -> dict[str, str]:
    """CUDA's number i is the i-th GPU of ``step``: by UUID, so that a bad GPU is never mistaken for its neighbour."""
    visible = ",".join(gpus[number].uuid for number in step.gpus)
    kept = words.environment(environ, CUDA_VISIBLE_DEVICES=visible)
    if topology_file:
        kept["NCCL_TOPO_FILE"] = topology_file
    return {name: value for name, value in {**kept, **step.set_}.items() if name not in step.unset}


async def run(
    run: Run[Settings], gpus: Sequence[Gpu], step: Step, timeout: float, topology_file: str | None
) -> Measurement:
    """Take one step. Raises :class:`preflight_proto.check.ToolMissing`."""
    command = argv(run.settings, len(step.gpus), step.size)
    done = await run.command(command, timeout=timeout, env=environment(os.environ, gpus, step, topology_file))
    result = measurement.read(
        done.stdout, done.stderr, done.returncode, step.size, timed_out=done.timed_out, stuck=done.stuck
    )
    if result.busbw is None:
        for line in (done.stdout + "\n" + done.stderr).splitlines()[-40:]:
            if line.strip(" #\t"):
                run.progress(f"| {line.rstrip()}")
    return result


def shared_memory() -> str:
    """How much room /dev/shm has, in words."""
    try:
        stat = os.statvfs(SHM)
    except OSError as error:
        return f"{SHM} cannot be used: {error.strerror}"
    total, free = (stat.f_frsize * blocks // (1 << 20) for blocks in (stat.f_blocks, stat.f_bavail))
    return f"{SHM} has {total} MiB, {free} free"
