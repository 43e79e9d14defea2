"""A connector that is absent, slow, refusing or hanging costs its budget and decides nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream
from preflight_proto import wire
from preflight_proto.check import Action, report
from preflight_proto.check.events import EventDraft
from preflight_proto.check.kit import KitSettings
from preflight_proto.check.report import send
from preflight_proto.check.testing import FakeConnector, Mode


def kit(socket: Path | str) -> KitSettings:
    return KitSettings(socket=str(socket), node_name="n")


EVENT = EventDraft(
    "preflight-x", "GPU", "X", fatal=True, healthy=False, message="m", action=Action.NONE
)


@pytest.mark.parametrize("mode", ["refuse", "hang"])
def test_the_budget_holds_for_all_attempts_together(
    connector: FakeConnector, mode: Mode, *, timed: bool
) -> None:
    connector.mode = mode
    lines: list[str] = []
    started = time.monotonic()
    trouble = anyio.run(send, [EVENT], kit(connector.path), lines.append, 1.0)
    if timed:
        assert time.monotonic() - started < 4
    assert lines == [trouble]
    assert "the verdict is unchanged" in lines[0]


def test_an_absent_connector_is_named_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waits(seconds: float) -> None:
        raise AssertionError(f"waited {seconds} s")

    monkeypatch.setattr("preflight_proto.check.report.anyio.sleep", waits)
    trouble = anyio.run(send, [EVENT], kit(f"unix://{tmp_path}/none.sock"), print)
    assert trouble is not None
    assert f"{tmp_path}/none.sock: there is no such socket" in trouble
    assert "set platformConnector.enabled to false" in trouble


def test_a_socket_that_nobody_answers_is_tried_again(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/dead.sock")
    final, trouble = anyio.run(report._attempt, wire.HealthEvents(), f"{tmp_path}/dead.sock", None)
    assert (final, trouble) == (False, "cannot be reached (Connection refused)")


def test_a_socket_that_may_not_be_opened_is_not_tried_again(tmp_path: Path) -> None:
    path = f"{tmp_path}/closed.sock"
    anyio.run(report._attempt, wire.HealthEvents(), f"{tmp_path}/none.sock", None)  # loads modules
    root = os.geteuid() == 0
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        Path(path).chmod(0)
        try:
            if root:
                os.seteuid(65534)
            final, trouble = anyio.run(report._attempt, wire.HealthEvents(), path, None)
            user = os.geteuid()
        finally:
            if root:
                os.seteuid(0)
    assert final
    assert f"user {user} may not open the socket" in str(trouble)
    assert "runAsUser" in str(trouble)


def test_a_connector_with_more_connections_waiting_than_its_queue_holds_is_tried_again(
    tmp_path: Path,
) -> None:
    path = f"{tmp_path}/full.sock"
    with ExitStack() as held:
        listener = held.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(0)
        held.enter_context(socket.socket(socket.AF_UNIX)).connect(path)
        final, trouble = anyio.run(report._attempt, wire.HealthEvents(), path, None)
    assert not final
    assert "it takes no connection" in str(trouble)


def test_a_connector_that_comes_up_within_the_budget_gets_the_batch(
    connector: FakeConnector,
) -> None:
    connector.mode = "refuse"

    async def story() -> tuple[str | None, int]:
        trouble: str | None = "not sent"
        lines: list[str] = []
        async with anyio.create_task_group() as group:

            async def recover() -> None:
                while connector.attempts < 1:
                    await anyio.sleep(0.01)
                connector.mode = "ok"

            group.start_soon(recover)
            trouble = await send([EVENT], kit(connector.path), lines.append)
        return trouble, len(lines)

    assert anyio.run(story) == (None, 0)
    assert len(connector.batches) == 1


def test_a_connector_that_ends_each_connection_is_tried_again_and_ends_nothing_else(
    tmp_path: Path,
) -> None:
    calls = []

    async def ends(stream: SocketStream) -> None:
        async with stream:
            calls.append(await stream.receive())
            await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def story() -> tuple[str | None, int]:
        listener = await anyio.create_unix_listener(tmp_path / "other.sock")
        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, ends)
            trouble = await send([EVENT], kit(tmp_path / "other.sock"), lambda _: None, 0.6)
            group.cancel_scope.cancel()
        task = asyncio.current_task()
        assert task is not None
        return trouble, task.cancelling()

    trouble, cancelling = anyio.run(story)
    assert "1 event not delivered, the verdict is unchanged" in str(trouble)
    assert cancelling == 0
    assert len(calls) > 1


def test_nothing_is_sent_where_there_is_nothing_to_say(connector: FakeConnector) -> None:
    assert anyio.run(send, [], kit(connector.path), print) is None
    assert connector.attempts == 0


def test_switched_off_it_sends_nothing_and_says_so_at_once(connector: FakeConnector) -> None:
    lines: list[str] = []
    assert anyio.run(send, [EVENT], kit("off"), lines.append) is None
    assert lines == ["reports are switched off here; nothing is sent, the verdict is unchanged"]
