"""What nobody dies of: watches that are too old, conflicts, two who lead, an API server that
restarts. Each scenario ends as it does undisturbed, with no object made twice and none orphaned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from disturbed import ConflictingClient, ForgetfulClient, PatientClient
from lab import Lab
from leading import leads
from preflight_testing.apiserver import ApiServer
from scenarios import SCENARIOS, Scenario, played

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]


def one(lab: Lab) -> AbstractAsyncContextManager[Any]:
    return leads(lab.target, lab.namespace)


def forgetful(lab: Lab) -> AbstractAsyncContextManager[Any]:
    return leads(lab.target, client=ForgetfulClient(lab.target, lab.namespace))


def conflicting(lab: Lab) -> AbstractAsyncContextManager[Any]:
    return leads(lab.target, client=ConflictingClient(lab.target, lab.namespace))


@asynccontextmanager
async def two(lab: Lab) -> AsyncIterator[None]:
    """Both believe to lead, as when one has not noticed that its lease is over."""
    async with leads(lab.target, lab.namespace), leads(lab.target, lab.namespace):
        yield


DISTURBED: list[Callable[[Lab], AbstractAsyncContextManager[Any]]] = [forgetful, conflicting, two]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda it: it.__name__)
async def test_old_watches_conflicts_and_a_second_leader_change_nothing_of_the_end(
    control_plane: ApiServer, tmp_path: Path, scenario: Scenario
) -> None:
    ends: dict[str, tuple[Any, ...]] = {}

    async def play(led: Callable[[Lab], AbstractAsyncContextManager[Any]]) -> None:
        name = led.__name__
        ends[name] = await played(control_plane, tmp_path / name, scenario, led)

    async with anyio.create_task_group() as group:
        for led in (one, *DISTURBED):
            group.start_soon(play, led)
    assert ends == dict.fromkeys(ends, ends["one"])


async def test_an_api_server_that_restarts_twice_changes_nothing_of_the_end(
    control_plane: ApiServer, tmp_path: Path
) -> None:
    """All scenarios at the same time, so that it restarts in the middle of each."""
    ends: dict[str, dict[str, tuple[Any, ...]]] = {"undisturbed": {}, "restarted": {}}
    begun = anyio.Event()

    @asynccontextmanager
    async def led(lab: Lab) -> AsyncIterator[None]:
        async with one(lab):
            begun.set()
            yield

    async def play(how: str, scenario: Scenario) -> None:
        name = scenario.__name__
        ends[how][name] = await played(
            control_plane, tmp_path / how / name, scenario, led, client=PatientClient, patience=200
        )

    async def restarts() -> None:
        await begun.wait()
        for _ in range(2):
            await anyio.sleep(2)
            await anyio.to_thread.run_sync(control_plane.restart)

    for how in ends:
        async with anyio.create_task_group() as group:
            for scenario in SCENARIOS:
                group.start_soon(play, how, scenario)
            if how == "restarted":
                begun = anyio.Event()
                group.start_soon(restarts)
    assert ends["restarted"] == ends["undisturbed"]
