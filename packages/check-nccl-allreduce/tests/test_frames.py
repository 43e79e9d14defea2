"""Frames: only the token's holder, of this generation, on this connection, in this order."""

from __future__ import annotations

import pytest
from check_nccl_allreduce.control import frames
from check_nccl_allreduce.control.frames import Header, NotAuthentic, Opener, Sealer, Session
from check_nccl_allreduce.control.messages import (
    Ack,
    Hello,
    LaunchOrder,
    Message,
    VerdictMessage,
    decode,
    encode,
)
from hypothesis import given
from hypothesis import strategies as st

HERE = Session("token", 3, b"L" * 16, b"M" * 16)


def split(frame: bytes) -> tuple[Header, bytes]:
    return Header.read(frame[: frames.HEADER_SIZE], frames.MAX_MESSAGE), frame[frames.HEADER_SIZE :]


def member(session: Session = HERE, rank: int = 5) -> Sealer:
    return Sealer(session, by_leader=False, rank=rank)


def leader_reads(session: Session = HERE) -> Opener:
    return Opener(session, by_leader=False)


def test_what_is_sealed_is_opened_in_order() -> None:
    sealer, opener = member(), leader_reads()
    assert [opener.open(*split(sealer.seal(payload))) for payload in (b"a", b"bb", b"a")] == [
        b"a",
        b"bb",
        b"a",
    ]
    assert opener.rank == 5


@pytest.mark.parametrize(
    "other",
    [
        Session("another", 3, b"L" * 16, b"M" * 16),
        Session("token", 2, b"L" * 16, b"M" * 16),
        Session("token", 3, b"l" * 16, b"M" * 16),
        Session("token", 3, b"L" * 16, b"m" * 16),
        Session("token", 3, b"L" * 16, b"M" * 16, place=1),
    ],
    ids=["token", "generation", "leader's nonce", "member's nonce", "another leader"],
)
def test_a_frame_of_another_session_is_refused(other: Session) -> None:
    with pytest.raises(NotAuthentic):
        leader_reads().open(*split(member(other).seal(b"hello")))


def test_a_frame_cannot_be_replayed() -> None:
    frame, opener = member().seal(b"hello"), leader_reads()
    opener.open(*split(frame))
    with pytest.raises(NotAuthentic):
        opener.open(*split(frame))


def test_frames_cannot_change_places() -> None:
    sealer = member()
    sealer.seal(b"first")
    with pytest.raises(NotAuthentic):
        leader_reads().open(*split(sealer.seal(b"second")))


def test_a_frame_cannot_be_sent_back() -> None:
    frame = Sealer(HERE, by_leader=True, rank=0).seal(b"start")
    with pytest.raises(NotAuthentic):
        leader_reads().open(*split(frame))


def test_another_rank_cannot_take_over_a_connection() -> None:
    opener = leader_reads()
    opener.open(*split(member().seal(b"hello")))
    intruder = member(rank=6)
    intruder.seal(b"for the counter")
    with pytest.raises(NotAuthentic, match="rank 6 on the connection of rank 5"):
        opener.open(*split(intruder.seal(b"result")))


@given(st.binary(min_size=frames.HEADER_SIZE, max_size=200))
def test_garbage_is_never_authentic(data: bytes) -> None:
    with pytest.raises(NotAuthentic):
        leader_reads().open(
            Header.read(data[: frames.HEADER_SIZE], frames.MAX_MESSAGE), data[frames.HEADER_SIZE :]
        )


@given(st.integers(min_value=0), st.binary(min_size=1, max_size=100))
def test_one_flipped_bit_is_refused(position: int, payload: bytes) -> None:
    frame = bytearray(member().seal(payload))
    position %= 8 * (len(frame) - 4)  # the length itself is checked by reading
    frame[4 + position // 8] ^= 1 << position % 8
    with pytest.raises(NotAuthentic):
        leader_reads().open(*split(bytes(frame)))


@pytest.mark.parametrize("length", [0, frames.MAX_MESSAGE + 1, 2**32 - 1])
def test_an_impossible_length_is_refused_before_it_is_read(length: int) -> None:
    header = length.to_bytes(4, "big") + bytes(frames.HEADER_SIZE - 4)
    with pytest.raises(NotAuthentic, match=f"a frame of {length} bytes"):
        Header.read(header, frames.MAX_MESSAGE)


def test_a_message_too_large_is_not_sent() -> None:
    with pytest.raises(ValueError, match="65537 bytes"):
        member().seal(bytes(frames.MAX_MESSAGE + 1))


@pytest.mark.parametrize(
    "message",
    [
        Hello(rank=1, pod="p", node="n", backend="nccl", workers=8),
        LaunchOrder(1, 29500, "nccl", 4096, 20, 5, 16, 270.0),
        VerdictMessage("passed", "OK", "fine.", 1.5, None),
        Ack(),
    ],
)
def test_messages_survive_the_wire(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=200))
def test_what_is_no_message_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode(data)


def test_the_largest_result_fits_a_frame() -> None:
    from check_nccl_allreduce.control.messages import RankReport

    result = RankReport(
        1, tuple(0.12345678901234567 + i for i in range(1000)), 1000, 1 << 40, "w" * 200
    )
    assert len(encode(result)) < frames.MAX_MESSAGE
