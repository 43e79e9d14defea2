"""The leader: rank 0's parent listens, starts rounds, and sends every member the one verdict.

It does not measure: rank 0 is a member like the others and connects to its own leader. When it is
lost another member leads; see :mod:`.succession`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping
from typing import Final

import anyio
import anyio.lowlevel
import msgspec
from preflight_proto.roster import Roster

from ..budget import Budget
from . import succession
from .frames import MAX_MESSAGE
from .hub import BURST, Hub
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
    RankReport,
    Retained,
    StoreOrder,
    VerdictMessage,
    encode,
    few,
    fitting,
)
from .rounds import LaunchRound, ProbeRound, Probes, Wait

ACK_WITHIN: Final = 5.0
"""Seconds; in a large gang as long as a member may be silent."""
HELD_WITHIN: Final = 2.0
"""Seconds for those who may follow to hold the verdict; in a large gang two heartbeats."""
ANSWERS_WITHIN: Final = 1.0
"""Seconds for a member that left to show whether it leads by now."""


Rounds = list[LaunchRound | ProbeRound]
Next = Callable[[Mapping[int, Hello], Rounds], LaunchOrder | Probes | VerdictMessage]
"""What to do after the rounds so far: a launch, probes, or the end. No rounds: all have come."""


class Leader:
    """One gang's leader. ``say`` prints a line to the log. ``pace``: None for that of a gang of
    this size. ``place``: among those who may lead, 0 for rank 0.
    """

    def __init__(
        self,
        roster: Roster,
        address: str,
        say: Callable[[str], None],
        pace: HeartbeatPace | None = None,
        place: int = 0,
    ) -> None:
        assert roster.nnodes is not None
        assert roster.control_port is not None
        self._address, self._port, self._nnodes = address, roster.control_port, roster.nnodes
        self._pace = pace or HeartbeatPace.of(self._nnodes)
        self._leaders, self._place = succession.leaders(roster), place
        self._after = {leader.rank for leader in self._leaders[place + 1 :]}
        """Ranks that may follow this leader."""
        self._hub = Hub(roster, self._pace, self, place)
        self._say = say
        self._hellos: dict[int, Hello] = {}
        self._round: LaunchRound | ProbeRound | None = None
        self._waits: dict[int, Wait] = {}
        self._changed: set[Wait] = set()
        self._left: dict[int, Leaving] = {}
        self._lost: dict[int, str] = {}
        self._acks: set[int] = set()
        self._kept: set[int] = set()
        self._fled: set[int] = set()
        self._held: VerdictMessage | None = None
        self._lost_leader = ""
        """In words, where the run had begun under another one."""
        self._verdict: VerdictMessage | None = None
        self._news = anyio.Event()

    async def lead(self, hello_within: float, step: Next) -> None:
        """The whole way; returns when every member that can be reached has taken the verdict.

        ``hello_within``: seconds to wait for the members. Raises :class:`Inconclusive`
        ``PORT_TAKEN``.
        """
        async with self._hub.open(self._address, self._port):
            until = anyio.current_time() + succession.GATHERS * self._pace.lost_after
            verdict = None
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch_successors, group.cancel_scope)
                verdict = await self._conduct(hello_within, step)
                group.cancel_scope.cancel()
            if verdict is None or await self._deposed():
                self._say("another member leads by now; this one follows it")
                await self._hub.broadcast(Deposed("another member leads by now"))
                return
            await self._hold(verdict)
            await self._announce(verdict)
            if self._begun:
                await self._linger(until)

    async def _conduct(self, hello_within: float, step: Next) -> VerdictMessage:
        with anyio.move_on_after(hello_within):
            while len(self._hellos) < self._nnodes and not self._left and not self._begun:
                await self._news.wait()
        if self._begun:
            return await self._concluded()
        if self._left or len(self._hellos) < self._nnodes:
            return self._incomplete(hello_within)
        rounds: Rounds = []
        while True:
            what = step(self._hellos, rounds)
            if isinstance(what, VerdictMessage):
                return what
            if isinstance(what, Probes):
                self._round = probing = ProbeRound(what)
                self._waits = {}
                rounds.append(probing)
                await self._pause(probing)
                began = anyio.current_time()
                await self._probe(probing)
                probing.at = anyio.current_time()
                probing.took = probing.at - began
                continue
            self._round = launched = LaunchRound(what)
            rounds.append(launched)
            everyone, started, over = range(self._nnodes), anyio.current_time(), what.within
            within = min(Budget(what.allowed).launch, over)
            wait = Wait(launched, everyone, started, self._pace, within=within, over=over)
            self._waits = dict.fromkeys(everyone, wait)
            own = self._hellos[self._leaders[self._place].rank]
            leader = f"{own.pod} on {own.node}"
            await self._hub.broadcast(msgspec.structs.replace(what, leader=leader))
            await self._collect(launched, wait)

    @property
    def _begun(self) -> bool:
        """Whether the run had begun under an earlier leader."""
        return self._lost_leader != ""

    async def _concluded(self) -> VerdictMessage:
        """Of a run that another has led: what that had decided, or that it was lost."""
        everyone = {*range(self._nnodes)} - {leader.rank for leader in self._leaders[: self._place]}
        with anyio.move_on_after(succession.GATHERS * self._pace.lost_after):
            while not everyone <= self._hellos.keys():
                await self._news.wait()
        if self._held is not None:
            return self._held
        by = self._leaders[self._place].rank
        return succession.concluded(self._lost_leader, self._nnodes, by, self._hellos)

    async def _linger(self, until: float) -> None:
        """Be there for members that come late: they get the same verdict."""
        with anyio.move_on_after(until - anyio.current_time()):
            while len(self._acks) < self._nnodes:
                await self._news.wait()

    async def _watch_successors(self, conducting: anyio.CancelScope) -> None:
        """Nothing is decided any more once another member leads."""
        while True:
            await anyio.sleep(self._pace.interval)
            if self._fled and await self._deposed():
                conducting.cancel()

    async def _deposed(self) -> bool:
        """Whether one of those who may follow, and who have left this leader, leads by now. They
        did while this process was stopped, or cut off.
        """
        deposed = False

        async def ask(address: str) -> None:
            nonlocal deposed
            with anyio.move_on_after(ANSWERS_WITHIN):
                try:
                    stream = await anyio.connect_tcp(address, self._port, local_host=self._address)
                except OSError:
                    return
                deposed = True
                await anyio.aclose_forcefully(stream)

        async with anyio.create_task_group() as group:
            for leader in self._leaders:
                if leader.rank in self._fled & self._after:
                    group.start_soon(ask, leader.address)
        return deposed

    def _incomplete(self, waited: float) -> VerdictMessage:
        if self._left:
            _, leaving = min(self._left.items())
            return VerdictMessage("inconclusive", leaving.code, leaving.reason)
        missing = few([str(rank) for rank in range(self._nnodes) if rank not in self._hellos])
        here = few([hello.who for _, hello in sorted(self._hellos.items())]) or "nobody"
        why = f"rank {missing} of {self._nnodes} never reached the leader {self._address}:{self._port} within {waited:.0f} s (there: {here}); is its check running, and may the pods reach each other?"
        return VerdictMessage("inconclusive", "PEER_MISSING", why)

    async def _collect(self, this: LaunchRound, wait: Wait) -> None:
        """Until all reports are in, or no better ones can be expected."""
        started = anyio.current_time()
        while True:
            now = anyio.current_time()
            if not wait.unready and wait.troubled_at is None and not this.left:
                this.ready_after = this.ready_after or now - started
            if not wait.unheard or this.left or now >= wait.until:
                return
            with anyio.move_on_after(wait.until - now):
                await self._news.wait()

    async def _pause(self, this: ProbeRound) -> None:
        """The wait before a round, unless the gang is broken meanwhile."""
        with anyio.move_on_after(this.order.step.wait):
            while not this.left and not this.lost:
                await self._news.wait()

    async def _probe(self, this: ProbeRound) -> None:
        """All probes of one round at once; each until no better reports can be expected."""
        order, started = this.order, anyio.current_time()
        openers = [group if order.renews else group[:1] for group in order.groups]
        init, timeout = order.common.init, order.common.timeout
        of_group = [
            Wait(this, group, started, self._pace, within=init, over=timeout)
            for group in order.groups
        ]
        index_of = {wait: index for index, wait in enumerate(of_group)}
        self._waits = {
            rank: wait for group, wait in zip(order.groups, of_group, strict=True) for rank in group
        }
        for rank in self._lost.keys() & self._waits.keys():
            this.lost[rank] = self._lost[rank]
            self._waits[rank].news(rank, started)
        for group in openers:
            for rank in group:
                own, first = order.orders[rank], rank == group[0]
                store = StoreOrder(order.round, own.fresh, own.hairpin, first, init)
                self._hub.send(rank, store)
        asked: set[int] = set()
        running = set(of_group)
        ends: list[tuple[float, int]] = []
        self._changed = set(of_group)
        while running and not this.left:
            changed, self._changed = self._changed, set()
            for wait in changed:
                index = index_of[wait]
                there = all(
                    rank in this.opened and this.opened[rank].trouble is None
                    for rank in openers[index]
                )
                if index not in asked and there:
                    asked.add(index)
                    within = started + timeout - anyio.current_time()
                    held = this.opened[order.groups[index][0]]
                    place = {"host": held.address, "port": held.port, "within": within}
                    for rank in order.groups[index]:
                        probe = msgspec.structs.replace(order.orders[rank], **place)
                        self._hub.send(rank, probe)
                heapq.heappush(ends, (wait.until, index))
            now = anyio.current_time()
            while ends and ends[0][0] <= now:
                wait = of_group[heapq.heappop(ends)[1]]
                if wait.until <= now:  # else its later end is among them, too
                    running.discard(wait)
            if running and not self._changed:
                with anyio.move_on_after(ends[0][0] - now):
                    await self._news.wait()

    async def _hold(self, verdict: VerdictMessage) -> None:
        """Those who may follow have the verdict before anybody acts: all tell the same."""
        for rank in sorted(self._after & self._hub.members.keys()):
            self._hub.send(rank, Held(fitting(verdict, rank)))
        with anyio.move_on_after(max(HELD_WITHIN, 2 * self._pace.interval)):
            while not (self._after & self._hub.members.keys()) <= self._kept:
                await self._news.wait()

    async def _announce(self, verdict: VerdictMessage) -> None:
        self._verdict = verdict
        within = max(ACK_WITHIN, self._pace.lost_after)
        with anyio.move_on_after(within) as patience:
            for ranks in (self._hub.members.keys() - self._after, self._after):
                await self._send_verdict(ranks, verdict)
                while not (ranks & self._hub.members.keys()) <= self._acks:
                    await self._news.wait()
        if patience.cancelled_caught:
            await self._send_verdict(self._after - self._acks, verdict)
        if silent := sorted(self._hub.members.keys() - self._acks):
            names = few([self._hellos[rank].who for rank in silent])
            self._say(f"{names} did not confirm the verdict within {within:g} s")

    async def _send_verdict(self, ranks: Collection[int], verdict: VerdictMessage) -> None:
        """Who may follow this leader hears it last: until then there is somebody who can tell it in
        this one's place.
        """
        payload = encode(verdict)
        for number, rank in enumerate(ranks):
            fits = len(payload) <= MAX_MESSAGE
            self._hub.send(rank, payload if fits else fitting(verdict, rank))
            if number % BURST == BURST - 1:
                await anyio.lowlevel.checkpoint()

    # --- a Crowd

    def admits(self, hello: Hello) -> bool:
        """Whether the run has not begun: it goes on without a member that is late, and says so."""
        return self._round is None

    def joined(self, hello: Hello) -> None:
        """A member has said hello; where a verdict is there already, it gets it."""
        self._hellos[hello.rank] = hello
        self._fled.discard(hello.rank)
        if hello.standing is not None and not self._lost_leader:
            self._lost_leader = hello.standing.leader
        if self._verdict is not None:
            self._hub.send(hello.rank, fitting(self._verdict, hello.rank))
        self._say(f"{hello.who} is there ({len(self._hellos)} of {self._nnodes})")
        self._wake()

    def received(self, rank: int, message: Message) -> None:
        """A member's progress, report or acknowledgement. Those of earlier rounds are dropped."""
        this = self._round
        match message:
            case Alive(round=number, stage=stage) if this is not None and number == this.number:
                if this.stages.get(rank) == stage:
                    return
                this.stages[rank] = stage
            case RankReport(round=number) if this is not None and number == this.number:
                this.results[rank] = message
            case Opened(round=number) if isinstance(this, ProbeRound) and number == this.number:
                this.opened[rank] = message
            case Leaving():
                (self._left if this is None else this.left)[rank] = message
            case Held(verdict=verdict) if self._round is None:
                self._held = verdict
            case Retained():
                self._kept.add(rank)
            case Ack():
                self._acks.add(rank)
            case _:
                return
        self._moved(rank)

    def gone(self, rank: int, why: str) -> None:
        """A member is lost for this round, unless it has acknowledged the verdict."""
        if rank not in self._acks:
            self._fled.add(rank)
        if self._round is None:
            if self._verdict is None:
                self._hellos.pop(rank, None)  # it may come back until the run starts
        elif rank not in self._acks:
            self._round.lost[rank] = self._lost[rank] = why
        self._moved(rank)

    # --- small things

    def _moved(self, rank: int) -> None:
        if (wait := self._waits.get(rank)) is not None:
            wait.news(rank, anyio.current_time())
            self._changed.add(wait)
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()
