"""A member's side: find the leader, say hello, run what it starts, end with its verdict."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio
from preflight_proto.check import Inconclusive
from preflight_proto.roster import Roster

from . import channel
from .channel import Channel, Closed
from .frames import NotAuthentic
from .messages import Ack, Alive, Hello, Leaving, Open, Opened, Order, Probe, Result, Stage, Start, VerdictMessage

__all__ = ["Member", "Tell", "Work"]

RETRY: Final = 0.2
VERDICT_WITHIN: Final = 5.0
"""Seconds to wait for the leader's verdict after telling it that this member leaves."""

Tell = Callable[[Stage], None]
"""Hears how far the slowest worker here is."""
Work = Callable[[Order, Tell], Awaitable[Result | Opened]]
"""Do what the leader orders; an order that is given up is cancelled."""


@dataclass
class Member:
    """This pod's part in its gang. ``begun`` tells whether the leader has started the first round."""

    roster: Roster
    hello: Hello
    local: str
    say: Callable[[str], None]
    begun: anyio.Event = field(default_factory=anyio.Event)
    _leaving: Leaving | None = None
    _channel: Channel | None = None
    _alive: Alive = field(default_factory=Alive)

    async def take_part(self, patience: float, work: Work) -> VerdictMessage:
        """Everything from the connection to the verdict. ``patience``: seconds in which the leader must answer at all.

        Raises :class:`Inconclusive` ``PEER_MISSING`` when it never did and ``LEADER_LOST`` when it was lost before its verdict.
        """
        give_up = anyio.current_time() + patience
        leader = f"the leader, rank 0 at {self.roster.master_addr}:{self.roster.control_port}"
        said = ""
        while True:
            try:
                async with self._connected() as one:
                    verdict = await self._follow(one, work)
                    self.begun.set()
                    return verdict
            except (Closed, NotAuthentic) as error:
                if self._leaving is not None:
                    raise Inconclusive(self._leaving.code, self._leaving.reason) from None
                if self.begun.is_set():
                    raise Inconclusive("LEADER_LOST", f"{leader}, was lost during the run: {error}.") from None
                if str(error) != said:
                    said = str(error)
                    self.say(f"{leader}, does not answer yet: {said}")
                if anyio.current_time() >= give_up:
                    raise Inconclusive(
                        "PEER_MISSING",
                        f"{leader}, did not answer within {patience:.0f} s: {said}; is its check running?",
                    ) from None
            await anyio.sleep(RETRY)

    async def leave(self, code: str, reason: str) -> None:
        """Tell the leader that this ends the run; returns once the verdict had its time to come."""
        self._leaving = Leaving(code, reason)
        if self._channel is not None:
            try:
                await self._channel.send(self._leaving)
            except Closed:
                return
            await anyio.sleep(VERDICT_WITHIN)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Channel]:
        roster = self.roster
        assert roster.master_addr is not None
        assert roster.control_port is not None
        assert roster.token is not None
        assert roster.rank is not None
        one = await channel.connect(
            roster.master_addr,
            roster.control_port,
            local=self.local,
            token=roster.token,
            generation=roster.generation,
            rank=roster.rank,
        )
        try:
            await one.send(self.hello)
            self._channel = one
            yield one
        finally:
            self._channel = None
            await one.aclose()

    async def _follow(self, one: Channel, work: Work) -> VerdictMessage:
        failure: Closed | NotAuthentic | None = None
        verdict: VerdictMessage | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(one.heartbeat, lambda: self._alive)
            scope: anyio.CancelScope | None = None
            try:
                while verdict is None:
                    message = await one.receive()
                    if isinstance(message, Start | Open | Probe):
                        if scope is not None:
                            scope.cancel()
                        self.begun.set()
                        scope = anyio.CancelScope()
                        group.start_soon(self._obey, one, message, work, scope)
                    elif isinstance(message, VerdictMessage):
                        verdict = message
                        await one.send(Ack())
            except (Closed, NotAuthentic) as error:
                failure = error
            group.cancel_scope.cancel()
        if verdict is not None:
            return verdict
        assert failure is not None
        raise failure

    async def _obey(self, one: Channel, order: Order, work: Work, scope: anyio.CancelScope) -> None:
        def tell(now: Stage) -> None:
            if not scope.cancel_called:
                self._alive = Alive(order.round, now)

        with scope:
            tell(Stage("launched"))
            result = await work(order, tell)
            try:
                await one.send(result)
            except Closed:
                return
