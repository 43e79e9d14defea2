"""A member's side: find the leader, say hello, run what it starts, end with its verdict."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import anyio
import msgspec
from preflight_proto.check import Inconclusive
from preflight_proto.roster import Roster

from . import channel, succession
from .channel import Awake, ControlChannel
from .messages import (
    Ack,
    Alive,
    Deposed,
    HeartbeatPace,
    Held,
    Hello,
    LaunchOrder,
    Leaving,
    Message,
    Opened,
    Order,
    ProbeOrder,
    RankReport,
    RankStage,
    Retained,
    Standing,
    StoreOrder,
    VerdictMessage,
)

RETRY: Final = 0.2
"""Seconds until the leader is asked again, at first; each time half as long again, to a heartbeat's
interval.
"""
RETRY_GROWS: Final = 1.5
VERDICT_WITHIN: Final = 5.0
"""Seconds to wait for the leader's verdict after telling it that this member leaves."""

Tell = Callable[[RankStage], None]
"""Hears how far the slowest worker here is."""
Work = Callable[[Order, Tell], Awaitable[RankReport | Opened]]
"""Do what the leader orders; an order that is given up is cancelled."""


class Closed(Exception):
    """The connection is over; the message says why, for people."""


class _Line:
    """A member's end of one connection, a :class:`.channel.ChannelOwner`: messages wait."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Message | None] = asyncio.Queue()
        """After the last one None, and ``why`` it is over."""
        self.why = ""
        self.met = False
        """Whether the leader has taken this member in."""
        self.deposed = False

    def came(self, conn: ControlChannel) -> None:
        pass

    def heard(self, conn: ControlChannel, message: Message) -> None:
        self.met = True
        if not isinstance(message, Alive):
            self.messages.put_nowait(message)

    def over(self, conn: ControlChannel, why: str) -> None:
        self.why = self.why or why
        self.messages.put_nowait(None)


class _Over(Exception):
    """This leader is not to be asked again; the message says why."""


@dataclass
class MemberSession:
    """This pod's part in its gang. ``begun`` says whether the leader has started the first round;
    ``pace``: None for that of a gang of this size.

    ``lead``: have this pod lead, at that place among those who may; None where it cannot.
    """

    roster: Roster
    hello: Hello
    local: str
    say: Callable[[str], None]
    begun: anyio.Event = field(default_factory=anyio.Event)
    pace: HeartbeatPace | None = None
    lead: Callable[[int], object] | None = None
    allowed: float = 0.0
    """Seconds that the leader gives to everything from the first launch on."""
    _leaving: Leaving | None = None
    _channel: ControlChannel | None = None
    _alive: Alive = field(default_factory=Alive)
    _standing: Standing | None = None
    _held: VerdictMessage | None = None
    _awake: Awake = field(default_factory=Awake)
    _place: int = 0
    _name: str = ""
    _named: int = 0

    def __post_init__(self) -> None:
        assert self.roster.nnodes is not None
        self._pace = self.pace or HeartbeatPace.of(self.roster.nnodes)
        self._leaders = succession.leaders(self.roster)

    async def take_part(self, patience: float, work: Work) -> VerdictMessage:
        """Everything from the connection to the verdict. ``patience``: seconds in which the leader
        must answer at all.

        When it is lost, those who may lead in its place are asked, one after the other. Raises
        :class:`Inconclusive` ``PEER_MISSING`` when it never answered, or was lost before the run,
        and ``LEADER_LOST`` when it was lost before its verdict, and nobody took its place.
        """
        until = anyio.current_time() + patience
        why = ""
        for place, candidate in enumerate(self._leaders):
            if place:
                self.say(
                    f"{self._leader(place - 1)}, is lost ({why}); rank {candidate.rank} is to lead"
                )
                until = anyio.current_time() + succession.TRIES * self._pace.lost_after
                if candidate.rank == self.roster.rank and self.lead is not None:
                    self.lead(place)
            try:
                return await self._ask(place, until, work)
            except _Over as error:
                why = why or str(error)
        others = ", ".join(str(other.rank) for other in self._leaders[1:])
        lost = f"{why}, and none of ranks {others} leads in its place." if others else f"{why}."
        leader = self._leader(0)
        if self.begun.is_set():
            raise Inconclusive("LEADER_LOST", f"{leader}, was lost during the run: {lost}")
        raise Inconclusive("PEER_MISSING", f"{leader}, was lost before the run began: {lost}")

    async def _ask(self, place: int, until: float, work: Work) -> VerdictMessage:
        """The verdict of the leader at this place. Raises :class:`_Over` when it is lost, and where
        it has to answer ``until`` then and does not.
        """
        patience, last_error, wait, met = until - anyio.current_time(), "", RETRY, False
        while True:
            line = _Line()
            try:
                async with self._connected(place, line) as conn:
                    verdict = await self._follow(conn, line, work)
                    self.begun.set()
                    return verdict
            except Closed as error:
                if self._leaving is not None:
                    raise Inconclusive(self._leaving.code, self._leaving.reason) from None
                if self.begun.is_set() and (line.met or place == 0):
                    raise _Over(str(error)) from None
                if line.met:  # it may come back until the run starts
                    met, last_error, wait = True, "", RETRY
                    if self._leaders[place + 1 :]:
                        until = anyio.current_time() + self._pace.lost_after
                if line.deposed:
                    raise _Over(str(error)) from None
                if str(error) != last_error:
                    last_error, still = str(error), "any more" if met else "yet"
                    self.say(f"{self._leader(place)}, does not answer {still}: {last_error}")
                if anyio.current_time() >= until:
                    if met or place:
                        raise _Over(last_error) from None
                    why = f"{self._leader(place)}, did not answer within {patience:.0f} s: {last_error}; is its check running?"
                    raise Inconclusive("PEER_MISSING", why) from None
            await anyio.sleep(wait)
            wait = min(RETRY_GROWS * wait, self._pace.interval)

    def _leader(self, place: int) -> str:
        leader = self._leaders[place]
        known = f" ({self._name})" if self._name and place == self._named else ""
        return (
            f"the leader, rank {leader.rank} at {leader.address}:{self.roster.control_port}{known}"
        )

    async def leave(self, code: str, reason: str) -> None:
        """Report that this ends the run; returns once the verdict had its time to come."""
        self._leaving = Leaving(code, reason)
        if self._channel is not None:
            self._channel.send(self._leaving)
            await anyio.sleep(VERDICT_WITHIN)

    @asynccontextmanager
    async def _connected(self, place: int, line: _Line) -> AsyncIterator[ControlChannel]:
        port, token, rank = self.roster.control_port, self.roster.token, self.roster.rank
        assert port is not None
        assert token is not None
        assert rank is not None
        make = partial(ControlChannel, line, self._awake, token, self.roster.generation)
        mine = partial(make, leader=False, rank=rank, place=place)
        address, within = self._leaders[place].address, self._pace.lost_after
        try:
            conn = await channel.connect(mine, address, port, local=self.local, within=within)
        except OSError as error:
            raise Closed(str(error)) from None
        try:
            conn.send(msgspec.structs.replace(self.hello, standing=self._standing))
            if self._held is not None:
                conn.send(Held(self._held))
            self._channel, self._place = conn, place
            yield conn
        finally:
            self._channel = None
            conn.finish("this member is done")

    async def _follow(self, conn: ControlChannel, line: _Line, work: Work) -> VerdictMessage:
        verdict: VerdictMessage | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._pulse, conn)
            scope = anyio.CancelScope()
            while verdict is None and (message := await line.messages.get()) is not None:
                if isinstance(message, LaunchOrder | StoreOrder | ProbeOrder):
                    scope.cancel()
                    self._ordered(message)
                    scope = anyio.CancelScope()
                    group.start_soon(self._obey, conn, message, work, scope)
                elif isinstance(message, VerdictMessage):
                    verdict = message
                    conn.send(Ack())
                elif isinstance(message, Held):
                    self._held = message.verdict
                    conn.send(Retained())
                elif isinstance(message, Deposed):
                    line.deposed, line.why = True, message.reason
                    break
            group.cancel_scope.cancel()
        if verdict is None:
            raise Closed(line.why)
        return verdict

    def _ordered(self, order: Order) -> None:
        """Remember what a successor would have to know."""
        if isinstance(order, LaunchOrder):
            self.allowed, self._name, self._named = order.allowed, order.leader, self._place
        self._standing = Standing(
            self._leader(self._place), order.round, not isinstance(order, LaunchOrder)
        )
        self.begun.set()

    async def _pulse(self, conn: ControlChannel) -> None:
        """A heartbeat in each interval, and a look at the leader's twice in it."""
        while conn.why is None:
            conn.send(self._alive)
            for _ in range(2):
                await self._awake.sleep(self._pace.interval / 2)
                conn.check(self._pace)

    async def _obey(
        self, conn: ControlChannel, order: Order, work: Work, scope: anyio.CancelScope
    ) -> None:
        def notify(now: RankStage) -> None:
            """What the leader decides by is sent as it changes, the iteration with heartbeats."""
            if scope.cancel_called:
                return
            before, self._alive = self._alive, Alive(order.round, now)
            was = before.stage
            if (before.round, was.name, was.silent) != (order.round, now.name, now.silent):
                conn.send(self._alive)

        with scope:
            notify(RankStage("launched"))
            answer = await work(order, notify)
            if self._standing is not None and isinstance(answer, RankReport):
                self._standing = msgspec.structs.replace(self._standing, trouble=answer.trouble)
            conn.send(answer)
