"""Rows that need different nodes run side by side: nearly all the time of a row
is spent waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from preflight_testing.matrix.scenario import Scenario

from .lab import Lab
from .runner import ScenarioOutcome, run


def run_all(
    lab: Lab,
    rows: Sequence[Scenario],
    say: Callable[[str], None],
    ready: Callable[[dict[str, Any]], None],
) -> list[ScenarioOutcome]:
    """Run ``rows``, which are sorted by their values, and give their outcomes in the same order.

    ``ready(values)`` returns when the cluster has what a chart of these values needs.

    Rows begin in their order, each when there are free nodes enough. One that measures time has the
    cluster to itself, and the chart is upgraded only while nothing runs.
    """
    nodes = _Nodes(lab.nodes)
    running: list[Future[ScenarioOutcome]] = []

    def one(row: Scenario, mine: list[str]) -> ScenarioOutcome:
        try:
            return run(lab, row, say, mine)
        finally:
            nodes.give(mine)

    with ThreadPoolExecutor(max(len(lab.nodes), 1)) as pool:
        for values, alike in groupby(rows, key=lambda row: row.values):
            ready(values)
            with nodes.all():
                lab.values(values)
            for row in alike:
                mine = nodes.take(
                    len(lab.nodes) if row.timed else min(len(row.letters), len(lab.nodes))
                )
                running.append(pool.submit(one, row, mine))
        return [row.result() for row in running]


class _Nodes:
    """Who has which node. Only one thread takes, so that nobody waits for what another one holds
    while it waits.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._free, self._count = list(names), len(names)
        self._changed = threading.Condition()

    def take(self, count: int) -> list[str]:
        """The first ``count`` free nodes by name, once there are as many."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._free) >= count)
            self._free.sort()
            mine, self._free = self._free[:count], self._free[count:]
            return mine

    def give(self, mine: list[str]) -> None:
        with self._changed:
            self._free += mine
            self._changed.notify_all()

    @contextmanager
    def all(self) -> Iterator[None]:
        mine = self.take(self._count)
        try:
            yield
        finally:
            self.give(mine)
