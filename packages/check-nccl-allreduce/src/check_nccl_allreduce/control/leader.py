"""The leader: rank 0's parent listens, starts rounds, and tells every member the one verdict.

It does not measure: rank 0 is a member like the others and connects to its own leader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import anyio
from anyio.abc import SocketAttribute, SocketListener, SocketStream, TaskGroup
from preflight_proto.check import Inconclusive
from preflight_proto.roster import Roster

from . import channel
from .channel import Channel, Closed
from .frames import NotAuthentic
from .messages import Ack, Alive, Hello, Leaving, Message, Result, Stage, Start, VerdictMessage
from .rounds import Round

__all__ = ["Leader", "Next"]

STRANGERS: Final = 256
STRANGERS_PER_ADDRESS: Final = 8
"""Connections that have not proven themselves yet. Beyond that the oldest goes: a member needs two round trips, no more."""
SETTLE: Final = 3.0
"""Seconds to hear the others once one member has failed: who fell over whom is then in the reports."""
ACK_WITHIN: Final = 5.0


Next = Callable[[Mapping[int, Hello], list[Round]], Start | VerdictMessage]
"""What to do after the rounds so far: another round, or the end. Called with no rounds once every member has come."""


class Leader:
    """One gang's leader. ``say`` prints a line to the log."""

    def __init__(self, roster: Roster, address: str, say: Callable[[str], None]) -> None:
        assert roster.nnodes is not None
        assert roster.token is not None
        assert roster.control_port is not None
        self._address, self._port = address, roster.control_port
        self._nnodes, self._token, self._generation = roster.nnodes, roster.token, roster.generation
        self._say = say
        self._hellos: dict[int, Hello] = {}
        self._channels: dict[int, Channel] = {}
        self._strangers: deque[tuple[str, anyio.CancelScope]] = deque()
        self._round: Round | None = None
        self._left: dict[int, Leaving] = {}
        self._acks: set[int] = set()
        self._news = anyio.Event()

    async def lead(self, hello_within: float, round_within: Callable[[], tuple[float, float]], step: Next) -> None:
        """The whole way; returns when every member that can be reached has taken the verdict.

        ``hello_within``: seconds to wait for the members. ``round_within`` is asked as a round starts and gives the seconds until
        every worker must be ready and until the round must be over. Raises :class:`Inconclusive` ``PORT_TAKEN``.
        """
        try:
            listener = await anyio.create_tcp_listener(local_host=self._address, local_port=self._port)
        except OSError as error:
            raise Inconclusive(
                "PORT_TAKEN",
                f"the gang's control port {self._port} on {self._address} cannot be opened ({error.strerror or error}); another process of this host network may hold it.",
            ) from None
        async with listener, anyio.create_task_group() as group:
            for one in listener.listeners:
                assert isinstance(one, SocketListener)
                group.start_soon(self._serve, one, group)
            verdict = await self._conduct(hello_within, round_within, step)
            await self._tell(verdict)
            group.cancel_scope.cancel()

    async def _conduct(
        self, hello_within: float, round_within: Callable[[], tuple[float, float]], step: Next
    ) -> VerdictMessage:
        with anyio.move_on_after(hello_within):
            while len(self._hellos) < self._nnodes and not self._left:
                await self._next_news()
        if self._left or len(self._hellos) < self._nnodes:
            return self._incomplete(hello_within)
        rounds: list[Round] = []
        while True:
            what = step(self._hellos, rounds)
            if isinstance(what, VerdictMessage):
                return what
            self._round = Round(what)
            rounds.append(self._round)
            ready_within, over_within = round_within()
            await self._broadcast(what)
            await self._collect(self._round, ready_within, over_within)

    def _incomplete(self, waited: float) -> VerdictMessage:
        if self._left:
            _, leaving = min(self._left.items())
            return VerdictMessage("inconclusive", leaving.code, leaving.reason)
        missing = [str(rank) for rank in range(self._nnodes) if rank not in self._hellos]
        here = ", ".join(self._name(rank) for rank in sorted(self._hellos)) or "nobody"
        return VerdictMessage(
            "inconclusive",
            "PEER_MISSING",
            f"rank {', '.join(missing)} of {self._nnodes} never reached the leader {self._address}:{self._port} within {waited:.0f} s (there: {here}); is its check running, and may the pods reach each other?",
        )

    async def _collect(self, this: Round, ready_within: float, over_within: float) -> None:
        """Until all reports are in, or no better ones can be expected."""
        started = anyio.current_time()
        settled = None
        while len(this.results) < self._nnodes:
            if this.left:
                return
            now = anyio.current_time()
            if this.troubled and settled is None:
                settled = now + SETTLE
            everyone_ready = all(self._is_ready(this, rank) for rank in range(self._nnodes))
            end = started + (over_within if everyone_ready else min(ready_within, over_within))
            end = end if settled is None else min(end, settled)
            if now >= end:
                return
            with anyio.move_on_after(min(end - now, 1.0)):
                await self._next_news()

    def _is_ready(self, this: Round, rank: int) -> bool:
        return rank in this.results or this.stages.get(rank, Stage()).name in {"ready", "measuring", "done"}

    async def _broadcast(self, message: Message) -> None:
        async with anyio.create_task_group() as group:
            for one in list(self._channels.values()):
                group.start_soon(self._send, one, message)

    async def _send(self, to: Channel, message: Message) -> None:
        try:
            await to.send(message)
        except Closed:
            return  # its reader says so too

    async def _tell(self, verdict: VerdictMessage) -> None:
        await self._broadcast(verdict)
        with anyio.move_on_after(ACK_WITHIN):
            while not self._channels.keys() <= self._acks:
                await self._next_news()
        for rank in sorted(self._channels.keys() - self._acks):
            self._say(f"{self._name(rank)} did not confirm the verdict within {ACK_WITHIN:g} s")

    # --- connections

    async def _serve(self, listener: SocketListener, group: TaskGroup) -> None:
        while True:
            try:
                stream = await listener.accept()
            except OSError:  # a connection that was gone again, or no descriptor left just now
                await anyio.sleep(0.05)
                continue
            group.start_soon(self._welcome, stream)

    async def _welcome(self, stream: SocketStream) -> None:
        """One connection, from its first byte to its last. Nothing that a stranger does gets out of here."""
        try:
            one = await self._prove(stream)
        except Exception:  # whatever it is: it came from somebody who has proven nothing
            one = None
        if one is None:
            await anyio.aclose_forcefully(stream)
            return
        new, hello = one
        rank = hello.rank
        if (older := self._channels.pop(rank, None)) is not None:
            await older.aclose()
        if self._round is not None:  # too late: the run goes on without it, and says so
            await new.aclose()
            return
        self._channels[rank], self._hellos[rank] = new, hello
        self._say(f"{self._name(rank)} is there ({len(self._hellos)} of {self._nnodes})")
        self._wake()
        why = await self._listen(rank, new)
        await new.aclose()
        if self._channels.get(rank) is new:
            del self._channels[rank]
            self._gone(rank, why)

    async def _prove(self, stream: SocketStream) -> tuple[Channel, Hello] | None:
        """A member's channel and hello; None for a stranger, or for one that had to make room."""
        address = str(stream.extra(SocketAttribute.remote_address, [""])[0])  # noqa: S610 (a socket's attribute; none after a reset)
        result = None
        with anyio.CancelScope() as scope:
            self._make_room(address)
            self._strangers.append((address, scope))
            try:
                with anyio.move_on_after(channel.LOST_AFTER):
                    new = await channel.accept(stream, self._token, self._generation)
                    hello = await new.receive()
                    if isinstance(hello, Hello) and hello.rank == new.rank and 0 <= hello.rank < self._nnodes:
                        result = new, hello
            finally:
                self._strangers = deque(entry for entry in self._strangers if entry[1] is not scope)
        return result

    def _make_room(self, address: str) -> None:
        same = [scope for source, scope in self._strangers if source == address]
        if len(same) >= STRANGERS_PER_ADDRESS:
            same[0].cancel()
        elif len(self._strangers) >= STRANGERS:
            self._strangers[0][1].cancel()

    async def _listen(self, rank: int, one: Channel) -> str:
        """Take a member's messages until its connection ends; why it ended."""
        async with anyio.create_task_group() as group:
            group.start_soon(one.heartbeat)
            why = "its connection ended"
            try:
                while True:
                    self._take(rank, await one.receive())
            except (Closed, NotAuthentic) as error:
                why = str(error)
            group.cancel_scope.cancel()
        return why

    def _take(self, rank: int, message: Message) -> None:
        this = self._round
        match message:
            case Alive(round=number, stage=stage) if this is not None and number == this.start.round:
                this.stages[rank] = stage
            case Result(round=number) if this is not None and number == this.start.round:
                this.results[rank] = message
            case Leaving():
                (self._left if this is None else this.left)[rank] = message
            case Ack():
                self._acks.add(rank)
            case _:
                return
        self._wake()

    def _gone(self, rank: int, why: str) -> None:
        if self._round is None:
            self._hellos.pop(rank, None)  # it may come back until the run starts
        elif rank not in self._acks:
            self._round.lost[rank] = why
        self._wake()

    # --- small things

    def _name(self, rank: int) -> str:
        hello = self._hellos.get(rank)
        return f"rank {rank} ({hello.pod} on {hello.node})" if hello is not None else f"rank {rank}"

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def _next_news(self) -> None:
        await self._news.wait()
