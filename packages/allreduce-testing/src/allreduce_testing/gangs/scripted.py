"""Real checks with workers made up: forks a check for each line of its input, and says how each
ended.

A line is ``{"id", "env", "log"}``; the answer, once that check has ended, ``{"id", "exit"}``.
Everything but the ranks is the product: the parents, their channel, the leader's decisions, the
report. The ranks' times are those of a healthy fabric, drawn as the simulation's noise is: 2 % per
path and round, and again per trial, 1.5 % among nodes, one measurement in two hundred at 30 to 90
%.
"""

from __future__ import annotations

import json
import math
import os
import select
import sys
import traceback
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import anyio
import anyio._backends._asyncio
import grpclib.client  # what a check imports as it reports; here once for all of them
from check_nccl_allreduce import check, ranks
from check_nccl_allreduce.control.messages import (
    LaunchOrder,
    Opened,
    ProbeOrder,
    RankReport,
    RankStage,
)
from check_nccl_allreduce.launch import LaunchAgent
from preflight_proto import wire
from preflight_proto.roster import Roster

PRELOADED = (anyio._backends._asyncio, grpclib.client, wire)

NORMAL = 0.0235
"""GB/s of a healthy path."""
NOISE, SPREAD, DIPS = 0.02, 0.015, 0.005

Changed = Callable[[RankStage], None]


class Scripted(LaunchAgent):
    """In the place of the process that holds torch; a subclass so that mypy compares signatures.

    ``SCRIPT_GANG`` seeds it; ``SCRIPT_SHARE``: of normal, the whole gang's all-reduce.
    """

    began = None
    ended = False
    asleep = False
    output = ""

    def __init__(self, environ: Mapping[str, str], group: Any) -> None:
        self._gang, self._share = environ["SCRIPT_GANG"], float(environ["SCRIPT_SHARE"])
        self._node = environ["NODE_NAME"]
        self.loaded = anyio.Event()
        self.loaded.set()

    async def load(self) -> None:
        pass

    async def end(self) -> None:
        pass

    async def fork(
        self,
        count: int,
        first_rank: int,
        ranks: int,
        variables: Mapping[str, str | None],
        within: float = 0.0,
    ) -> None:
        pass

    async def open(self, number: int, address: str, *, store: bool = True) -> Opened:
        return Opened(number, 1, address)

    async def run(
        self,
        start: LaunchOrder,
        roster: Roster,
        address: str,
        count: int,
        changed: Changed,
        *,
        variables: Mapping[str, str | None],
    ) -> RankReport:
        return self._result(start, f"gang {start.round}", self._share, changed)

    async def probe(
        self, probe: ProbeOrder, roster: Roster, count: int, changed: Changed
    ) -> RankReport:
        return self._result(probe, f"{probe.round}/{probe.index}", 1.0, changed)

    def _result(
        self, order: LaunchOrder | ProbeOrder, edge: str, share: float, changed: Changed
    ) -> RankReport:
        changed(RankStage("ready"))
        quality = math.exp(Random(f"{self._gang} {self._node}").gauss(0, SPREAD))
        common = Random(f"{self._gang} {edge}")
        value = NORMAL * share * quality * math.exp(common.gauss(0, NOISE)) * _dip(common)
        own = Random(f"{self._gang} {edge} {self._node}")
        speeds = [
            value * math.exp(own.gauss(0, NOISE)) * _dip(common) for _ in range(order.iterations)
        ]
        bytes_moved = order.size * 2 * (order.world - 1) / order.world
        return RankReport(
            order.round,
            tuple(bytes_moved / speed / 1e9 for speed in speeds),
            order.iterations + order.warmup,
        )


def _dip(chance: Random) -> float:
    return chance.uniform(0.3, 0.9) if chance.random() < DIPS else 1.0


def main() -> None:
    running: dict[int, str] = {}
    vars(ranks)["LaunchAgent"] = Scripted
    buffer, over = b"", False
    while running or not over:
        if not over and select.select([0], [], [], 0.01)[0]:
            data = os.read(0, 1 << 16)
            over = not data
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                running[_fork(order)] = order["id"]
        elif over:
            select.select([], [], [], 0.01)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            answer = {"id": running.pop(pid), "exit": os.waitstatus_to_exitcode(status)}
            os.write(1, json.dumps(answer).encode() + b"\n")


def _fork(order: dict[str, Any]) -> int:
    if (child := os.fork()) != 0:
        return child
    try:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(order["env"])
        sys.argv = ["check-nccl-allreduce"]
        check.main()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(70)


if __name__ == "__main__":
    main()
