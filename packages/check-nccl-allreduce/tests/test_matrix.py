"""The fault matrix of a gang's fabric: every row of it that is run as it stands, and that every other one names a test that runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from fabric import needs_links
from gangs import needs_torch
from preflight_e2e.fault import Fault
from preflight_e2e.scenario import load_faults
from rows import play

ROWS = load_faults()
MINE = [row for row in ROWS if not row.test]
AT_ONCE = 2
"""Gangs on loopback that run side by side: most of their time they wait. Gangs on shaped links run alone, they are measured."""

pytestmark = pytest.mark.timeout(300)  # of which most is waiting for a turn


@pytest.fixture(scope="session")
def loopback(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """Every chosen row on loopback, begun ahead of its test."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    chosen = {row.id for each in params if isinstance(row := each.get("row"), Fault)}
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        yield {
            row.id: pool.submit(play, row, tmp_path_factory.mktemp(row.id))
            for row in MINE
            if row.id in chosen and not row.on_links
        }
    finally:
        pool.shutdown(cancel_futures=True)


@needs_torch
@pytest.mark.parametrize("row", [row for row in MINE if not row.on_links], ids=lambda row: row.id)
def test_a_fault_ends_as_its_row_says(row: Fault, loopback: dict[str, Future[None]]) -> None:
    loopback[row.id].result()


@needs_torch
@needs_links
@pytest.mark.parametrize("row", [row for row in MINE if row.on_links], ids=lambda row: row.id)
def test_a_fault_of_the_network_ends_as_its_row_says(row: Fault, tmp_path: Path) -> None:
    play(row, tmp_path)


def test_every_row_that_names_a_test_names_one_that_runs() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=True,
    )
    known = {line.rpartition("/")[2] for line in listed.stdout.splitlines() if "::" in line}
    known |= {name.partition("[")[0] for name in known}
    assert not {row.test for row in ROWS if row.test} - known


def test_a_row_that_is_run_as_it_stands_runs_real_processes() -> None:
    assert {row.ring for row in MINE} == {"real", "scripted"}
