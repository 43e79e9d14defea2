"""One rank's part: one communicator, every iteration verified bit by bit, from an aligned start."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from .. import budget
from . import pattern

ROWS_AT_ONCE = 256
"""Rows of the period compared in one step: verifying takes about 80 MB."""
SAMPLES = 48
"""Residuals that a rank reports at most, and of one iteration: enough of them to find whose part of
the sum is wrong, in 2 kB.
"""
SAMPLES_AT_ONCE = 8
SAMPLE_ROWS = 32
"""Rows looked through in one step for them: their positions take 16 MB."""
SPARE = 1 << 30
"""Bytes of GPU memory that NCCL's buffers and the CUDA context may take besides the data."""


@dataclass(frozen=True)
class Task:
    """One communicator's work; ``timeout``: seconds of a collective.

    ``until``: the second of :func:`time.monotonic` at which it is given up, 0 for none. Where all
    iterations do not fit, there are fewer: what is merely slow is measured, and is no hang.
    """

    backend: str
    size: int
    iterations: int
    warmup: int
    timeout: float
    until: float = field(default=0.0, kw_only=True)


@dataclass(frozen=True)
class MeasureTask(Task):
    """The gang's own round; ``secret`` keeps others from guessing the rendezvous' keys."""

    master_addr: str
    master_port: int
    secret: str


@dataclass(frozen=True)
class MeasuredTimes:
    """``times``: seconds of each timed iteration; ``wrong``: elements that differ, in ``verified``
    iterations.

    ``latency``: seconds of the fastest of some small all-reduces, 0 where not measured.
    """

    times: list[float]
    verified: int
    wrong: int
    where: str
    latency: float = 0.0
    samples: list[tuple[int, int, float]] = field(default_factory=list)
    """Of a wrong sum: (iteration, element, residual), spread over its wrong elements; a residual of
    0 is not an exact number.
    """
    gpu: str = ""
    """Of a wrong sum: the UUID of the GPU that holds it."""


def measure(
    order: MeasureTask, rank: int, local_rank: int, world: int, say: Callable[[str, int], None]
) -> MeasuredTimes:
    """Raises as torch does; ``say`` gets (stage, iteration), also as the timed ones begin."""
    device = device_of(order.backend, local_rank)
    if device.type == "cuda":
        _check_memory(order.size, device)
    timeout = datetime.timedelta(seconds=order.timeout)
    # A client: libuv is the server's business, and a torch built without it refuses even to be
    # asked.
    store = dist.TCPStore(
        order.master_addr, order.master_port, is_master=False, timeout=timeout, use_libuv=False
    )
    return reduce_all(
        order, dist.PrefixStore(order.secret, store), rank, world, device=device, say=say
    )


def device_of(backend: str, local_rank: int) -> torch.device:
    """This worker's device, made the current one."""
    torch.set_num_threads(1)
    if backend != "nccl":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def reduce_all(
    task: Task,
    store: dist.Store,
    rank: int,
    world: int,
    *,
    device: torch.device,
    say: Callable[[str, int], None],
) -> MeasuredTimes:
    """One communicator over all in ``store``; as :func:`measure`, but stays open for peers."""
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
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    say("ready", 0)
    data = torch.empty(task.size // 4, dtype=torch.float32, device=device)
    tables = _Tables(world, device)
    times: list[float] = []
    wrong, where = 0, ""
    samples: list[tuple[int, int, float]] = []
    begun, took = time.monotonic(), 0.0
    for iteration in range(task.warmup + task.iterations):
        began = time.monotonic()
        _fill(data, tables.row(rank, iteration))
        if iteration == task.warmup:
            say("measuring", iteration)
        align.fill_(budget.is_last(began, begun, task.until or math.inf, took))
        seconds = timed(partial(dist.all_reduce, data), align, device)
        # How many say that it is late: all ranks read the same, and so end with the same iteration.
        # What is no such number was corrupted on its way, and ends nobody's.
        last = 1 <= align.item() <= world
        counts = iteration >= task.warmup or (last and iteration > 0)
        if counts:
            times.append(seconds)
        bad, first = _compare(data, tables.reduced(iteration))
        if bad and not wrong:
            where = f"rank {rank}, iteration {iteration}, element {first}"
        wrong += bad
        if bad and len(samples) < SAMPLES:
            samples += [
                (iteration, *residual) for residual in _residuals(data, tables.reduced(iteration))
            ]
        say("measuring", iteration + 1)
        took = max(took, time.monotonic() - began)
        if counts and last:
            break
    gpu = _uuid(device) if wrong else ""
    return MeasuredTimes(times, iteration + 1, wrong, where, samples=samples[:SAMPLES], gpu=gpu)


class _Tables:
    """The first elements of a rank's data, and of the sum of all ranks', on the device."""

    def __init__(self, world: int, device: torch.device) -> None:
        self._values = torch.tensor(pattern.values(world), dtype=torch.float32, device=device)
        self._sums = torch.tensor(pattern.sums(world), dtype=torch.float32, device=device)
        self._steps = torch.arange(pattern.M, device=device) * pattern.P

    def row(self, rank: int, iteration: int) -> torch.Tensor:
        return self._values[(self._steps + rank * pattern.Q + iteration) % pattern.M]

    def reduced(self, iteration: int) -> torch.Tensor:
        return self._sums[(self._steps + iteration) % pattern.M]


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


def _fill(data: torch.Tensor, period: torch.Tensor) -> None:
    """The row ``period`` again and again, to the end of ``data``."""
    whole = data.numel() // pattern.M
    data[: whole * pattern.M].view(whole, pattern.M).copy_(period.expand(whole, pattern.M))
    data[whole * pattern.M :].copy_(period[: data.numel() - whole * pattern.M])


def _compare(data: torch.Tensor, row: torch.Tensor) -> tuple[int, int]:
    """(elements whose bits differ from ``row`` repeated, index of the first or -1)."""
    wrong, first = 0, -1
    for offset, differs in _differences(data, row, ROWS_AT_ONCE):
        bad = int(differs.count_nonzero())
        if bad and first < 0:
            first = offset + int(differs.nonzero()[0])
        wrong += bad
    return wrong, first


def _differences(
    data: torch.Tensor, row: torch.Tensor, rows: int
) -> Iterator[tuple[int, torch.Tensor]]:
    """Where the bits of ``data`` differ from ``row`` repeated, in pieces of at most so many rows:
    (index of its first element, the piece).
    """
    expected, bits = row.view(torch.int32), data.view(torch.int32)
    step = rows * pattern.M
    for begin in range(0, bits.numel(), step):
        part = bits[begin : begin + step]
        whole = part.numel() // pattern.M
        yield begin, (part[: whole * pattern.M].view(whole, pattern.M) != expected).flatten()
        yield (
            begin + whole * pattern.M,
            part[whole * pattern.M :] != expected[: part.numel() - whole * pattern.M],
        )


def _residuals(data: torch.Tensor, row: torch.Tensor) -> list[tuple[int, float]]:
    """(element, what is there less what has to be) of some wrong elements, from the first to the
    last of them: the same ones on every rank.
    """
    places: list[int] = []
    for offset, differs in _differences(data, row, SAMPLE_ROWS):
        indices = differs.nonzero().flatten()
        places += [offset + place for place in indices[_spread(indices.numel())].tolist()]
    places = [places[i] for i in _spread(len(places))]
    held, right = data[places].tolist(), row[[place % pattern.M for place in places]].tolist()
    exact = 1 << 24  # beyond it, float32 has no longer every integer
    return [
        (place, got - due if math.isfinite(got) and abs(got) < exact else 0.0)
        for place, got, due in zip(places, held, right, strict=True)
    ]


def _spread(count: int) -> list[int]:
    """At most SAMPLES_AT_ONCE positions of so many, from the first to the last."""
    most = min(count, SAMPLES_AT_ONCE)
    return [i * (count - 1) // max(1, most - 1) for i in range(most)]


def _uuid(device: torch.device) -> str:
    """As the driver calls it; empty for a processor, and where this torch does not say."""
    known = (
        getattr(torch.cuda.get_device_properties(device), "uuid", None)
        if device.type == "cuda"
        else None
    )
    return f"GPU-{str(known).removeprefix('GPU-')}" if known is not None else ""
