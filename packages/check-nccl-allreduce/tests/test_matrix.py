"""The fault matrix of a gang's fabric: every row of it that is run as it stands, and that every
other one names a test that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from importlib import import_module

import pytest
from allreduce_testing.gangs.links import may_shape
from allreduce_testing.gangs.rows import Discarded, play, play_together
from needs import needs_torch
from preflight_testing.matrix.fault import Fault
from preflight_testing.matrix.scenario import load_faults

ROWS = load_faults()
MINE = [row for row in ROWS if not row.test]
AT_ONCE = 4
"""Gangs on loopback that run side by side: most of their time they wait."""
MEASURED_AT_ONCE = 5
"""Gangs on shaped links that are measured at the same time, and nothing beside them."""
TRIES = 4
"""Of a row on shaped links, while it is discarded."""

needs_links = pytest.mark.skipif(
    not may_shape(), reason="needs root, ip and tc with network namespaces and tbf"
)

pytestmark = pytest.mark.timeout(300)  # of which most is waiting for a turn


@pytest.fixture(scope="session")
def chosen(request: pytest.FixtureRequest) -> list[Fault]:
    """The rows that this session runs as they stand."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    return [row for each in params if isinstance(row := each.get("row"), Fault)]


@pytest.fixture(scope="session")
def loopback(
    chosen: list[Fault], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """Every chosen row on loopback, begun ahead of its test."""
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        yield {
            row.id: pool.submit(play, row, tmp_path_factory.mktemp(row.id))
            for row in chosen
            if not row.on_links
        }
    finally:
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def measured(
    chosen: list[Fault],
    loopback: dict[str, Future[None]],
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> Callable[[Fault], Future[None]]:
    """How a chosen row on shaped links ended. Its test plays it together with the next ones, which
    then have ended too.
    """
    rows = [row for row in chosen if row.on_links]
    ended: dict[str, Future[None]] = {}

    def end_of(row: Fault) -> Future[None]:
        if row.id not in ended:
            wait(loopback.values())
            batch = [one for one in rows if one.id not in ended][:MEASURED_AT_ONCE]
            batch = batch if row in batch else [row]
            ended.update(play_together(batch, lambda one: tmp_path_factory.mktemp(one.id)))
        for _ in range(TRIES - 1):
            if not isinstance(why := ended[row.id].exception(), Discarded):
                break
            pytestconfig.get_terminal_writer().line(f"{row.id} is played again: {why}")
            ended.update(play_together([row], lambda one: tmp_path_factory.mktemp(one.id)))
        return ended[row.id]

    return end_of


@pytest.mark.links
@needs_torch
@pytest.mark.parametrize("row", [row for row in MINE if not row.on_links], ids=lambda row: row.id)
def test_a_fault_ends_as_its_row_says(row: Fault, loopback: dict[str, Future[None]]) -> None:
    loopback[row.id].result()


@pytest.mark.links
@needs_torch
@needs_links
@pytest.mark.parametrize("row", [row for row in MINE if row.on_links], ids=lambda row: row.id)
def test_a_fault_of_the_network_ends_as_its_row_says(
    row: Fault, measured: Callable[[Fault], Future[None]]
) -> None:
    measured(row).result()


def test_every_row_that_names_a_test_names_one_that_runs() -> None:
    for row in ROWS:
        if row.test:
            file, _, name = row.test.partition("::")
            name, _, case = name.partition("[")
            test = getattr(import_module(file.removesuffix(".py")), name)
            marks = getattr(test, "pytestmark", [])
            tables = [mark.args[1] for mark in marks if mark.name == "parametrize"]
            assert not case or case in [f"{each}]" for table in tables for each in table]


def test_a_row_that_is_run_as_it_stands_runs_real_processes() -> None:
    assert {row.ring for row in MINE} == {"real", "scripted"}
