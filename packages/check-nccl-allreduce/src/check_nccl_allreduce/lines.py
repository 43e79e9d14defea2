"""What the workers of this pod say, line by line, and how far that shows them to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from anyio.abc import SocketStream

from .control.messages import STAGES, RankReport, RankStage, Residuals

SILENT_AFTER: Final = 5.0
"""Seconds without a worker's sign of life, which comes each second."""


class WorkerLine(msgspec.Struct, frozen=True):
    """What a worker says: which one it is, then stages, then its numbers or its error."""

    rank: int | None = None
    local: int | None = None
    stage: str | None = None
    iteration: int = 0
    times: list[float] | None = None
    latency: float = 0.0
    detail: tuple[float, float, float] | None = None
    verified: int = 0
    wrong: int = 0
    where: str = ""
    samples: tuple[tuple[int, int, float], ...] = ()
    gpu: str = ""
    error: str | None = None
    port: int | None = None
    at: float | None = None
    """When, on the clock that all processes of this machine share (CLOCK_MONOTONIC, seconds)."""
    beat: bool = False
    loaded: bool = False
    stuck: bool = False
    """Killed workers are not gone after their time; ``asleep``: one of their threads is in a sleep
    that no signal ends.
    """
    asleep: bool = False
    over: int = 0


@dataclass
class Worker:
    """One worker, as far as it has reported. In seconds, ``heard`` and, of its launch, ``entered``
    (torchrun has started it) and ``timed`` (its first timed iteration began).
    """

    rank: int
    local: int
    stream: SocketStream
    heard: float
    stage: RankStage = field(default_factory=lambda: RankStage("launched"))
    done: WorkerLine | None = None
    detail: tuple[float, float, float] | None = None
    port: int | None = None
    gone: bool = False
    entered: float = 0.0
    timed: float | None = None

    def order(self) -> None:
        """Forget what it said: it is about to be given something new to do."""
        self.stage, self.done, self.detail = RankStage("launched"), None, None

    def answered(self) -> bool:
        """Whether a store's port, or why there is none, is known."""
        return self.port is not None or self.gone or self.done is not None

    def hear(self, line: WorkerLine, now: float, *, warmup: int | None) -> None:
        """Take what it says. ``warmup``: iterations that are not timed; None: this is no launch."""
        self.heard = now
        if line.port is not None:
            self.port = line.port
        elif line.detail is not None:
            self.detail = line.detail
        elif line.stage is not None:
            self.stage = RankStage(line.stage, line.iteration)
            if line.stage == "measuring" and line.iteration == warmup:
                # Twice: by the last warm-up as it ended, and then as the clock starts.
                self.timed = line.at
        elif line.times is not None or line.error is not None:
            self.done = line
            if line.error is None:
                self.stage = RankStage("done")


def slowest(workers: Sequence[Worker], now: float) -> RankStage:
    """How far the slowest of these is, and whether one of them has fallen silent."""
    behind = min((worker.stage for worker in workers), key=order_of)
    limit = now - SILENT_AFTER
    silent = any(worker.heard < limit and worker.done is None for worker in workers)
    return RankStage(behind.name, behind.iteration, silent)


def order_of(stage: RankStage) -> tuple[int, int]:
    """Later stages are larger."""
    return STAGES.index(stage.name), stage.iteration


def residuals(workers: Sequence[Worker]) -> tuple[Residuals, ...]:
    """What these workers' wrong sums differ by, once for each different sum."""
    same: dict[tuple[tuple[int, int, float], ...], list[tuple[int, str]]] = {}
    for worker in sorted(workers, key=lambda entry: entry.rank):
        if worker.done is not None and worker.done.samples:
            same.setdefault(worker.done.samples, []).append((worker.rank, worker.done.gpu))
    return tuple(
        Residuals(tuple(rank for rank, _ in those), tuple(gpu for _, gpu in those), samples)
        for samples, those in same.items()
    )


def numbers(number: int, lines: Sequence[WorkerLine]) -> RankReport:
    """One report of all workers' last lines: of each iteration the slowest one's time."""
    times = tuple(max(each) for each in zip(*(line.times or [] for line in lines), strict=True))
    wrong = sum(line.wrong for line in lines)
    where = next((line.where for line in lines if line.wrong), "")
    latency = max(line.latency for line in lines)
    return RankReport(
        number, times, min(line.verified for line in lines), wrong, where, latency=latency
    )
