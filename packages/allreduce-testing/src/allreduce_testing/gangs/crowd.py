"""A gang of thousands on one core: `python -m allreduce_testing.gangs.crowd --members 4096 --json
FILE`. The leader, its decisions, every member and TCP are real; what workers do is made up.

The leader has a process of its own and all members another one, both pinned to the same core of
this machine, and whatever else runs there. One member is slow, so that all rounds of localisation
are played.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import anyio
from check_nccl_allreduce import check
from check_nccl_allreduce.control.hub import allow_files
from check_nccl_allreduce.control.leader import Leader
from check_nccl_allreduce.control.member import MemberSession
from check_nccl_allreduce.control.messages import (
    Hello,
    LaunchOrder,
    Opened,
    Order,
    ProbeOrder,
    RankReport,
    RankStage,
    StoreOrder,
    VerdictMessage,
)
from check_nccl_allreduce.settings import Settings
from preflight_proto.check import Inconclusive
from preflight_proto.check.settings import read
from preflight_proto.roster import Roster
from preflight_testing.cores import started

MODULE = "allreduce_testing.gangs.crowd"
NORMAL, SICK, FLOOR = 1.0, 0.5, 0.8
"""GB/s of a healthy path, of the slow member's, and of what a gang must have."""
NOISE = 0.01
LAUNCH, PROBE = 2.0, 1.0
"""Seconds that made-up workers take."""
LOOK = 0.02
"""Seconds between two looks at how late the leader's loop is."""
FILES = 64
"""Open files of a process with all members, besides each one's connection."""


def address(rank: int) -> str:
    """A member's own address on loopback."""
    return f"127.{1 + rank // 62500}.{rank // 250 % 250}.{1 + rank % 250}"


def roster(rank: int, members: int, port: int) -> Roster:
    """What the controller would answer this member; the leader listens on ``port``."""
    return Roster(
        v=1,
        pod_uid=f"uid-{rank}",
        generation=1,
        epoch=1,
        answer="sealed",
        rank=rank,
        nnodes=members,
        master_addr=address(0),
        master_port=port - 1,
        control_port=port,
        token="the-gangs-own-token",
    )


def usage() -> dict[str, float]:
    """Seconds of CPU and MB of memory of this process, so far."""
    rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "memory_mb": round(int(rows["VmHWM"].split()[0]) * 1024 / 1e6, 1),
    }


async def lead(members: int, port: int, allowed: float | None, patience: float) -> dict[str, Any]:
    """The leader's process; what it used, and whom it lost."""
    lag, lost, rounds = 0.0, set[int](), 0

    async def watch() -> None:
        nonlocal lag
        while True:
            before = time.monotonic()
            await anyio.sleep(LOOK)
            lag = max(lag, time.monotonic() - before - LOOK)

    real_gone, real_pause = Leader.gone, Leader._pause

    def gone(self: Leader, rank: int, why: str) -> None:
        if rank not in self._acks:
            lost.add(rank)
        real_gone(self, rank, why)

    async def pause(self: Leader, this: Any) -> None:
        nonlocal rounds
        rounds += 1
        await real_pause(self, this)

    vars_of: Any = Leader
    vars_of.gone, vars_of._pause = gone, pause
    settings = read(
        Settings, {"NCCL_ALLREDUCE_BACKEND": "gloo", "NCCL_ALLREDUCE_THRESHOLD_GBPS": str(FLOOR)}
    )
    run: Any = SimpleNamespace(
        settings=settings,
        gang=SimpleNamespace(settings=SimpleNamespace(pod_ip=address(0))),
        progress=lambda text: None,
    )
    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        await check._lead(run, roster(0, members, port), patience, allowed)
        group.cancel_scope.cancel()
    return {
        **usage(),
        "largest_lag_seconds": round(lag, 3),
        "rounds_of_probes": rounds,
        "lost": len(lost),
    }


class Workers:
    """One member's, made up. ``sick``: the rank whose node is slow."""

    def __init__(self, rank: int, members: int, sick: int) -> None:
        self._rank, self._members, self._sick = rank, members, sick

    async def execute(self, order: Order, tell: Callable[[RankStage], None]) -> RankReport | Opened:
        """What a member's workers would report of ``order``; what they measure is made up."""
        if isinstance(order, StoreOrder):
            return Opened(order.round, 1, address(self._rank))
        tell(RankStage("connected"))
        tell(RankStage("ready"))
        steps = order.iterations + order.warmup
        for iteration in range(steps):
            tell(RankStage("measuring", iteration))
            await anyio.sleep((LAUNCH if isinstance(order, LaunchOrder) else PROBE) / steps)
        # Of a probe the slow member is the other end: it leads, or what it says counts as well.
        host = order.host if isinstance(order, ProbeOrder) else ""
        slow = not host or self._sick == self._rank or host == address(self._sick)
        chance = Random(f"{order.round} {host}")
        speed = (SICK if slow else NORMAL) * math.exp(chance.gauss(0, NOISE))
        moved = order.size * 2 * (order.world - 1) / order.world
        return RankReport(order.round, (moved / speed / 1e9,) * order.iterations, steps)


async def follow(members: int, port: int, sick: int, patience: float) -> dict[str, Any]:
    """All members' process; how many ended how."""
    ended: dict[str, int] = {}
    blamed: dict[int, str] = {}
    named: set[int] = set()

    async def one(rank: int) -> None:
        hello = Hello(rank=rank, pod=f"pod-{rank}", node=f"node-{rank}", backend="gloo", workers=1)
        member = MemberSession(roster(rank, members, port), hello, address(rank), lambda text: None)
        verdict: VerdictMessage | Inconclusive
        try:
            verdict = await member.take_part(patience, Workers(rank, members, sick).execute)
        except Inconclusive as error:
            verdict = error
        ended[verdict.code] = ended.get(verdict.code, 0) + 1
        if isinstance(verdict, VerdictMessage):
            blamed.update(verdict.blamed)
            named.update(verdict.named)

    async with anyio.create_task_group() as group:
        for rank in range(members):
            group.start_soon(one, rank)
    return {**usage(), "ended": ended, "blamed": sorted(blamed), "named": sorted(named)}


def play(
    members: int,
    *,
    core: int | None,
    sick: int,
    allowed: float | None = None,
    patience: float = 600.0,
) -> dict[str, Any]:
    """One gang; its figures. ``core``: for both processes, None for any. ``sick``: the slow
    member's rank. ``allowed``: CHECK_TIMEOUT, None for its default.
    """
    from preflight_testing.apiserver import free_port

    load, began, port = os.getloadavg()[0], time.monotonic(), free_port()
    options = [
        f"--members={members}",
        f"--port={port}",
        f"--sick={sick}",
        *([f"--allowed={allowed}"] if allowed else []),
    ]
    parts = {}
    for part in ("lead", "follow"):
        parts[part] = started(
            [sys.executable, "-m", MODULE, f"--part={part}", f"--patience={patience}", *options],
            core,
            stdout=subprocess.PIPE,
            text=True,
        )
    outputs = {part: process.communicate()[0] for part, process in parts.items()}
    if any(process.returncode for process in parts.values()):
        raise RuntimeError(
            f"a part ended with {[process.returncode for process in parts.values()]}: {outputs}"
        )
    leader, crowd = json.loads(outputs["lead"]), json.loads(outputs["follow"])
    return {
        "members": members,
        "load_before": round(load, 1),
        "wall_seconds": round(time.monotonic() - began, 1),
        "sick": sick,
        "leader": leader,
        "crowd": crowd,
    }


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=4096, help="of the gang (%(default)s)")
    parser.add_argument(
        "--allowed",
        type=float,
        help="CHECK_TIMEOUT in seconds; what a gang of this size has unless it is set",
    )
    parser.add_argument("--json", type=Path)
    for option in ("--port", "--sick"):
        parser.add_argument(option, type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--patience", type=float, default=600.0, help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=["lead", "follow"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part == "lead":
        print(json.dumps(anyio.run(lead, args.members, args.port, args.allowed, args.patience)))
        return
    if args.part == "follow":
        allow_files(args.members + FILES)
        print(json.dumps(anyio.run(follow, args.members, args.port, args.sick, args.patience)))
        return
    core = min(os.sched_getaffinity(0))
    figures = play(args.members, core=core, sick=args.members // 3, allowed=args.allowed)
    leader = figures["leader"]
    print(
        f"{args.members} members, one shared core, load {figures['load_before']}: {figures['wall_seconds']:.1f} s, {leader['rounds_of_probes']} rounds of probes; "
        f"leader: {leader['cpu_seconds']:.1f} s of CPU, {leader['memory_mb']:.1f} MB, late by {leader['largest_lag_seconds']:.3f} s at most, lost {leader['lost']}"
    )
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
