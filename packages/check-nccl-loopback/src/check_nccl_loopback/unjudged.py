"""The ends of a run that say nothing about the GPUs, in words: what is in the way, and what to do
about it.
"""

from __future__ import annotations

from collections.abc import Mapping

from preflight_proto.check import Verdict
from preflight_proto.check.nccl import NcclError
from preflight_proto.check.settings import size_text

from .measurement import Measurement

_SIGNALS = {7: "; is /dev/shm large enough?", 9: "; did it meet the container's memory limit?"}


def environment(error: NcclError, shm: str) -> Verdict:
    """The container or the node's software lacks something; it says nothing about the GPUs."""
    room = f" ({shm})" if error.code == "SHM_FULL" and shm else ""
    return Verdict.inconclusive(error.code, f'{error.says}{room} ("{error.line}"); {error.fix}.')


def held(error: NcclError, processes: Mapping[str, int]) -> Verdict:
    """NCCL failed while somebody else's processes hold GPUs of this pod."""
    return Verdict.inconclusive(
        "GPU_OCCUPIED", f'{error.says} ("{error.line}"), and {_occupied(processes)}.'
    )


def busy(processes: Mapping[str, int], verdict: Verdict) -> Verdict:
    """A GPU is slow, or hangs, perhaps for somebody else's work on it."""
    return Verdict.inconclusive(
        "GPU_OCCUPIED",
        f"{_occupied(processes)}, so nobody is blamed for {verdict.code}. What was found: {verdict.reason}",
    )


def _occupied(processes: Mapping[str, int]) -> str:
    who = ", ".join(f"{uuid} ({number} process(es))" for uuid, number in sorted(processes.items()))
    return f"somebody else's processes are on {who}; wait for them to end, or find them on the node (nvidia-smi)"


def stuck(result: Measurement) -> Verdict:
    """It sleeps in the kernel, and the driver answers for each GPU: many contexts take long to be
    torn down, and a disk may be what it waits for.
    """
    return Verdict.inconclusive(
        "TOOL_STUCK",
        f'all_reduce_perf stays in the kernel (state D) after SIGKILL, although the driver answers for each GPU ("{result.last_words}"); '
        "see the node's dmesg.",
    )


def contradictory(result: Measurement) -> Verdict:
    """What the tool printed cannot be true."""
    return Verdict.inconclusive(
        "CONTRADICTORY_OUTPUT",
        f"all_reduce_perf {result.version} contradicts itself ({result.contradiction}); is it a patched build?",
    )


def memory(result: Measurement) -> Verdict:
    """Even the smallest size does not fit."""
    return Verdict.inconclusive(
        "GPU_MEMORY",
        f"the GPUs' memory does not suffice for {size_text(result.size)}; find what else holds memory on them (nvidia-smi).",
    )


def refused(error: NcclError) -> Verdict:
    """NCCL was asked for something it refuses, or gave up waiting."""
    return Verdict.inconclusive(
        error.code, f'{error.says} ("{error.line}"); no verdict about the GPUs.'
    )


def not_verified(result: Measurement) -> Verdict:
    """A bandwidth without correctness is not a pass."""
    return Verdict.inconclusive(
        "NOT_VERIFIED",
        f'all_reduce_perf {result.version} compared no element ("{result.last_words}"); is it a patched build?',
    )


def throttled(part: float, verdict: Verdict) -> Verdict:
    """NCCL polls: without its CPUs it is slow, or seems to hang, on the healthiest node."""
    return Verdict.inconclusive(
        "CPU_THROTTLED",
        f"the container had used up its CPU limit in {part:.0%} of the time, so nobody is blamed for {verdict.code}; give the pod more CPU. "
        f"What was found: {verdict.reason}",
    )


def unexplained(result: Measurement, shm: str) -> Verdict:
    """It ended without a result and without a reason."""
    if result.status < 0 or result.status > 128:
        signal = -result.status if result.status < 0 else result.status - 128
        hint = _SIGNALS.get(signal, "")
        return Verdict.inconclusive(
            "TOOL_KILLED",
            f'all_reduce_perf was ended by signal {signal} ("{result.last_words}", {shm}){hint or "."}',
        )
    return Verdict.inconclusive(
        "NO_RESULT",
        f'all_reduce_perf exited {result.status} without a row for {size_text(result.size)} ("{result.last_words}"); see the lines above.',
    )
