"""A worker's part in probes: a communicator of its own for each, over a store that one of its
workers holds.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch
import torch.distributed as dist

from .measure import MeasuredTimes, Task, device_of, reduce_all, timed

STORE_TIMEOUT: Final = datetime.timedelta(seconds=300)
SMALL: Final = 10
"""Small all-reduces of a pair, the fastest of which shows how many switches are between the two."""
TRIALS: Final = 2
"""Of a rail or a direction, which are hints; the better one counts, since chance only slows."""


@dataclass(frozen=True)
class ProbeTask(Task):
    """One probe: this worker's ``rank`` of ``world``, where the store is, and the prefix of its
    keys.

    ``init``: seconds for the communicator to come up. ``detail``: rails and directions are asked
    for afterwards.
    """

    rank: int
    world: int
    host: str
    port: int
    prefix: str
    init: float
    detail: bool = False


class Prober:
    """Keeps the store that it holds, and the last probe's communicator until the next."""

    def __init__(self, local_rank: int) -> None:
        self._local_rank = local_rank
        self._mine: dist.TCPStore | None = None
        self._met: dist.Store | None = None

    def open(self, address: str) -> int:
        """The port of this worker's store, which lives as long as the worker."""
        if self._mine is None:
            self._mine = dist.TCPStore(
                address,
                0,
                is_master=True,
                wait_for_workers=False,
                timeout=STORE_TIMEOUT,
                use_libuv=False,
            )
        return int(self._mine.port)

    def run(self, order: ProbeTask, say: Callable[[str, int], None]) -> MeasuredTimes:
        """Raises whatever torch raises."""
        # Everybody is done with the last one, or its workers would have been replaced.
        if dist.is_initialized():
            dist.destroy_process_group()
        # Read when a communicator is made: on two nodes trees and NVLS can exceed what the wire
        # carries.
        os.environ["NCCL_ALGO"] = "Ring"
        device = device_of(order.backend, self._local_rank)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        timeout = datetime.timedelta(seconds=order.init)
        store = self._mine
        if store is None or store.port != order.port or store.host != order.host:
            store = dist.TCPStore(
                order.host, order.port, is_master=False, timeout=timeout, use_libuv=False
            )
        store.set_timeout(timeout)
        self._met = dist.PrefixStore(order.prefix, store)
        done = reduce_all(order, self._met, order.rank, order.world, device=device, say=say)
        # Processes that share a processor wait for each other, not for switches.
        if device.type != "cuda":
            return done
        small, align = (torch.zeros(1, device=device) for _ in range(2))
        work = partial(dist.all_reduce, small)
        return replace(done, latency=min(timed(work, align, device) for _ in range(SMALL)))

    def refine(self, order: ProbeTask) -> tuple[float, float, float]:
        """After :meth:`run`, with this worker's counterpart on the other node: seconds of an
        all-reduce, and of a broadcast there and back.

        The first half of the ranks is one node, the second the other. Raises whatever torch raises.
        """
        assert self._met is not None
        half = order.world // 2
        device = device_of(order.backend, self._local_rank)
        if half > 1:
            # Until all are done with it: who leaves a communicator breaks it for the others.
            self._met.set(f"done/{order.rank}", "1")
            self._met.wait([f"done/{rank}" for rank in range(order.world)])
            dist.destroy_process_group()
            dist.init_process_group(
                order.backend,
                store=dist.PrefixStore(f"rail/{order.rank % half}", self._met),
                rank=order.rank // half,
                world_size=2,
                timeout=datetime.timedelta(seconds=order.init),
                **({"device_id": device} if device.type == "cuda" else {}),
            )
        data, align = torch.zeros(order.size // 4, device=device), torch.zeros(1, device=device)
        works = (
            partial(dist.all_reduce, data),
            partial(dist.broadcast, data, 0),
            partial(dist.broadcast, data, 1),
        )
        rail, there, back = (
            min(timed(work, align, device) for _ in range(TRIALS)) for work in works
        )
        return rail, there, back
