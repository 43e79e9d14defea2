"""The parents' channel over real TCP, leader and members in one process,
with measurements made up.
"""

from __future__ import annotations

import asyncio
import gc
import random
import selectors
import socket
import struct
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream
from check_nccl_allreduce.budget import GANG_SHARE
from check_nccl_allreduce.control import frames
from check_nccl_allreduce.control.hub import Hub
from check_nccl_allreduce.control.leader import Leader, Rounds
from check_nccl_allreduce.control.member import MemberSession, Work
from check_nccl_allreduce.control.messages import (
    Failure,
    HeartbeatPace,
    Hello,
    LaunchOrder,
    Message,
    Order,
    RankReport,
    RankStage,
    VerdictMessage,
    encode,
)
from preflight_proto.check import Inconclusive
from preflight_proto.roster import Roster

TOKEN = "secret"
PASSED = VerdictMessage("passed", "OK", "all fine.", 1.5, 2.0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def hello(rank: int) -> Hello:
    return Hello(rank=rank, pod=f"pod-{rank}", node=f"node-{rank}", backend="gloo", workers=1)


def start(number: int = 1, within: float = 20.0) -> LaunchOrder:
    allowed = within / GANG_SHARE
    return LaunchOrder(number, 29500, "gloo", 4096, 1, 0, 3, 10.0, within=within, allowed=allowed)


async def sound(order: Order, changed: Callable[[RankStage], None]) -> RankReport:
    changed(RankStage("ready"))
    return RankReport(order.round, (0.1,), 1)


class Idle(selectors.DefaultSelector):
    """Waits a tenth of the time that it is to wait, and counts the whole as ``passed``: what is
    under way between two sockets of this process has its time to arrive.
    """

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(None if timeout is None else timeout / 10)
        if not events:
            self.passed += max(0.0, timeout or 0.0)
        return events


class IdleTime(asyncio.SelectorEventLoop):
    """Its time passes only while it has nothing to do, and then ten times as fast: on a busy
    machine nobody in it is late.
    """

    def __init__(self) -> None:
        self.idle = Idle()
        super().__init__(self.idle)

    def time(self) -> float:
        return self.idle.passed

    @classmethod
    def stop_for(cls, seconds: float) -> None:
        """The whole process is stopped for so long."""
        running = asyncio.get_running_loop()
        assert isinstance(running, cls)
        running.idle.passed += seconds


@dataclass
class Gang:
    """A gang of ``size``; what its leader saw and said. ``patience``: seconds in which a leader
    must answer.
    """

    size: int = 3
    patience: float = 5.0
    port: int = field(default_factory=free_port)
    rounds: Rounds = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    verdicts: dict[int, VerdictMessage | Inconclusive] = field(default_factory=dict)

    def roster(self, rank: int, token: str = TOKEN, generation: int = 1) -> Roster:
        return Roster(
            v=1,
            pod_uid=f"uid-{rank}",
            generation=generation,
            epoch=1,
            answer="sealed",
            rank=rank,
            nnodes=self.size,
            master_addr="127.0.0.1",
            master_port=29500,
            control_port=self.port,
            token=token,
        )

    async def lead(
        self,
        *,
        hello_within: float = 10.0,
        over_within: float = 10.0,
        rounds: int = 1,
        pace: HeartbeatPace | None = None,
    ) -> None:
        def step(hellos: object, done: Rounds) -> LaunchOrder | VerdictMessage:
            self.rounds = done
            return start(len(done) + 1, over_within) if len(done) < rounds else PASSED

        leader = Leader(self.roster(0), "127.0.0.1", self.said.append, pace)
        await leader.lead(hello_within, step)

    async def member(
        self, rank: int, measure: Work = sound, pace: HeartbeatPace | None = None, **changes: Any
    ) -> None:
        one = MemberSession(
            self.roster(rank, **changes),
            hello(rank),
            f"127.0.0.{rank + 1}",
            self.said.append,
            pace=pace,
        )
        try:
            self.verdicts[rank] = await one.take_part(self.patience, measure)
        except Inconclusive as error:
            self.verdicts[rank] = error

    def run(self, *parts: Callable[[], Coroutine[Any, Any, None]], real_time: bool = False) -> None:
        """All of these at once; ``real_time``: some are in another thread, or process."""

        async def main() -> None:
            with anyio.fail_after(600):
                async with anyio.create_task_group() as group:
                    for part in parts:
                        group.start_soon(part)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("check_nccl_allreduce.control.rounds.SETTLE", 0.1)
            anyio.run(main, backend_options={} if real_time else {"loop_factory": IdleTime})

    def codes(self) -> dict[int, str]:
        return {rank: one.code for rank, one in sorted(self.verdicts.items())}


def test_forty_members_come_at_once() -> None:
    gang = Gang(size=40)
    gang.run(gang.lead, *[partial(gang.member, rank) for rank in range(40)])
    assert list(gang.verdicts.values()) == [PASSED] * 40


class Nobody:
    """Hears no member."""

    def admits(self, hello: Hello) -> bool:
        return False

    def joined(self, hello: Hello) -> None: ...

    def received(self, rank: int, message: Message) -> None: ...

    def gone(self, rank: int, why: str) -> None: ...


@pytest.mark.parametrize("turns", range(6))
def test_a_connection_that_is_let_in_as_the_leader_ends_is_closed(turns: int) -> None:
    gang = Gang()

    async def leave() -> None:
        hub = Hub(gang.roster(0), HeartbeatPace(), Nobody(), 0)

        def connect_after(turns: int) -> None:
            if turns:
                asyncio.get_running_loop().call_soon(connect_after, turns - 1)
            else:
                somebody.connect_ex(("127.0.0.1", gang.port))

        with socket.socket() as somebody:
            async with hub.open("127.0.0.1", gang.port):
                connect_after(turns)
            await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        anyio.run(leave)
        gc.collect()
    assert [str(one.message) for one in seen] == []


@pytest.mark.parametrize("turns", range(6))
def test_a_leader_that_is_cancelled_as_it_begins_to_listen_leaves_no_socket(turns: int) -> None:
    gang = Gang()

    async def begin() -> None:
        with anyio.CancelScope() as scope:
            cancelling = asyncio.create_task(cancel_after(turns, scope))
            async with Hub(gang.roster(0), HeartbeatPace(), Nobody(), 0).open(
                "127.0.0.1", gang.port
            ):
                await cancelling
                await anyio.sleep_forever()

    async def cancel_after(turns: int, scope: anyio.CancelScope) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        scope.cancel()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        anyio.run(begin)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_a_second_round_ends_the_first_ones_work() -> None:
    gang = Gang(size=2)
    ended = []

    async def stuck_once(order: Order, changed: Callable[[RankStage], None]) -> RankReport:
        if order.round == 1:
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(order.round)
        return RankReport(order.round, (0.1,), 1)

    async def fails_once(order: Order, changed: Callable[[RankStage], None]) -> RankReport:
        return RankReport(
            order.round, trouble=Failure("died", "RANK_DIED", "gone") if order.round == 1 else None
        )

    gang.run(
        lambda: gang.lead(rounds=2),
        lambda: gang.member(0, fails_once),
        lambda: gang.member(1, stuck_once),
    )
    assert ended == [1]
    assert gang.codes() == {0: "OK", 1: "OK"}
    assert [set(one.results) for one in gang.rounds] == [{0}, {0, 1}]


def test_a_process_that_was_stopped_takes_nobody_for_lost() -> None:
    gang, pace = Gang(size=3), HeartbeatPace(0.2)

    async def stops(order: Order, changed: Callable[[RankStage], None]) -> RankReport:
        if not gang.said.count("stopped"):
            gang.said.append("stopped")
            IdleTime.stop_for(pace.lost_after + 0.5)
        await anyio.sleep(pace.lost_after)
        return await sound(order, changed)

    gang.run(
        lambda: gang.lead(pace=pace),
        *[partial(gang.member, rank, stops, pace=pace) for rank in range(gang.size)],
    )
    assert list(gang.verdicts.values()) == [PASSED] * 3


def test_a_leader_without_its_members_names_the_missing() -> None:
    gang = Gang()
    gang.run(lambda: gang.lead(hello_within=0.5), lambda: gang.member(0), lambda: gang.member(2))
    assert gang.codes() == {0: "PEER_MISSING", 2: "PEER_MISSING"}
    verdict = gang.verdicts[0]
    assert isinstance(verdict, VerdictMessage)
    assert "rank 1 of 3 never reached the leader" in verdict.reason


def test_a_member_told_by_a_false_leader_does_not_believe_it() -> None:
    gang = Gang(size=2, patience=2.0)
    scopes: list[anyio.CancelScope] = []

    async def false_leader() -> None:
        async def answer(stream: SocketStream) -> None:
            session = frames.Session("not the token", 1, bytes(16), bytes(16))
            async with stream:
                await stream.send(frames.greeting(bytes(16)))
                await stream.send(
                    frames.Sealer(session, by_leader=True, rank=0).seal(encode(PASSED))
                )
                await anyio.sleep(0.1)

        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=gang.port)
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await listener.serve(answer)
        await listener.aclose()

    async def member() -> None:
        await gang.member(1)
        scopes[0].cancel()

    gang.run(false_leader, member)
    verdict = gang.verdicts[1]
    assert isinstance(verdict, Inconclusive)
    assert verdict.code == "PEER_MISSING"
    assert "a frame that our token did not make" in verdict.reason


# --- unauthenticated peers

Act = Callable[[SocketStream], Awaitable[None]]


async def silent(_: SocketStream) -> None:
    await anyio.sleep(0.1)


async def garbage(one: SocketStream) -> None:
    await one.send(random.randbytes(4096))


async def half_a_greeting(one: SocketStream) -> None:
    await one.send(frames.greeting(bytes(16))[:10])
    await anyio.sleep(0.1)


async def half_a_frame(one: SocketStream) -> None:
    await one.send(frames.greeting(bytes(16)) + b"\0\0\0\x40" + b"x" * 20)
    await anyio.sleep(0.1)


async def huge_length(one: SocketStream) -> None:
    await one.send(frames.greeting(bytes(16)) + b"\xff" * 4096)


async def http(one: SocketStream) -> None:
    await one.send(b"GET / HTTP/1.1\r\nHost: leader\r\n\r\n")


async def reset(one: SocketStream) -> None:
    raw = one.extra(anyio.abc.SocketAttribute.raw_socket)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def forged(token: str, generation: int, rank: int) -> Act:
    async def act(one: SocketStream) -> None:
        await one.send(frames.greeting(bytes(16)))
        nonce = b""
        while len(nonce) < frames.GREETING_SIZE:
            nonce += await one.receive(frames.GREETING_SIZE - len(nonce))
        session = frames.Session(token, generation, frames.nonce_of(nonce), bytes(16))
        await one.send(frames.Sealer(session, by_leader=False, rank=rank).seal(encode(hello(1))))
        await one.receive(1)

    return act


ACTS: dict[str, Act] = {
    "silent": silent,
    "garbage": garbage,
    "half a greeting": half_a_greeting,
    "half a frame": half_a_frame,
    "a huge length": huge_length,
    "http": http,
    "reset": reset,
    "another token": forged("not the token", 1, 1),
    "an old generation": forged(TOKEN, 0, 1),
    "a rank that is not its own": forged(TOKEN, 1, 2),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS.keys())
def test_a_stranger_keeps_nobody_out_and_changes_nothing(act: Act) -> None:
    gang = Gang(size=2)
    came = [0]
    gone = anyio.Event()

    async def stranger() -> None:
        while not any("(2 of 2)" in line for line in gang.said):
            try:
                async with await anyio.connect_tcp("127.0.0.1", gang.port) as one:
                    came[0] += 1
                    await act(one)
            except (
                OSError,
                anyio.BrokenResourceError,
                anyio.EndOfStream,
                anyio.ClosedResourceError,
            ):
                pass
            await anyio.sleep(0.01)
        gone.set()

    async def late() -> None:
        while came[0] < 5:
            await anyio.sleep(0.01)
        await gang.member(1)

    async def after_the_stranger(order: Order, changed: Callable[[RankStage], None]) -> RankReport:
        await gone.wait()
        return await sound(order, changed)

    gang.run(gang.lead, lambda: gang.member(0, after_the_stranger), stranger, late)
    assert list(gang.verdicts.values()) == [PASSED] * 2
    assert sum("is there" in line for line in gang.said) == 2


def test_a_port_in_use_is_inconclusive_and_named() -> None:
    gang = Gang()
    with socket.socket() as other:
        other.bind(("127.0.0.1", gang.port))
        other.listen()
        with pytest.raises(ExceptionGroup) as caught:
            gang.run(gang.lead)
    [error] = caught.value.exceptions
    assert isinstance(error, Inconclusive)
    assert (error.code, f"control port {gang.port} on 127.0.0.1" in error.reason) == (
        "PORT_TAKEN",
        True,
    )
