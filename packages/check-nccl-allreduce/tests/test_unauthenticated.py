"""Strangers on the control port and on the rendezvous port: they change no verdict and crash
nobody.
"""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta

import pytest
from allreduce_testing.gangs.gang import MUTANTS, TOKEN, WITHIN, GangUnderTest
from check_nccl_allreduce.control import frames
from needs import needs_torch

pytestmark = needs_torch

Act = Callable[[socket.socket], None]


def silent(_: socket.socket) -> None:
    time.sleep(0.5)


def garbage(one: socket.socket) -> None:
    one.sendall(random.randbytes(4096))


def half_a_frame(one: socket.socket) -> None:
    one.sendall(frames.greeting(bytes(16)) + b"\0\0\0\x40" + b"x" * 20)
    time.sleep(0.5)


def huge_length(one: socket.socket) -> None:
    one.sendall(frames.greeting(bytes(16)) + b"\xff" * 4096)


def wrong_token(one: socket.socket) -> None:
    one.sendall(frames.greeting(bytes(16)))
    nonce = frames.nonce_of(one.recv(frames.GREETING_SIZE, socket.MSG_WAITALL))
    session = frames.Session("not-" + TOKEN, 1, nonce, bytes(16))
    hello = b'{"type":"hello","rank":1,"pod":"evil","node":"evil","backend":"gloo","workers":1}'
    one.sendall(frames.Sealer(session, by_leader=False, rank=1).seal(hello))
    one.recv(1)


def http(one: socket.socket) -> None:
    one.sendall(b"GET / HTTP/1.1\r\nHost: leader\r\n\r\n")


def reset(one: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@contextmanager
def unauthenticated(port: int, *acts: Act, pause: float = 0.02) -> Iterator[list[int]]:
    """Connect to ``port`` again and again, each time with the next act;
    yields how often it worked.
    """
    over, worked = threading.Event(), [0]

    def go() -> None:
        number = 0
        while not over.is_set():
            with (
                suppress(OSError, frames.NotAuthentic),
                socket.create_connection(("127.0.0.1", port), 1) as one,
            ):
                one.settimeout(2)
                worked[0] += 1
                acts[number % len(acts)](one)
            number += 1
            over.wait(pause)

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield worked
    finally:
        over.set()
        thread.join()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_unauthenticated_peers_on_the_control_port_of_a_real_check_change_nothing(
    gang: GangUnderTest,
) -> None:
    gang.start(0)
    gang.seal(0)
    gang.members[0].said("is there (1 of 2)")
    with unauthenticated(
        gang.control_port, garbage, half_a_frame, huge_length, wrong_token, http, reset
    ) as worked:
        until(lambda: worked[0] >= 6)
        gang.start(1)
        gang.seal(1)
        ends = gang.all_ended()
    assert [(end.exit_code, end.result.code) for end in ends] == [(0, "OK")] * 2
    assert "evil" not in ends[0].output


def test_a_flood_of_connections_keeps_no_member_out(gang: GangUnderTest) -> None:
    gang.start(0)
    gang.seal(0)
    gang.members[0].said("is there (1 of 2)")
    with ExitStack() as stack:
        held = []
        for _ in range(400):
            one = stack.enter_context(socket.socket())
            one.settimeout(5)
            one.connect(("127.0.0.1", gang.control_port))
            held.append(one)
        stack.enter_context(unauthenticated(gang.control_port, silent, garbage, pause=0))
        gang.start(1)
        gang.seal(1)
        ends = gang.all_ended()
    assert [end.result.code for end in ends] == ["OK", "OK"]


def test_unauthenticated_peers_during_the_run_change_nothing_either(gang: GangUnderTest) -> None:
    gang.start(0, 1, NCCL_ALLREDUCE_ITERATIONS="400")
    gang.seal()
    gang.members[0].said("the communicator works")
    with unauthenticated(gang.control_port, garbage, wrong_token, huge_length) as worked:
        ends = gang.all_ended()
    assert worked[0] > 0
    assert [end.result.code for end in ends] == ["OK", "OK"]


@pytest.mark.parametrize("act", [silent, garbage, http, reset])
def test_a_stranger_on_the_rendezvous_port_changes_nothing(gang: GangUnderTest, act: Act) -> None:
    gang.start(0)
    gang.seal(0)
    with unauthenticated(gang.master_port, act) as worked:
        late = gang.home / "late"  # rank 0's store is open meanwhile
        gang.start(1, code=MUTANTS, MUTANT="slow", MUTANT_UNTIL=str(late))
        gang.seal(1)
        until(lambda: worked[0] >= 3)
        late.touch()
        ends = gang.all_ended()
    assert [(end.exit_code, end.result.code) for end in ends] == [(0, "OK")] * 2


@contextmanager
def vandal(port: int) -> Iterator[threading.Event]:
    """Overwrite, in the store on ``port``, the keys that torchrun uses, again and again; yields
    whether they all were once, or the store ended over the first of them.
    """
    from torch.distributed import TCPStore

    over, wrote = threading.Event(), threading.Event()
    names = ("role_info/0", "role_info/1", "assigned_ranks/0", "assigned_ranks/1")
    prefixes = ("", "none/", "/none/", "default/")

    def go() -> None:
        while not over.wait(0.01):
            with suppress(OSError, RuntimeError):
                socket.create_connection(("127.0.0.1", port)).close()  # else torch tries for long
                store = TCPStore(
                    "127.0.0.1",
                    port,
                    is_master=False,
                    timeout=timedelta(seconds=1),
                    use_libuv=False,
                )
                written = False
                try:
                    while not over.is_set():
                        for prefix, name in itertools.product(prefixes, names):
                            store.set(f"{prefix}torchelastic/{name}", "nonsense")
                            written = True
                        wrote.set()
                except RuntimeError:
                    if written:
                        wrote.set()

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield wrote
    finally:
        over.set()
        thread.join()


def test_a_stranger_who_speaks_the_stores_language_cannot_find_our_keys(
    gang: GangUnderTest,
) -> None:
    late = gang.home / "late"  # rank 0 waits for the others meanwhile
    gang.start(0, 1, code=MUTANTS, MUTANT="slow", MUTANT_UNTIL=str(late))
    with vandal(gang.master_port) as wrote:
        gang.seal()
        assert wrote.wait(WITHIN)
        late.touch()
        ends = gang.all_ended()
    assert "leader: round 2" not in ends[0].output
    assert [end.result.code for end in ends] == ["OK", "OK"]
