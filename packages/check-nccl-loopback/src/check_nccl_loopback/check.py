"""The check's way to its tool: our GPUs → what the driver knows of them → what the tool can do.

Then :mod:`.steps`: what to hold them to → measure, until it can be judged.

Before and after the load the driver's counters are read, and sampled under it: they name a link or
a GPU that bandwidth hides, and say why a run was slow.
"""

from __future__ import annotations

import os
from typing import Final, NoReturn

from preflight_proto import time_limits
from preflight_proto.check import (
    Check,
    Outcome,
    Run,
    Skipped,
    Verdict,
    counters,
    nccl,
    run_main,
    scan,
)

from .settings import Settings

PATIENCE: Final = 30.0
"""Seconds that `all_reduce_perf -h` may take, which touches no GPU."""


async def probe(run: Run[Settings]) -> Verdict:
    """Reduce over all GPUs of this pod, and find out why where that is slow,
    wrong or impossible.
    """
    gpus = await run.gpus()
    if mig := [gpu for gpu in gpus if gpu.mig]:
        raise Skipped(
            "MIG", f"NCCL does not run between MIG devices, and this pod was given {len(mig)}."
        )
    if len(gpus) == 1:
        raise Skipped(
            "ONE_GPU", "the pod has one GPU, and between GPUs there is nothing to measure."
        )
    watch = counters.DriverWatch(gpus, await counters.snapshot(gpus))
    for sign in watch.signs:
        run.progress(scan.line(sign))
    if watch.broken:
        return watch.beside(Verdict.inconclusive("NOT_MEASURED", "nothing was measured."))
    tool = run.settings.tool
    done = await run.command([tool, "-h"], timeout=PATIENCE, env=nccl.clean_environment(os.environ))
    usage = f"{done.stdout}\n{done.stderr}"
    error = nccl.classify(usage)
    if error is not None and error.code == "LIBRARY_MISSING":
        return Verdict(
            Outcome.MISCONFIGURED,
            "TOOL_BROKEN",
            f'{tool} of the image preflight-nccl-loopback does not start ("{error.line}"); build the image as its Dockerfile says.',
        )
    from .steps import measure  # loaded meanwhile; see CHECK

    return await measure(run, watch, writes_json="--output_file" in usage)


CHECK: Final = Check(
    name="nccl-loopback",
    condition="NCCLLoopbackTest",
    component="Node",
    settings=Settings,
    probe=probe,
    timeout=time_limits.NCCL_LOOPBACK,
    gpu_tests=None,  # which are clear depends on what was tested: its verdicts say it
    later=("check_nccl_loopback.steps",),
    tool_variables=("^NCCL_(?!LOOPBACK_|ALLREDUCE_)", "^(UCX|FI|OMPI)_"),
    about="NCCL bandwidth and correctness between this pod's GPUs, with nccl-tests.",
)


def main() -> NoReturn:
    """The program."""
    run_main(CHECK)
