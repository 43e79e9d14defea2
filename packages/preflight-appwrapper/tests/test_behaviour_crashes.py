"""Each request of a scenario is once kept from arriving and once robbed of its answer, the
controller dies, and another leads: the end is that of the undisturbed run, with no object twice,
none orphaned, and nothing of somebody else touched.

APPWRAPPER_READS=1 has it die at each read of all scenarios (of a reset and of a deletion).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from dying import Fault, Requests, dies
from preflight_testing.apiserver import ApiServer
from scenarios import SCENARIOS, Scenario, played

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

AT_ONCE = 6
WRITES: list[Fault] = ["lost", "answer lost"]
DISTURBED = [
    *((one, fault) for one in SCENARIOS for fault in WRITES),
    *(
        (one, "unread")
        for one in SCENARIOS
        if os.environ.get("APPWRAPPER_READS") or one.__name__ in {"reset", "deletion"}
    ),
]


async def disturbed(
    server: ApiServer, home: Path, scenario: Scenario, requests: Requests
) -> tuple[Any, ...]:
    try:
        return await played(
            server, home, scenario, lambda one: dies(one.target, one.namespace, requests)
        )
    except AssertionError as error:
        raise AssertionError(
            f"request {requests.at} ({requests.sent[requests.at - 1 :][:1]}) {requests.fault}: {error}"
        ) from error


@pytest.mark.parametrize(
    ("scenario", "fault"), DISTURBED, ids=[f"{one.__name__}-{fault}" for one, fault in DISTURBED]
)
async def test_a_controller_that_dies_at_any_request_changes_nothing_of_the_end(
    control_plane: ApiServer, tmp_path: Path, scenario: Scenario, fault: Fault
) -> None:
    undisturbed = Requests(0, fault)
    wanted = await disturbed(control_plane, tmp_path / "undisturbed", scenario, undisturbed)
    total = len(undisturbed.sent)
    assert total > 5
    slots = anyio.Semaphore(AT_ONCE)
    wrong: list[str] = []

    async def one(at: int) -> None:
        async with slots:
            requests = Requests(at, fault)
            found = await disturbed(control_plane, tmp_path / str(at), scenario, requests)
            if found != wanted:
                wrong.append(f"request {at} of {total} ({requests.sent[at - 1 : at]}): {found}")

    async with anyio.create_task_group() as group:
        for at in range(1, total + 1):
            group.start_soon(one, at)
    assert not wrong, (wanted, wrong)
