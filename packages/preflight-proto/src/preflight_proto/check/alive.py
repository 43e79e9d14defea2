"""Whether the driver answers for each GPU: one question, asked for all of them at the same time, as
one that hangs may hold up the others.

Only for GPUs of which something else says already that they hang: a driver that is busy answers
late, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import anyio

from .. import nvml
from .gpus import Gpu, silence

_BESIDES: Final = 5.0
"""Seconds more than those that a GPU has, for a process to start and to end."""


async def silent(gpus: Sequence[Gpu], within: float) -> dict[str, str]:
    """Those of ``gpus`` for which NVML gives no answer in ``within`` seconds, or calls them lost or
    unknown: UUID → words. All, where an earlier question still hangs in the driver.

    Empty where there is no NVML to ask: that is a matter of the environment, and says nothing about
    a GPU.
    """
    ask: Callable[[], dict[str, str]] = partial(
        nvml.ask,
        _silent,
        tuple(gpus),
        within,
        patience=within + _BESIDES,
        otherwise=lambda why: {gpu.uuid: why for gpu in gpus if why == nvml.STUCK},
        silence=within + _BESIDES,
    )
    return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)


def _silent(gpus: Sequence[Gpu], within: float) -> dict[str, str]:
    answers: dict[str, str] = {}
    # Threads of their own: one that never comes back must hold up neither the others nor the
    # process's end.
    for gpu in gpus:
        threading.Thread(target=_ask, args=(gpu, answers), daemon=True).start()
    give_up = time.monotonic() + within
    while len(answers) < len(gpus) and time.monotonic() < give_up:
        time.sleep(0.02)
    late = f"no answer within {within:g} s"
    faults = {gpu.uuid: answers.get(gpu.uuid, late) for gpu in gpus}
    return {uuid: words for uuid, words in faults.items() if words}


def _ask(gpu: Gpu, answers: dict[str, str]) -> None:
    """Add the words of one GPU to ``answers``: none where it answers, or nobody can say."""
    words = ""
    with nvml.started() as there:
        if there and (error := silence(gpu)) is not None:
            import pynvml

            lost = isinstance(error, pynvml.NVMLError_GpuIsLost | pynvml.NVMLError_Unknown)
            words = str(error) if lost else ""
        answers[gpu.uuid] = words
