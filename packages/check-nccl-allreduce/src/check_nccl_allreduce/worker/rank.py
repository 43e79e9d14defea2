"""One rank: torchrun forks it from the agent, which has torch loaded already. After the gang's
round it serves probes.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from . import measure, probes
from .process import AGENT, LINK, ParentPipe, end_with_parent

ORDER = "PREFLIGHT_WORKER_ORDER"


def main() -> None:
    """One rank of torchrun's: the gang's own round, and then probes."""
    end_with_parent(int(os.environ[AGENT]))
    rank, local, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    link = ParentPipe(os.environ[LINK])
    link.send(rank=rank, local=local, at=time.monotonic())
    order = measure.MeasureTask(**json.loads(os.environ[ORDER]))
    _attempt(link, lambda say: measure.measure(order, rank, local, world, say))
    _serve(link, local)


def probes_only(local: int) -> None:
    """A fresh worker in the place of one that hangs or has died."""
    end_with_parent(int(os.environ[AGENT]))
    rank = int(os.environ["FIRST_RANK"]) + local % int(os.environ["OWN_RANKS"])
    os.environ["RANK"] = str(rank)
    link = ParentPipe(os.environ[LINK])
    link.send(rank=rank, local=local)
    _serve(link, local)


def _serve(link: ParentPipe, local: int) -> None:
    """Probes, one after another, until the check ends this process."""
    prober = probes.Prober(local)
    while True:
        order = link.order()
        if "open" in order:
            _attempt(link, partial(_open, link, prober, order["open"]))
            continue
        probe = probes.ProbeTask(**order)
        if _attempt(link, partial(prober.run, probe)) and probe.detail:
            _refine(link, prober, probe)


def _open(
    link: ParentPipe, prober: probes.Prober, address: str, _say: Callable[[str, int], None]
) -> None:
    link.send(port=prober.open(address))


def _refine(link: ParentPipe, prober: probes.Prober, order: probes.ProbeTask) -> None:
    """Rails and directions. They are hints: the probe's result is reported, and whatever goes wrong
    here changes nothing of it.
    """
    try:
        link.send(detail=prober.refine(order))
    except Exception:
        traceback.print_exc()


def _attempt(
    link: ParentPipe, work: Callable[[Callable[[str, int], None]], measure.MeasuredTimes | None]
) -> bool:
    """Do it, and say what came of it; whether it went well."""
    try:
        done = work(
            lambda stage, iteration: link.send(
                stage=stage, iteration=iteration, at=time.monotonic()
            )
        )
        if done is not None:
            link.send(**asdict(done))
        return True
    except BaseException as error:
        traceback.print_exc()
        link.send(error=f"{type(error).__name__}: {error}"[-2000:])
        # Let what NCCL prints on its way reach the log before the process group goes.
        time.sleep(0.2)
        return False
