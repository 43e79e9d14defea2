"""One rank: torchrun forks it from the agent, which has torch loaded already."""

from __future__ import annotations

import json
import os
import time
import traceback

from . import measure
from .process import AGENT, LINK, Link, end_with_parent

__all__ = ["main"]

ORDER = "PREFLIGHT_WORKER_ORDER"


def main() -> None:
    end_with_parent(int(os.environ[AGENT]))
    rank, local, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    link = Link(os.environ[LINK])
    link.say(rank=rank, local=local)
    try:
        order = measure.Order(**json.loads(os.environ[ORDER]))
        done = measure.measure(
            order, rank, local, world, lambda stage, iteration: link.say(stage=stage, iteration=iteration)
        )
        link.say(times=done.times, verified=done.verified, wrong=done.wrong, where=done.where)
    except BaseException as error:
        traceback.print_exc()
        link.say(error=f"{type(error).__name__}: {error}"[-2000:])
        time.sleep(0.2)  # let what NCCL prints on its way reach the log before the process group goes
    link.stay()
