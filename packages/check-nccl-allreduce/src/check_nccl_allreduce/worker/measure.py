"""One rank's part: one communicator, every iteration verified bit by bit, each timed from an aligned start."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from . import pattern

__all__ = ["Order", "Outcome", "Task", "device_of", "measure", "reduce_all", "timed"]

ROWS_AT_ONCE = 256
"""Rows of the period compared in one step: bounds the memory that verifying takes to about 80 MB."""
OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
SPARE = 1 << 30
"""Bytes of GPU memory that NCCL's buffers and the CUDA context may take besides the data."""


@dataclass(frozen=True)
class Task:
    """One communicator's work; ``timeout`` is in seconds and bounds each collective. ``op``: sum, max or min."""

    backend: str
    size: int
    iterations: int
    warmup: int
    timeout: float
    op: str


@dataclass(frozen=True)
class Order(Task):
    """The gang's own round; ``secret`` keeps strangers from guessing the rendezvous' keys."""

    master_addr: str
    master_port: int
    secret: str


@dataclass(frozen=True)
class Outcome:
    """``times``: seconds of each timed iteration; ``wrong``: elements that differ, in ``verified`` iterations."""

    times: list[float]
    verified: int
    wrong: int
    where: str


def measure(order: Order, rank: int, local_rank: int, world: int, say: Callable[[str, int], None]) -> Outcome:
    """Raises whatever torch raises; ``say`` gets (stage, iteration), also as the first timed iteration begins."""
    device = device_of(order.backend, local_rank)
    if device.type == "cuda":
        _check_memory(order.size, device)
    timeout = datetime.timedelta(seconds=order.timeout)
    # A client: libuv is the server's business, and a torch built without it refuses even to be asked.
    store = dist.TCPStore(order.master_addr, order.master_port, is_master=False, timeout=timeout, use_libuv=False)
    return reduce_all(order, dist.PrefixStore(order.secret, store), rank, world, device=device, say=say)


def device_of(backend: str, local_rank: int) -> torch.device:
    """This worker's device, made the current one."""
    torch.set_num_threads(1)
    if backend != "nccl":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def reduce_all(
    task: Task, store: dist.Store, rank: int, world: int, *, device: torch.device, say: Callable[[str, int], None]
) -> Outcome:
    """One communicator over all that meet in ``store``; as :func:`measure`. It stays open: a peer may not be done yet."""
    kwargs: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    dist.init_process_group(
        task.backend,
        store=store,
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=task.timeout),
        **kwargs,
    )
    say("connected", 0)
    align = torch.zeros(1, device=device)
    dist.all_reduce(align)
    _finish(device)
    say("ready", 0)
    data = torch.empty(task.size // 4, dtype=torch.float32, device=device)
    tables, op = _Tables(world, device, task.op), OPS[task.op]
    times: list[float] = []
    wrong, where = 0, ""
    for iteration in range(task.warmup + task.iterations):
        _fill(data, tables.row(rank, iteration))
        if iteration == task.warmup:
            say("measuring", iteration)
        seconds = timed(partial(dist.all_reduce, data, op=op), align, device)
        if iteration >= task.warmup:
            times.append(seconds)
        bad, first = _compare(data, tables.reduced(iteration))
        if bad and not wrong:
            where = f"rank {rank}, iteration {iteration}, element {first}"
        wrong += bad
        say("measuring", iteration + 1)
    return Outcome(times, task.warmup + task.iterations, wrong, where)


class _Tables:
    """:func:`.pattern.first_row` and :func:`.pattern.expected` on the device."""

    def __init__(self, world: int, device: torch.device, op: str = "sum") -> None:
        self._values = torch.tensor(pattern.values(world), dtype=torch.float32, device=device)
        self._reduced = torch.tensor(pattern.reduced(world, op), dtype=torch.float32, device=device)
        self._steps = torch.arange(pattern.M, device=device) * pattern.P

    def row(self, rank: int, iteration: int) -> torch.Tensor:
        return self._values[(self._steps + rank * pattern.Q + iteration) % pattern.M]

    def reduced(self, iteration: int) -> torch.Tensor:
        return self._reduced[(self._steps + iteration) % pattern.M]


def _check_memory(size: int, device: torch.device) -> None:
    free, total = torch.cuda.mem_get_info(device)
    if free < size + SPARE:
        raise RuntimeError(
            f"out of memory before the start: {free} of {total} bytes are free on {device}, {size + SPARE} are needed"
        )


def timed(work: Callable[[], object], align: torch.Tensor, device: torch.device) -> float:
    """Seconds of one collective; the small all-reduce before it lets all ranks start together."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.all_reduce(align)
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000
    dist.all_reduce(align)
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _fill(data: torch.Tensor, one: torch.Tensor) -> None:
    """The row ``one`` again and again, to the end of ``data``."""
    whole = data.numel() // pattern.M
    data[: whole * pattern.M].view(whole, pattern.M).copy_(one.expand(whole, pattern.M))
    data[whole * pattern.M :].copy_(one[: data.numel() - whole * pattern.M])


def _compare(data: torch.Tensor, row: torch.Tensor) -> tuple[int, int]:
    """(elements whose bits differ from ``row`` repeated, index of the first or -1)."""
    one = row.view(torch.int32)
    bits = data.view(torch.int32)
    step = ROWS_AT_ONCE * pattern.M
    wrong, first = 0, -1
    for begin in range(0, bits.numel(), step):
        part = bits[begin : begin + step]
        whole = part.numel() // pattern.M
        pieces = [
            (begin, part[: whole * pattern.M].view(whole, pattern.M) != one),
            (begin + whole * pattern.M, part[whole * pattern.M :] != one[: part.numel() - whole * pattern.M]),
        ]
        for offset, differs in pieces:
            bad = int(differs.count_nonzero())
            if bad and first < 0:
                first = offset + int(differs.flatten().nonzero()[0])
            wrong += bad
    return wrong, first
