"""The leader's end of all connections: who may speak, one timer for heartbeats, who is silent."""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import Final, Protocol

import anyio
import anyio.lowlevel
from preflight_proto.check import Inconclusive
from preflight_proto.roster import Roster

from .channel import Awake, ControlChannel
from .messages import Alive, HeartbeatPace, Hello, Message, encode

MAX_UNAUTHENTICATED: Final = 256
MAX_UNAUTHENTICATED_PER_ADDRESS: Final = 8
"""Connections that have not proven themselves yet, or as many as there are members, who may all
come at once. Beyond that the oldest goes: a member needs two round trips, no more.
"""
BURST: Final = 64
"""Channels that are seen to before other work has its turn."""
OWN_FILES: Final = 128
"""Open files of a check besides its leader's connections."""
BACKLOG: Final = 4096
_ALIVE: Final = encode(Alive())


class Crowd(Protocol):
    """Who hears the members."""

    def admits(self, hello: Hello) -> bool:
        """Whether this member may still join."""

    def joined(self, hello: Hello) -> None:
        """It has; its channel is in :attr:`Hub.members`."""

    def received(self, rank: int, message: Message) -> None:
        """What a member says."""

    def gone(self, rank: int, why: str) -> None:
        """Its connection ended."""


class Hub:
    """The connections of one leader, whose members ``crowd`` hears; their :class:`ChannelOwner`."""

    def __init__(self, roster: Roster, pace: HeartbeatPace, crowd: Crowd, place: int) -> None:
        assert roster.nnodes is not None
        assert roster.token is not None
        self._nnodes, self._token, self._generation = roster.nnodes, roster.token, roster.generation
        self._pace, self._crowd, self._place = pace, crowd, place
        self._awake = Awake()
        self._room = max(MAX_UNAUTHENTICATED, self._nnodes)
        self._unauthenticated: dict[ControlChannel, str] = {}
        self._from: dict[str, dict[ControlChannel, None]] = {}
        self._turns: deque[tuple[float, bool, ControlChannel]] = deque()
        self._ranks: dict[ControlChannel, int] = {}
        self.members: dict[int, ControlChannel] = {}

    @asynccontextmanager
    async def open(self, address: str, port: int) -> AsyncIterator[None]:
        """Listen; leaving ends all connections. Raises :class:`Inconclusive` ``PORT_TAKEN``."""
        allow_files(self._nnodes + self._room + OWN_FILES)
        loop = asyncio.get_running_loop()
        try:
            # asyncio leaves a server open whose creation is cancelled.
            with anyio.CancelScope(shield=True):
                server = await loop.create_server(self._make, address, port, backlog=BACKLOG)
        except OSError as error:
            why = f"the gang's control port {port} on {address} cannot be opened ({error.strerror or error}); another process of this host network may hold it."
            raise Inconclusive("PORT_TAKEN", why) from None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._pulse)
                yield
                group.cancel_scope.cancel()
        finally:
            # asyncio never closes a connection that it has let in and not yet handed over when its
            # server closes: nobody is let in any more, and two turns hand over who was.
            for listening in server.sockets:
                loop.remove_reader(listening.fileno())
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            server.close()
            for channel in [*self._unauthenticated, *self._ranks]:
                channel.finish("the leader is done")

    def send(self, rank: int, message: Message | bytes) -> None:
        """Say something to one member; nothing where it is gone."""
        if (member := self.members.get(rank)) is not None:
            member.send(message)

    async def broadcast(self, message: Message) -> None:
        """Say something to all members that are there."""
        payload = encode(message)
        for number, member in enumerate(list(self.members.values())):
            member.send(payload)
            if number % BURST == BURST - 1:
                await anyio.lowlevel.checkpoint()

    async def _pulse(self) -> None:
        """See to each member twice in an interval: has it fallen silent? Every other time, send a
        heartbeat. Unauthenticated connections have as long to prove themselves.
        """
        half = self._pace.interval / 2
        while True:
            now = anyio.current_time()
            for channel in list(islice(self._unauthenticated, BURST)):  # the oldest first
                channel.check(self._pace)
                if channel.why is None:
                    break
            for _ in range(BURST):
                if not self._turns or self._turns[0][0] > now:
                    break
                _, speaks, channel = self._turns.popleft()
                channel.check(self._pace)
                if channel.why is None:
                    if speaks:
                        channel.send(_ALIVE)
                    self._turns.append((now + half, not speaks, channel))
            wait = min(self._turns[0][0] - anyio.current_time() if self._turns else half, half)
            await self._awake.sleep(max(wait, 0))

    # --- an Owner

    def _make(self) -> ControlChannel:
        return ControlChannel(
            self, self._awake, self._token, self._generation, leader=True, rank=0, place=self._place
        )

    def came(self, channel: ControlChannel) -> None:
        """Take a new connection in; above a bound, the oldest unauthenticated one ends."""
        address = channel.address
        same = self._from.setdefault(address, {})
        if len(same) >= MAX_UNAUTHENTICATED_PER_ADDRESS:
            next(iter(same)).end("others came after it")
        elif len(self._unauthenticated) >= self._room:
            next(iter(self._unauthenticated)).end("others came after it")
        self._unauthenticated[channel] = address
        self._from.setdefault(address, {})[channel] = None

    def heard(self, channel: ControlChannel, message: Message) -> None:
        """A message of a member, or the first one of a connection, which must be its hello."""
        rank = self._ranks.get(channel)
        if rank is not None:
            if self.members.get(rank) is channel:
                self._crowd.received(rank, message)
        elif (
            not isinstance(message, Hello)
            or message.rank != channel.rank
            or not 0 <= message.rank < self._nnodes
        ):
            channel.end("it did not say hello")
        elif not self._crowd.admits(message):
            channel.end("it came too late")
        else:
            self._forget(channel)
            older = self.members.get(message.rank)
            self.members[message.rank], self._ranks[channel] = channel, message.rank
            if older is not None:
                older.end("its member came again")
            channel.send(_ALIVE)  # it is taken in
            self._turns.append((anyio.current_time() + self._pace.interval / 2, True, channel))
            self._crowd.joined(message)

    def over(self, channel: ControlChannel, why: str) -> None:
        """A connection has ended; with it its member, unless that has another one."""
        self._forget(channel)
        rank = self._ranks.pop(channel, None)
        if rank is not None and self.members.get(rank) is channel:
            del self.members[rank]
            self._crowd.gone(rank, why)

    def _forget(self, channel: ControlChannel) -> None:
        """It is authenticated from here on."""
        if (address := self._unauthenticated.pop(channel, None)) is not None:
            same = self._from[address]
            del same[channel]
            if not same:
                del self._from[address]


def allow_files(needed: int) -> None:
    """Have as many open files as the leader of a large gang needs; what the container's limit does
    not allow is its members' to retry.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
