"""A connector that is absent, slow, refusing or hanging costs its budget and decides nothing."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest
from preflight_proto.check import Action
from preflight_proto.check.events import Event
from preflight_proto.check.kit import KitSettings
from preflight_proto.check.report import send
from preflight_proto.check.testing import FakeConnector, Mode

EVENT = Event("preflight-x", "GPU", "X", fatal=True, healthy=False, message="m", action=Action.NONE)


@pytest.mark.parametrize("mode", ["refuse", "hang"])
def test_the_budget_holds_for_all_attempts_together(connector: FakeConnector, mode: Mode) -> None:
    connector.mode = mode
    lines: list[str] = []
    started = time.monotonic()
    trouble = anyio.run(send, [EVENT], KitSettings(socket=str(connector.path), node_name="n"), lines.append, 1.0)
    assert time.monotonic() - started < 3
    assert lines == [trouble]
    assert "the verdict stands" in lines[0]


def test_an_absent_connector_is_named(tmp_path: Path) -> None:
    trouble = anyio.run(send, [EVENT], KitSettings(socket=f"unix://{tmp_path}/none.sock", node_name="n"), print, 0.3)
    assert trouble is not None
    assert f"{tmp_path}/none.sock: cannot be reached" in trouble


def test_a_connector_that_comes_up_within_the_budget_gets_the_batch(connector: FakeConnector) -> None:
    connector.mode = "refuse"

    async def story() -> tuple[str | None, int]:
        trouble: str | None = "not sent"
        lines: list[str] = []
        async with anyio.create_task_group() as group:

            async def mend() -> None:
                while connector.attempts < 1:
                    await anyio.sleep(0.01)
                connector.mode = "ok"

            group.start_soon(mend)
            trouble = await send([EVENT], KitSettings(socket=str(connector.path), node_name="n"), lines.append)
        return trouble, len(lines)

    assert anyio.run(story) == (None, 0)
    assert len(connector.batches) == 1


def test_nothing_is_sent_where_there_is_nothing_to_say(connector: FakeConnector) -> None:
    assert anyio.run(send, [], KitSettings(socket=str(connector.path), node_name="n"), print) is None
    assert connector.attempts == 0


def test_switched_off_it_sends_nothing_and_says_so_at_once(connector: FakeConnector) -> None:
    lines: list[str] = []
    assert anyio.run(send, [EVENT], KitSettings(socket="off", node_name="n"), lines.append) is None
    assert lines == ["reports are switched off here; nothing is sent, the verdict stands"]
