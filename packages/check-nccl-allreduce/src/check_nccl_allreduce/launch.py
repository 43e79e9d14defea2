"""torchrun as a child: loaded while the gang is awaited, started once, watched over a socket, ended
without a trace.

torchrun itself says too little and too late: its agents hold on to each other at the end for
minutes, and exit 1 for everything. So the workers speak to this process over a unix socket of their
own, and their word alone counts. They hold their connections open until they are ended: none falls
over a peer that was done first.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import Listener, Process, SocketStream, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream
from preflight_proto.roster import Roster

from . import failures, sysfs
from .control.messages import (
    Detail,
    Failure,
    LaunchOrder,
    Opened,
    ProbeOrder,
    RankReport,
    RankStage,
    Residuals,
)

AGENT: Final = "check_nccl_allreduce.worker.agent"
MAX_LINE: Final = 1024 * 1024
_ENDED: Final = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
SILENT_AFTER: Final = 5.0
"""Seconds without a worker's sign of life, which comes each second."""
LAST_WORDS: Final = 2.0
"""Seconds between one worker's failure and the end of listening to the others of this pod."""
DETAIL_WITHIN: Final = 8.0
"""Seconds to wait for rails and directions once a probe is done, and the share of the probe's time
that they may take.
"""
DETAIL_SHARE: Final = 0.25
DEATH_WITHIN: Final = 10.0
"""Seconds to wait for killed processes where nobody says how long there is time."""
DEATH_SHARE: Final = 0.25
"""Of a second launch's time, what the first one's processes may take to go: eight contexts are torn
down under one lock of the driver.
"""


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
        """Tell whether a store's port, or why there is none, is known."""
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
    behind = min((worker.stage for worker in workers), key=lambda stage: stage.how_far)
    limit = now - SILENT_AFTER
    silent = any(worker.heard < limit and worker.done is None for worker in workers)
    return RankStage(behind.name, behind.iteration, silent)


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


class LaunchAgent:
    """One process with torch loaded: :meth:`load` it ahead of time, :meth:`end` it with all that it
    has started.

    In between it forks torchrun with each :meth:`run`, and then, with each :meth:`fork`, fresh
    workers for probes in the place of whatever it has forked. Torchrun's workers serve :meth:`open`
    and :meth:`probe` as well. ``group`` holds its watchers.
    """

    def __init__(self, environ: Mapping[str, str], group: TaskGroup) -> None:
        self._environ, self._group = environ, group
        self._home = Path(tempfile.mkdtemp(prefix="preflight-"))
        self._workers: dict[int, Worker] = {}
        self._output = failures.Output()
        self._process: Process | None = None
        self._news = anyio.Event()
        self._over = False
        self._forks = False
        self._launches = 0
        self._ordered = 0.0
        self._warmup = 0
        self._stuck = False
        self._oom_kills = 0
        self.asleep = False
        """Whether a killed worker sleeps in the kernel, where no signal ends it."""
        self.loaded = anyio.Event()

    async def load(self) -> None:
        """Start the process, which imports torch and waits for its arguments."""
        path = self._home / "link"
        listener = await anyio.create_unix_listener(path, mode=0o600)
        self._group.start_soon(self._serve, listener)
        self._process = await anyio.open_process(
            [sys.executable, "-m", AGENT],
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            env={**self._environ, "TMPDIR": str(self._home), "PREFLIGHT_WORKER_LINK": str(path)},
            start_new_session=True,
        )
        self._group.start_soon(self._watch, self._process)

    async def end(self) -> None:
        """Kill torchrun's session, the workers with it, and see them go."""
        with anyio.CancelScope(shield=True):
            if self._process is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            with anyio.move_on_after(DEATH_WITHIN):
                if self._process is not None:
                    await self._process.wait()
                while not all(worker.gone for worker in self._workers.values()):
                    await self._news.wait()
            if self._process is not None and self._process.returncode is not None:
                await self._process.aclose()  # which would wait for one that sits in the kernel
            shutil.rmtree(self._home, ignore_errors=True)

    async def run(
        self,
        start: LaunchOrder,
        roster: Roster,
        address: str,
        count: int,
        changed: Callable[[RankStage], None],
        *,
        variables: Mapping[str, str | None],
    ) -> RankReport:
        """Run ``count`` workers here as this roster's rank, with these ``variables`` too (None:
        unset), which fresh ones get as well.

        Returns when all have spoken, or one has failed.
        """
        secret = _secret(roster, start.round)
        order = _task(start) | {
            "master_addr": roster.master_addr,
            "master_port": start.master_port,
            "secret": secret,
        }
        argv = [
            f"--nnodes={roster.nnodes}",
            f"--nproc-per-node={count}",
            f"--node-rank={roster.rank}",
            f"--master-addr={roster.master_addr}",
            f"--master-port={start.master_port}",
            f"--local-addr={address}",
            f"--rdzv-id={secret}",
            f"--rdzv-conf=timeout={max(1, int(start.timeout))}",
            "--max-restarts=0",
        ]
        self._workers.clear()
        self._output, self._oom_kills = failures.Output(), sysfs.oom_kills()
        self._launches, self._forks, self._over = self._launches + 1, False, self.ended
        self._ordered, self._warmup = anyio.current_time(), start.warmup
        env = {
            **variables,
            "PREFLIGHT_WORKER_ORDER": msgspec.json.encode(order).decode(),
            "OMP_NUM_THREADS": "1",
        }
        within = max(DEATH_WITHIN, DEATH_SHARE * start.timeout)
        await self._send_to_agent(
            {"argv": argv, "launch": self._launches, "within": within, "env": env}
        )
        result = await self._outcome(start.round, count, changed)
        if not result.wrong:
            return result
        return msgspec.structs.replace(result, residuals=residuals(list(self._workers.values())))

    @property
    def ended(self) -> bool:
        """Whether the process that holds torch is gone, and no launch can come of it any more."""
        return self._process is None or self._process.returncode is not None

    @property
    def began(self) -> tuple[float, float] | None:
        """When the last launch's slowest worker began its first timed iteration (seconds of
        :func:`anyio.current_time`), and for how long torchrun had been starting ranks before; None
        where that was not yet.
        """
        times = [worker.timed for worker in self._workers.values() if worker.timed is not None]
        if not times or len(times) < len(self._workers):
            return None
        return max(times), max(each.entered for each in self._workers.values()) - self._ordered

    async def fork(
        self,
        count: int,
        first_rank: int,
        ranks: int,
        variables: Mapping[str, str | None],
        within: float = 0.0,
    ) -> None:
        """Have ``count`` fresh workers for probes, with these ``variables`` too (None: unset); the
        earlier ones are killed.

        Those have ``within`` seconds to go, or :data:`DEATH_WITHIN`. The new ones stand for this
        member's ``ranks`` of the gang, from ``first_rank`` on where torchrun has not said.
        """
        firsts = (worker.rank - worker.local % ranks for worker in self._workers.values())
        first_rank = next(firsts, first_rank)
        self._workers.clear()
        self._forks, self._oom_kills = True, sysfs.oom_kills()
        self._output = failures.Output()  # what earlier ones have said explains nothing of these
        env = {
            **variables,
            "FIRST_RANK": str(first_rank),
            "OWN_RANKS": str(ranks),
            "OMP_NUM_THREADS": "1",
        }
        self._over = self.ended
        await self._send_to_agent({"fork": count, "env": env, "within": within or DEATH_WITHIN})
        while len(self._workers) < count and not self._over and not self._stuck:
            await self._news.wait()

    async def open(self, number: int, address: str, *, store: bool = True) -> Opened:
        """A store in the first worker here, for the others of a probe to meet in; without
        ``store``, that there are workers.
        """
        if self._stuck:
            return Opened(number, trouble=failures.stuck(asleep=self.asleep))
        worker = self._workers.get(0)
        if worker is None:
            return Opened(number, trouble=self._died("the worker"))
        if not store:
            return Opened(number, address=address)
        if worker.port is None:
            worker.order()
            await self._send_to_worker(worker, {"open": address})
            while not worker.answered():
                await self._news.wait()
        if worker.port is None:
            error = worker.done.error if worker.done is not None else None
            trouble = Failure("died", "RANK_DIED", error) if error else self._died("the worker")
            return Opened(number, trouble=trouble)
        return Opened(number, worker.port, address)

    async def probe(
        self, probe: ProbeOrder, roster: Roster, count: int, changed: Callable[[RankStage], None]
    ) -> RankReport:
        """One probe on the workers that are here."""
        if self._stuck:
            return RankReport(probe.round, trouble=failures.stuck(asleep=self.asleep))
        begun = anyio.current_time()
        for worker in list(self._workers.values()):
            worker.order()
            order = _task(probe) | {
                "rank": probe.base + worker.local,
                "world": probe.world,
                "host": probe.host,
                "port": probe.port,
                "prefix": f"{_secret(roster, probe.round)}/{probe.index}",
                "init": probe.init,
                "detail": probe.detail,
            }
            await self._send_to_worker(worker, order)
        if len(self._workers) < count:
            return RankReport(probe.round, trouble=self._died("a worker"))
        result = await self._outcome(probe.round, count, changed)
        if probe.detail and result.trouble is None:
            patience = min(DETAIL_SHARE * probe.timeout, DETAIL_WITHIN)
            last = min(anyio.current_time() + patience, begun + (1 - DETAIL_SHARE) * probe.timeout)
            result = msgspec.structs.replace(result, detail=await self._detail(count, last))
        return result

    async def _detail(self, count: int, last: float) -> Detail | None:
        """Rails and directions, unless they take too long: the result does not wait for hints."""
        workers = [worker for _, worker in sorted(self._workers.items())]
        with anyio.CancelScope(deadline=last):
            while any(worker.detail is None and not worker.gone for worker in workers):
                await self._news.wait()
        parts = [worker.detail for worker in workers if worker.detail is not None]
        if len(parts) < count:
            return None
        rails = tuple(rail for rail, _, _ in parts) if count > 1 else ()
        return Detail(rails, max(there for _, there, _ in parts), max(back for _, _, back in parts))

    async def _outcome(
        self, number: int, count: int, changed: Callable[[RankStage], None]
    ) -> RankReport:
        """When all workers have spoken, or one has failed."""
        last = None
        failed_at: float | None = None
        while True:
            if self._stuck:
                return RankReport(number, trouble=failures.stuck(asleep=self.asleep))
            workers = list(self._workers.values())
            lines = [worker.done for worker in workers if worker.done is not None]
            failed = any(line.error is not None for line in lines)
            if len(workers) == count and (now := slowest(workers, anyio.current_time())) != last:
                last = now
                changed(now)
            if len(lines) == count and not failed:
                results = numbers(number, lines)
                return msgspec.structs.replace(results, networks=self._output.networks)
            if failed or self._over or any(worker.gone for worker in workers):
                failed_at = failed_at or anyio.current_time()
                ended = sum(worker.gone or worker.done is not None for worker in workers)
                late = anyio.current_time() > failed_at + LAST_WORDS
                if ended == count or self._over or late:
                    await anyio.sleep(0.2)  # the last of its output
                    return self._failure(number)
            with anyio.move_on_after(0.5):
                await self._news.wait()

    @property
    def output(self) -> str:
        """The last of what torchrun and its workers printed, without what NCCL narrates."""
        return self._output.text

    def _failure(self, number: int) -> RankReport:
        workers = sorted(self._workers.values(), key=lambda worker: worker.local)
        least = RankStage("ready").how_far
        early = not workers or any(worker.stage.how_far < least for worker in workers)
        for worker in workers:
            if worker.gone and worker.done is None:
                return RankReport(number, trouble=self._died(f"rank {worker.rank}'s process"))
        errors = (worker.done.error for worker in workers if worker.done is not None)
        error = next((error for error in errors if error), "")
        trouble = failures.by_output(error, self.output, before_ready=early)
        return RankReport(number, trouble=trouble)

    def _died(self, who: str) -> Failure:
        return failures.died(who, self.output, of_memory=sysfs.oom_kills() > self._oom_kills)

    # --- watching

    async def _serve(self, listener: Listener[SocketStream]) -> None:
        async with listener:
            await listener.serve(self._listen)

    async def _watch(self, process: Process) -> None:
        assert process.stdout is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for chunk in process.stdout:
                self._output.feed(chunk)
        await process.wait()
        self._over = True
        self._wake()

    async def _send_to_agent(self, what: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(*_ENDED, OSError):  # _watch knows
            await self._process.stdin.send(msgspec.json.encode(what) + b"\n")

    async def _send_to_worker(self, worker: Worker, what: dict[str, Any]) -> None:
        with suppress(*_ENDED, OSError):  # _listen knows
            await worker.stream.send(msgspec.json.encode(what) + b"\n")

    async def _listen(self, stream: SocketStream) -> None:
        """One worker, from its first line to its end."""
        reader = BufferedByteReceiveStream(stream)
        worker: Worker | None = None
        unread = (anyio.IncompleteRead, anyio.DelimiterNotFound, msgspec.DecodeError)
        async with stream:
            with suppress(*_ENDED, *unread):
                while True:
                    data = await reader.receive_until(b"\n", MAX_LINE)
                    line = msgspec.json.decode(data, type=WorkerLine)
                    worker = self._take(worker, line, stream)
                    if not line.beat:
                        self._wake()
        if worker is not None:
            worker.gone = True
            self._wake()

    def _take(self, worker: Worker | None, line: WorkerLine, stream: SocketStream) -> Worker | None:
        if worker is None:
            self._over = self._over or (line.over == self._launches and not self._forks)
            self._stuck, self.asleep = self._stuck or line.stuck, self.asleep or line.asleep
            if line.loaded:
                self.loaded.set()
            if line.rank is None or line.local is None:
                return None
            worker = self._workers[line.local] = Worker(
                line.rank, line.local, stream, anyio.current_time()
            )
            worker.entered = line.at or 0.0
        worker.hear(line, anyio.current_time(), warmup=None if self._forks else self._warmup)
        return worker

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()


def _task(order: LaunchOrder | ProbeOrder) -> dict[str, Any]:
    """The measurement that an order asks of a worker. ``until``: when the leader gives it up, on
    the clock that workers share (``time.monotonic``, by which this event loop goes); 0 for never.
    """
    until = anyio.current_time() + order.within if order.within else 0.0
    same = ("backend", "size", "iterations", "warmup", "timeout")
    return {"until": until, **{name: getattr(order, name) for name in same}}


def _secret(roster: Roster, number: int) -> str:
    """Names the rendezvous' keys, so that nobody else on its open port can guess one."""
    assert roster.token is not None
    what = f"rendezvous {roster.generation} {number}".encode()
    return hmac.digest(roster.token.encode(), what, hashlib.sha256).hex()[:32]
