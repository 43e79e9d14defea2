"""Running `all_reduce_perf`: its arguments, its environment, its end.

One process drives all GPUs (`-g`), as ADR-026 has it: no MPI, no launcher. What decides is run with
an emptied environment; only then is `-J` used, for its file holds the whole environment.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import anyio
from preflight_proto.check import Gpu, Run
from preflight_proto.check import nccl as words

from . import measurement
from .judge import SWEEP, Progress, Step
from .measurement import Measurement
from .settings import Settings

SHM: Final = Path("/dev/shm")  # noqa: S108 (NCCL's, not ours)
MAX_DOCUMENT: Final = 8 << 20


def argv(settings: Settings, step: Step, document: Path | None = None) -> list[str]:
    """Floats, summed, every element compared: one size, or ADR-026's sweep with the judged size at
    its end.
    """
    span = (
        ["-b", "8", "-e", str(max(step.size, SWEEP)), "-f", "2"]
        if step.sweep
        else ["-b", str(step.size), "-e", str(step.size)]
    )
    return [
        settings.tool,
        *span,
        *("-g", str(len(step.gpus))),
        *("-n", str(settings.iterations), "-w", str(settings.warmup)),
        *("-d", "float", "-o", "sum", "-c", "1"),
        *(["-J", str(document)] if document is not None else []),
    ]


def environment(
    environ: Mapping[str, str],
    gpus: Sequence[Gpu],
    step: Step,
    topology_file: str,
    operator: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """CUDA's number i is the i-th GPU of ``step``: by UUID, so that a bad GPU is never mistaken for
    its neighbour.

    Clean, but for the ``operator``'s variables and the ``topology_file`` of the image;
    ``step.variables`` names those of the workload that come along.
    """
    visible = ",".join(gpus[number].uuid for number in step.gpus)
    kept = words.clean_environment(environ, CUDA_VISIBLE_DEVICES=visible, **(operator or {}))
    if topology_file:
        kept["NCCL_TOPO_FILE"] = topology_file
    wanted = words.workload_variables(environ)
    kept |= {name: wanted[name] for name in step.variables if name in wanted}
    return {name: value for name, value in {**kept, **step.set_}.items() if name not in step.unset}


async def run(
    run: Run[Settings], case: Progress, step: Step, timeout: float, *, writes_json: bool
) -> Measurement:
    """Take one step. Raises :class:`preflight_proto.check.ToolMissing`."""
    operator = dict(run.settings.environment)
    given = environment(os.environ, case.gpus, step, case.topology_file, operator)
    clean = not step.variables
    folder = await anyio.to_thread.run_sync(_folder) if writes_json and clean else None
    file = folder / "all_reduce.json" if folder is not None else None
    try:
        done = await run.command(argv(run.settings, step, file), timeout=timeout, env=given)
        document = await anyio.to_thread.run_sync(_read, file) if file is not None else ""
    finally:
        if folder is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))
    result = measurement.read(
        done.stdout,
        done.stderr,
        done.returncode,
        step.size,
        timed_out=done.timed_out,
        stuck=done.stuck,
        gpus=len(step.gpus),
        document=document,
    )
    if result.busbw is None:
        for line in (done.stdout + "\n" + done.stderr).splitlines()[-40:]:
            if line.strip(" #\t"):
                run.progress(f"| {line.rstrip()}")
    return result


def _folder() -> Path | None:
    """A folder that nobody else may enter; None where there is no room for one."""
    try:
        return Path(tempfile.mkdtemp(prefix="preflight-"))
    except OSError:
        return None


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_DOCUMENT).decode(errors="replace")
    except OSError:
        return ""


def shared_memory() -> str:
    """How much room /dev/shm has, in words."""
    try:
        stat = os.statvfs(SHM)
    except OSError as error:
        return f"{SHM} cannot be used: {error.strerror}"
    total, free = (stat.f_frsize * blocks // (1 << 20) for blocks in (stat.f_blocks, stat.f_bavail))
    return f"{SHM} has {total} MiB, {free} free"
