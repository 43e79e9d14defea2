"""A request of a scenario is kept from arriving or robbed of its answer, the controller dies, and
another leads: the end is that of the undisturbed run, with no object twice, none orphaned, and
nothing of somebody else touched.

Each write is disturbed in one of the two ways, by turns, and every third read of a reset and of a
deletion is; those of a creation, with which every scenario begins, in it alone. ``--full``: each
write in both ways, and each read of all. ``test_crashes.py`` tries both at each without a server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from dying import Fault, Requests, dies
from preflight_testing.apiserver import ApiServer
from scenarios import SCENARIOS, Scenario, creation, deletion, played, reset

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

AT_ONCE = 6
WRITES: list[Fault] = ["lost", "answer lost"]
SAMPLE = {"lost": slice(0, None, 2), "answer lost": slice(1, None, 2), "unread": slice(0, None, 3)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    full = metafunc.config.getoption("full")
    read = SCENARIOS if full else [reset, deletion]
    disturbed = [(one, fault) for one in SCENARIOS for fault in WRITES]
    disturbed += [(one, "unread") for one in read]
    ids = [f"{one.__name__}-{fault}" for one, fault in disturbed]
    metafunc.parametrize(("scenario", "fault"), disturbed, ids=ids)


async def disturbed(
    server: ApiServer, home: Path, scenario: Scenario, requests: Requests
) -> tuple[Any, ...]:
    try:
        return await played(server, home, scenario, lambda one: dies(one, requests))
    except AssertionError as error:
        raise AssertionError(
            f"request {requests.at} ({requests.sent[requests.at - 1 :][:1]}) {requests.fault}: {error}"
        ) from error


async def test_a_controller_that_dies_at_any_request_changes_nothing_of_the_end(
    control_plane: ApiServer,
    tmp_path: Path,
    scenario: Scenario,
    fault: Fault,
    pytestconfig: pytest.Config,
) -> None:
    undisturbed = Requests(0, fault)
    wanted = await disturbed(control_plane, tmp_path / "undisturbed", scenario, undisturbed)
    total = len(undisturbed.sent)
    assert total > 5
    first = 1 if scenario is creation else undisturbed.of_creation + 1
    assert first <= total
    sample = slice(None) if pytestconfig.getoption("full") else SAMPLE[fault]
    slots = anyio.Semaphore(AT_ONCE)
    wrong: list[str] = []

    async def one(at: int) -> None:
        async with slots:
            requests = Requests(at, fault)
            found = await disturbed(control_plane, tmp_path / str(at), scenario, requests)
            if found != wanted:
                wrong.append(f"request {at} of {total} ({requests.sent[at - 1 : at]}): {found}")

    async with anyio.create_task_group() as group:
        for at in range(first, total + 1)[sample]:
            group.start_soon(one, at)
    assert not wrong, (wanted, wrong)
