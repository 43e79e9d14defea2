"""What nobody dies of: watches that are too old, conflicts, two who lead. Each scenario ends as it
does undisturbed, with no object made twice and none orphaned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from disturbed import ConflictingClient, ForgetfulClient
from lab import Lab
from leading import leads
from preflight_testing.apiserver import ApiServer
from scenarios import SCENARIOS, Scenario, played

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]


def one(lab: Lab) -> AbstractAsyncContextManager[Any]:
    return leads(lab.target, lab.namespace)


@asynccontextmanager
async def forgetful(lab: Lab) -> AsyncIterator[None]:
    client = ForgetfulClient(lab.target, lab.namespace)
    async with leads(lab.target, client=client):
        yield
    assert client.ended >= {"pods", "appwrappers"}


@asynccontextmanager
async def conflicting(lab: Lab) -> AsyncIterator[None]:
    client = ConflictingClient(lab.target, lab.namespace)
    async with leads(lab.target, client=client):
        yield
    assert len(client.refused) > 1


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
