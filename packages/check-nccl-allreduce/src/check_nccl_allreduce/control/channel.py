"""One authenticated connection between two parents."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

import anyio
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from . import frames
from .frames import NotAuthentic
from .messages import Alive, Message, decode, encode

__all__ = ["HEARTBEAT", "LOST_AFTER", "Channel", "Closed", "accept", "connect"]

HEARTBEAT: Final = 1.0
LOST_AFTER: Final = 5.0
"""Seconds without any frame after which the other side is lost; also what a handshake may take."""
FIRST_MESSAGE: Final = 8 * 1024
"""Bytes that a peer may send before it has proven that it holds the token."""


class Closed(Exception):
    """The connection is over; the message says why, for people."""


class Channel:
    """Messages both ways. Reading is one task's, sending any task's."""

    def __init__(self, stream: SocketStream, session: frames.Session, *, leader: bool, rank: int) -> None:
        self._stream = stream
        self._reader = BufferedByteReceiveStream(stream)
        self._sealer = frames.Sealer(session, by_leader=leader, rank=rank)
        self._opener = frames.Opener(session, by_leader=not leader)
        self._sending = anyio.Lock()

    @property
    def rank(self) -> int | None:
        """The other side's rank; None before its first frame."""
        return self._opener.rank

    async def send(self, message: Message) -> None:
        """Raises :class:`Closed`; so does a peer that takes nothing for as long as it may be silent."""
        async with self._sending:
            frame = self._sealer.seal(encode(message))
            try:
                with anyio.fail_after(LOST_AFTER):
                    await self._stream.send(frame)
            except TimeoutError:
                raise Closed(f"it took nothing for {LOST_AFTER:g} s") from None
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                raise Closed("its connection ended") from None

    async def receive(self) -> Message:
        """The next message. Raises :class:`Closed`, also after LOST_AFTER seconds of silence, and :class:`NotAuthentic`."""
        most = frames.MAX_MESSAGE if self._opener.rank is not None else FIRST_MESSAGE
        try:
            with anyio.fail_after(LOST_AFTER):
                header = frames.Header.read(await self._reader.receive_exactly(frames.HEADER_SIZE), most)
                payload = await self._reader.receive_exactly(header.length)
        except TimeoutError:
            raise Closed(f"no sign of life for {LOST_AFTER:g} s") from None
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            raise Closed("its connection ended") from None
        try:
            return decode(self._opener.open(header, payload))
        except ValueError as error:
            raise NotAuthentic(f"a message that cannot be read ({error}); is it another version?") from None

    async def heartbeat(self, now: Callable[[], Alive] = Alive) -> None:
        """Send what ``now`` gives every second, until cancelled or closed."""
        try:
            while True:
                await self.send(now())
                await anyio.sleep(HEARTBEAT)
        except Closed:
            return  # the reading side says what it means

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(self._stream)


async def accept(stream: SocketStream, token: str, generation: int) -> Channel:
    """The leader's end of a new connection. Raises :class:`Closed` and :class:`NotAuthentic`."""
    mine = secrets.token_bytes(frames.NONCE_SIZE)
    theirs = await _exchange(stream, mine)
    return Channel(stream, frames.Session(token, generation, mine, theirs), leader=True, rank=0)


async def connect(address: str, port: int, *, local: str, token: str, generation: int, rank: int) -> Channel:
    """A member's end: connects from ``local``. Raises :class:`Closed` and :class:`NotAuthentic`."""
    try:
        with anyio.fail_after(LOST_AFTER):
            stream = await anyio.connect_tcp(address, port, local_host=local)
    except TimeoutError:
        raise Closed(f"no connection within {LOST_AFTER:g} s") from None
    except OSError as error:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        raise Closed(f"no connection ({cause.strerror or cause})") from None
    mine = secrets.token_bytes(frames.NONCE_SIZE)
    try:
        theirs = await _exchange(stream, mine)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(stream)
        raise
    return Channel(stream, frames.Session(token, generation, theirs, mine), leader=False, rank=rank)


async def _exchange(stream: SocketStream, nonce: bytes) -> bytes:
    """Greet; the other side's nonce."""
    try:
        with anyio.fail_after(LOST_AFTER):
            await stream.send(frames.greeting(nonce))
            data = b""
            while len(data) < frames.GREETING_SIZE:
                data += await stream.receive(frames.GREETING_SIZE - len(data))
    except TimeoutError:
        raise Closed(f"no greeting within {LOST_AFTER:g} s") from None
    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        raise Closed("its connection ended") from None
    return frames.nonce_of(data)
