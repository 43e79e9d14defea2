"""Frames: a length, the sender's rank, a MAC, a message. Pure: bytes in, bytes out.

The MAC (HMAC-SHA256 with the roster's token) covers the direction, the gang's generation, a nonce
from each side of this one connection, which leader of the generation it is (the first, or which of
its successors), the sender's rank, a counter and the message: a frame cannot be replayed, on this
connection or another, reflected, or carried into another generation or to another leader.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from typing import Final

MAX_MESSAGE: Final = 64 * 1024
NONCE_SIZE: Final = 16

_MAGIC: Final = b"PFGANG\x00\x02"  # the last byte is the version
GREETING_SIZE: Final = len(_MAGIC) + NONCE_SIZE
_HEADER: Final = struct.Struct(">II32s")
HEADER_SIZE: Final = _HEADER.size
_CONTEXT: Final = struct.Struct(">cQIIQI")


class NotAuthentic(Exception):
    """The other side is not a member of this gang's generation, or speaks something else."""


def greeting(nonce: bytes) -> bytes:
    """The first bytes of either side, unauthenticated: they bring the nonce."""
    return _MAGIC + nonce


def nonce_of(data: bytes) -> bytes:
    """Raises :class:`NotAuthentic`."""
    if not data.startswith(_MAGIC):
        raise NotAuthentic("it does not speak this protocol")
    return data[len(_MAGIC) :]


@dataclass(frozen=True, slots=True)
class Session:
    """What both ends of one connection know."""

    token: str
    generation: int
    leader_nonce: bytes
    member_nonce: bytes
    place: int = 0
    """The leader's, among those who may lead this generation."""

    def mac(self, *, by_leader: bool, rank: int, counter: int, payload: bytes) -> bytes:
        """The SHA-256 HMAC of one message, over direction, sender, place and both nonces."""
        context = _CONTEXT.pack(
            b"L" if by_leader else b"M", self.generation, self.place, rank, counter, len(payload)
        )
        nonces = self.leader_nonce + self.member_nonce
        return hmac.digest(self.token.encode(), context + nonces + payload, hashlib.sha256)


@dataclass(frozen=True, slots=True)
class Header:
    """What precedes a payload: its length in bytes, the sender's rank, the HMAC."""

    length: int
    rank: int
    mac: bytes

    @classmethod
    def read(cls, data: bytes, most: int) -> Header:
        """Raises :class:`NotAuthentic` for a length of nothing or of more than ``most`` bytes."""
        header = cls(*_HEADER.unpack(data))
        if not 0 < header.length <= most:
            raise NotAuthentic(f"a frame of {header.length} bytes")
        return header


class Sealer:
    """Makes the frames of one direction."""

    def __init__(self, session: Session, *, by_leader: bool, rank: int) -> None:
        self._session, self._by_leader, self._rank = session, by_leader, rank
        self._counter = 0

    def seal(self, payload: bytes) -> bytes:
        """One frame; counts on. Raises ValueError for an empty payload or above ``MAX_MESSAGE``."""
        if not 0 < len(payload) <= MAX_MESSAGE:
            raise ValueError(f"a message of {len(payload)} bytes; 1 to {MAX_MESSAGE} can be sent")
        mac = self._session.mac(
            by_leader=self._by_leader, rank=self._rank, counter=self._counter, payload=payload
        )
        self._counter += 1
        return _HEADER.pack(len(payload), self._rank, mac) + payload


class Opener:
    """Checks frames of the other direction. ``rank`` is fixed by the first authentic one."""

    def __init__(self, session: Session, *, by_leader: bool) -> None:
        self._session, self._by_leader = session, by_leader
        self._counter = 0
        self.rank: int | None = None

    def open(self, header: Header, payload: bytes) -> bytes:
        """The message. Raises :class:`NotAuthentic`."""
        expected = self._session.mac(
            by_leader=self._by_leader, rank=header.rank, counter=self._counter, payload=payload
        )
        if not hmac.compare_digest(expected, header.mac):
            raise NotAuthentic("a frame that our token did not make")
        if self.rank is not None and header.rank != self.rank:
            raise NotAuthentic(f"rank {header.rank} on the connection of rank {self.rank}")
        self._counter += 1
        self.rank = header.rank
        return payload
