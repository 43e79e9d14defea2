"""The leader: rank 0's parent listens, starts rounds, and tells every member the one verdict.

It does not measure: rank 0 is a member like the others and connects to its own leader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import anyio
from anyio.abc import SocketAttribute, SocketListener, SocketStream, TaskGroup
from preflight_proto.check import Inconclusive
from preflight_proto.roster import Roster

from . import channel
from .channel import Channel, Closed
from .frames import NotAuthentic
from .messages import Ack, Alive, Hello, Leaving, Message, Open, Opened, Probe, Result, Start, VerdictMessage
from .rounds import ProbeRound, Probes, Round

__all__ = ["Leader", "Next", "Rounds"]

STRANGERS: Final = 256
STRANGERS_PER_ADDRESS: Final = 8
"""Connections that have not proven themselves yet. Beyond that the oldest goes: a member needs two round trips, no more."""
SETTLE: Final = 3.0
"""Seconds to hear the others once one member has failed: who fell over whom is then in the reports."""
STALLED_AFTER: Final = 30.0
"""Seconds in which no rank gets further once all communicators work, and then it hangs."""
PROBE_STALLED_AFTER: Final = 15.0
"""The same for a probe, which has one neighbour's speed and not that of the slowest of all."""
STALL_SHARE: Final = 0.5
"""Of the time that a launch or a probe has, where that is less."""
ACK_WITHIN: Final = 5.0


Rounds = list[Round | ProbeRound]
Next = Callable[[Mapping[int, Hello], Rounds], Start | Probes | VerdictMessage]
"""What to do after the rounds so far: a launch, probes, or the end. Called with no rounds once every member has come."""


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
        self._round: Round | ProbeRound | None = None
        self._left: dict[int, Leaving] = {}
        self._acks: set[int] = set()
        self._news = anyio.Event()

    async def lead(
        self, hello_within: float, launch_within: Callable[[Start], tuple[float, float]], step: Next
    ) -> None:
        """The whole way; returns when every member that can be reached has taken the verdict.

        ``hello_within``: seconds to wait for the members. ``launch_within`` is asked as a launch starts, and gives the
        seconds until every worker must be ready and until it must be over. Raises :class:`Inconclusive` ``PORT_TAKEN``.
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
            verdict = await self._conduct(hello_within, launch_within, step)
            await self._tell(verdict)
            group.cancel_scope.cancel()

    async def _conduct(
        self, hello_within: float, launch_within: Callable[[Start], tuple[float, float]], step: Next
    ) -> VerdictMessage:
        with anyio.move_on_after(hello_within):
            while len(self._hellos) < self._nnodes and not self._left:
                await self._next_news()
        if self._left or len(self._hellos) < self._nnodes:
            return self._incomplete(hello_within)
        rounds: Rounds = []
        while True:
            what = step(self._hellos, rounds)
            if isinstance(what, VerdictMessage):
                return what
            if isinstance(what, Probes):
                self._round = probing = ProbeRound(what)
                rounds.append(probing)
                await self._probe(probing)
                continue
            self._round = launched = Round(what)
            rounds.append(launched)
            ready_within, over_within = launch_within(what)
            await self._broadcast(what)
            await self._collect(launched, ready_within, over_within)

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
        patience = min(STALL_SHARE * over_within, STALLED_AFTER)
        progress = _Progress()
        settled = None
        while len(this.results) < self._nnodes:
            if this.left:
                return
            now = anyio.current_time()
            if this.troubled and settled is None:
                settled = now + SETTLE
            everyone_ready = all(this.is_ready(rank) for rank in range(self._nnodes))
            end = started + (over_within if everyone_ready else min(ready_within, over_within))
            if everyone_ready:
                end = min(end, progress.since(this, range(self._nnodes)) + patience)
            end = end if settled is None else min(end, settled)
            if now >= end:
                return
            with anyio.move_on_after(min(end - now, 1.0)):
                await self._next_news()

    async def _probe(self, this: ProbeRound) -> None:
        """All probes of one round at the same time; each until its reports are in, or no better ones can be expected."""
        order, started = this.order, anyio.current_time()
        for group in order.groups:
            await self._order(group[0], Open(order.round, order.fresh))
        asked: set[int] = set()
        spoilt: dict[int, float] = {}
        progress = [_Progress() for _ in order.groups]
        while not this.left:
            for index, group in enumerate(order.groups):
                held = this.opened.get(group[0])
                if index not in asked and held is not None and held.trouble is None:
                    asked.add(index)
                    for rank in group:
                        await self._order(rank, _probe(order, index, rank, held))
                if this.spoilt(group):
                    spoilt.setdefault(index, anyio.current_time())
            now = anyio.current_time()
            end = max(
                _ends(this, index, started, spoilt.get(index), progress[index]) for index in range(len(order.groups))
            )
            if now >= end:
                return
            with anyio.move_on_after(min(end - now, 1.0)):
                await self._next_news()

    async def _order(self, rank: int, message: Message) -> None:
        if (one := self._channels.get(rank)) is not None:
            await self._send(one, message)

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
            try:
                one = await self._prove(stream)
            except Exception:  # whatever it is: it came from somebody who has proven nothing
                one = None
            # A member that comes once the run has begun is too late: the run goes on without it, and says so.
            if one is not None and self._round is None:
                await self._hold(*one)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(stream)

    async def _hold(self, new: Channel, hello: Hello) -> None:
        """A member's connection, to its end."""
        rank = hello.rank
        if (older := self._channels.pop(rank, None)) is not None:
            await older.aclose()
        self._channels[rank], self._hellos[rank] = new, hello
        self._say(f"{self._name(rank)} is there ({len(self._hellos)} of {self._nnodes})")
        self._wake()
        why = await self._listen(rank, new)
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
            case Alive(round=number, stage=stage) if this is not None and number == this.number:
                this.stages[rank] = stage
            case Result(round=number) if this is not None and number == this.number:
                this.results[rank] = message
            case Opened(round=number) if isinstance(this, ProbeRound) and number == this.number:
                this.opened[rank] = message
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
        return hello.who if hello is not None else f"rank {rank}"

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def _next_news(self) -> None:
        await self._news.wait()


def _probe(order: Probes, index: int, rank: int, held: Opened) -> Probe:
    """One member's part in one probe."""
    return Probe(
        round=order.round,
        index=index,
        base=order.bases[rank],
        world=order.worlds[index],
        host=held.address,
        port=held.port,
        backend=order.backend,
        size=order.size,
        iterations=order.iterations,
        warmup=order.warmup,
        init=order.init,
        timeout=order.timeout,
        fresh=order.fresh,
        op=order.op,
        detail=index in order.detail,
    )


def _ends(this: ProbeRound, index: int, started: float, spoilt: float | None, progress: _Progress) -> float:
    """Until when to wait for one probe."""
    group = this.order.groups[index]
    if all(rank in this.results for rank in group):
        return started
    patience = min(STALL_SHARE * this.order.timeout, PROBE_STALLED_AFTER)
    if all(this.is_ready(rank) for rank in group):
        end = min(started + this.order.timeout, progress.since(this, group) + patience)
    else:
        end = started + this.order.init
    return end if spoilt is None else min(end, spoilt + SETTLE)


class _Progress:
    """When some members were last seen to get further."""

    def __init__(self) -> None:
        self._seen: object = None
        self._at = 0.0

    def since(self, this: Round | ProbeRound, ranks: Iterable[int]) -> float:
        now = [(this.stages.get(rank), rank in this.results) for rank in ranks]
        if now != self._seen:
            self._seen, self._at = now, anyio.current_time()
        return self._at
