"""An idle connection is closed when its time is over, counted from its last answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from preflight_kube.admission.fast_path import AtOnce, HttpAnswer

KEPT = 5
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi"


class Timer:
    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when, self.call, self.cancelled = when, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """What a protocol asks of its loop, with a clock of the test's own."""

    def __init__(self) -> None:
        self.now, self.timers = 1000.0, list[Timer]()

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        self.timers.append(made := Timer(self.now + delay, call))
        return made

    def go_to(self, when: float) -> None:
        self.now = when
        for timer in [one for one in self.waiting if one.when <= when]:
            self.timers.remove(timer)
            timer.call()

    @property
    def waiting(self) -> list[Timer]:
        return [one for one in self.timers if not one.cancelled]


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def write(self, data: Any) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


class App:
    def at_once(self, scope: Any, body: bytes) -> HttpAnswer:
        return HttpAnswer(200, bytes(body), b"text/plain")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raise NotImplementedError


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def connection(loop: Loop, wire: Wire) -> AtOnce:
    more: dict[str, Any] = {"log_config": None, "access_log": False, "proxy_headers": False}
    config = uvicorn.Config(App(), http=AtOnce, lifespan="off", timeout_keep_alive=KEPT, **more)
    server = uvicorn.Server(config)
    config.load()
    made = AtOnce(config, server.server_state, {}, loop)  # type: ignore[arg-type]
    made.connection_made(wire)
    return made


def test_the_time_counts_from_the_last_answer(connection: AtOnce, loop: Loop, wire: Wire) -> None:
    connection.data_received(REQUEST)
    loop.go_to(1003)
    connection.data_received(REQUEST)
    assert len(loop.waiting) == 1
    loop.go_to(1005)
    assert not wire.closed
    loop.go_to(1007.9)
    assert not wire.closed
    loop.go_to(1008)
    assert wire.closed


def test_a_request_that_has_begun_is_not_cut_off_as_idle(
    connection: AtOnce, loop: Loop, wire: Wire
) -> None:
    connection.data_received(REQUEST)
    connection.data_received(REQUEST[:20])
    loop.go_to(1020)
    assert not wire.closed
    assert not loop.waiting
    connection.data_received(REQUEST[20:])
    loop.go_to(1024.9)
    assert not wire.closed
    loop.go_to(1025)
    assert wire.closed


def test_a_connection_that_is_gone_leaves_no_timer(connection: AtOnce, loop: Loop) -> None:
    connection.data_received(REQUEST)
    connection.connection_lost(ConnectionResetError())
    assert not loop.waiting
