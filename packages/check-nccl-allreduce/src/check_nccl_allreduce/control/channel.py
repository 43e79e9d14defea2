"""One authenticated connection between two parents.

A callback protocol and no task for each connection: a leader has thousands of them, looks after all
with one timer, and is woken only by what a member says.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from typing import Final, Protocol

import anyio

from . import frames
from .frames import NotAuthentic
from .messages import HeartbeatPace, Message, decode, encode

FIRST_MESSAGE: Final = 8 * 1024
"""Bytes that a peer may send before it has proven that it holds the token."""
LATE: Final = 0.05
"""Seconds by which any process on a busy machine is late."""


class Awake:
    """A clock that stands still while this process is stopped, or has no processor: what it has
    slept through says nothing of others.
    """

    def __init__(self) -> None:
        self._missed = 0.0

    def now(self) -> float:
        """Seconds of the event loop's clock without those in which this process did not run."""
        return anyio.current_time() - self._missed

    async def sleep(self, seconds: float) -> None:
        """As :func:`anyio.sleep`; by how much later it returns has been missed."""
        due = anyio.current_time() + seconds
        await anyio.sleep(seconds)
        late = anyio.current_time() - due
        if late > LATE:
            self._missed += late


class ChannelOwner(Protocol):
    """Who has a channel, and hears what happens on it. Nothing that these raise gets lost, but it
    ends the channel.
    """

    def came(self, channel: ControlChannel) -> None:
        """A connection is there; its other side has proven nothing yet."""

    def heard(self, channel: ControlChannel, message: Message) -> None:
        """A message, authentic and in order."""

    def over(self, channel: ControlChannel, why: str) -> None:
        """It ended, once, and for this reason."""


class ControlChannel(asyncio.Protocol):
    """Messages both ways. ``awake``: what the other side's silence is measured by; ``rank``: this
    side's own; ``leader``: whether it is the leader's side; ``place``: see
    :class:`.frames.Session`.
    """

    def __init__(
        self,
        owner: ChannelOwner,
        awake: Awake,
        token: str,
        generation: int,
        *,
        leader: bool,
        rank: int,
        place: int = 0,
    ) -> None:
        self._owner, self._awake, self._token, self._generation = owner, awake, token, generation
        self._leader, self._own, self._place = leader, rank, place
        self._nonce = secrets.token_bytes(frames.NONCE_SIZE)
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._header: frames.Header | None = None
        self._sealer: frames.Sealer | None = None
        self._opener: frames.Opener | None = None
        self._waiting: list[bytes] = []
        self._heard_at = self._awake.now()
        self._blocked_at: float | None = None
        self.why: str | None = None
        """Why it is over; None while it is not."""

    @property
    def rank(self) -> int | None:
        """The other side's rank; None before its first frame."""
        return self._opener.rank if self._opener is not None else None

    @property
    def address(self) -> str:
        """The other side's."""
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""  # none after a reset

    def send(self, message: Message | bytes) -> None:
        """Send a message, or the bytes of one; nothing once it is over. It never waits:
        :meth:`check` ends what takes nothing.
        """
        payload = message if isinstance(message, bytes) else encode(message)
        if self._sealer is None:
            self._waiting.append(payload)
        elif self.why is None:
            assert self._transport is not None
            self._transport.write(self._sealer.seal(payload))

    def check(self, pace: HeartbeatPace) -> None:
        """End it where the other side has been silent, or has taken nothing, for too long."""
        now = self._awake.now()
        if now - self._heard_at > pace.lost_after:
            what = "no greeting within" if self._opener is None else "no sign of life for"
            self.end(f"{what} {pace.lost_after:g} s")
        elif self._blocked_at is not None and now - self._blocked_at > pace.lost_after:
            self.end(f"it took nothing for {pace.lost_after:g} s")

    def end(self, why: str) -> None:
        """Abort the connection, once; ``why`` is for the log and the other members."""
        if self.why is not None:
            return
        self.why = why
        if self._transport is not None:
            self._transport.abort()
        self._owner.over(self, why)

    def finish(self, why: str) -> None:
        """As :meth:`end`, but what was sent goes out first, to a side that takes it."""
        if self.why is None and self._transport is not None:
            self.why = why
            self._transport.close()
            self._owner.over(self, why)

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the greeting; asyncio calls this."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(0)  # pause_writing means: it has not taken all
        transport.write(frames.greeting(self._nonce))
        self._owner.came(self)

    def data_received(self, data: bytes) -> None:
        """Take whole frames from what has arrived; asyncio calls this."""
        self._buffer += data
        try:
            while self.why is None and self._step():
                pass
        except NotAuthentic as error:
            self.end(str(error))

    def pause_writing(self) -> None:
        """Note since when the other side takes nothing; asyncio calls this."""
        self._blocked_at = self._awake.now()

    def resume_writing(self) -> None:
        """The other side has taken everything; asyncio calls this."""
        self._blocked_at = None

    def connection_lost(self, exc: Exception | None) -> None:
        """End; asyncio calls this."""
        self.end("its connection ended")

    def _step(self) -> bool:
        """Take what is next from the buffer; False when it is not all there yet."""
        if self._opener is None:
            if len(self._buffer) < frames.GREETING_SIZE:
                return False
            self._greeted(frames.nonce_of(self._cut(frames.GREETING_SIZE)))
            return True
        if self._header is None:
            if len(self._buffer) < frames.HEADER_SIZE:
                return False
            most = frames.MAX_MESSAGE if self._opener.rank is not None else FIRST_MESSAGE
            self._header = frames.Header.read(self._cut(frames.HEADER_SIZE), most)
        if len(self._buffer) < self._header.length:
            return False
        header, self._header = self._header, None
        payload = self._opener.open(header, self._cut(header.length))
        try:
            message = decode(payload)
        except ValueError as error:
            raise NotAuthentic(
                f"a message that cannot be read ({error}); is it another version?"
            ) from None
        self._heard_at = self._awake.now()
        self._owner.heard(self, message)
        return True

    def _greeted(self, theirs: bytes) -> None:
        nonces = (self._nonce, theirs) if self._leader else (theirs, self._nonce)
        session = frames.Session(self._token, self._generation, *nonces, self._place)
        self._sealer = frames.Sealer(session, by_leader=self._leader, rank=self._own)
        self._opener = frames.Opener(session, by_leader=not self._leader)
        waiting, self._waiting = self._waiting, []
        for payload in waiting:
            self.send(payload)

    def _cut(self, size: int) -> bytes:
        part = bytes(self._buffer[:size])
        del self._buffer[:size]
        return part


async def connect(
    make: Callable[[], ControlChannel], address: str, port: int, *, local: str, within: float
) -> ControlChannel:
    """A member's end, connected from ``local``. Raises :class:`OSError`, its message for people."""
    loop = asyncio.get_running_loop()
    try:
        with anyio.fail_after(within):
            _, channel = await loop.create_connection(make, address, port, local_addr=(local, 0))
    except TimeoutError:
        raise OSError(f"no connection within {within:g} s") from None
    except OSError as error:
        raise OSError(
            f"no connection ({os.strerror(error.errno) if error.errno else error})"
        ) from None
    return channel
