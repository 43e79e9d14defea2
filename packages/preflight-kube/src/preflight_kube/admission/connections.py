"""The connections of one port: how many there are, how long they may take, and who has to go when
there is no room.

uvicorn accepts whatever comes, has a time for connections that were of use and none for others, and
keeps headers of any size. Here a connection counts from the moment it is accepted, its handshake
included, and what it has sent of a request that is not whole yet counts too.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol

import httptools
from prometheus_client import Counter
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.utils import is_ssl

from preflight_kube.admission.request_body import BODY, Body
from preflight_kube.logs import get_logger

HANDSHAKE: Final = 5.0
"""Seconds; an API server takes some milliseconds."""
MOST_HEAD: Final = 16 * 1024
"""Bytes of a request's line and headers; an API server sends some 300."""
_EACH_HEADER: Final = 32
"""Bytes that a header counts beside its text."""
MOST_KEPT: Final = 3 * 1024 * 1024 + 64 * 1024
"""Bytes of a request that are kept; of a longer one the rest is read and dropped, if its length was
said beforehand.
"""
MOST_UNFINISHED: Final = 12 * 1024 * 1024
"""Bytes of requests that are not whole yet or not answered yet, of all connections of a port."""
_READ_AHEAD: Final = 64 * 1024
"""Bytes that TLS takes in while nobody reads on; it would be 512 KiB for each connection."""
_AT_ONCE: Final = 32
"""Connections accepted in one turn of the loop, so that those in use get theirs."""
_BACKLOG: Final = 1024
_PAUSE: Final = 0.1
"""Seconds without accepting when the system has no descriptor or memory left."""
_FULL: Final = 0.02
"""Seconds without accepting when nobody has to go yet."""
_YOUNG: Final = 0.1
"""Seconds that a connection has for its handshake and its first request before it may lose its
place: a burst of an API server waits in the system's queue rather than losing some of its own."""
_MOST_DROPPED: Final = 24
"""Connections that go on sending a body of which only the beginning is kept: TLS alone takes half a
megabyte for each.
"""
_SPARE: Final = 128
"""Descriptors for all else: files, the API server, health and metrics, standard streams."""
_LARGE_HEAD: Final = f"a request line and headers of more than {MOST_HEAD} bytes are too large"
_ALERTS: Final = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_EXPIRED", "CERTIFICATE_UNKNOWN")

log = get_logger(__name__)


class Counted(Protocol):
    """Metrics of ports. ``handshakes_failed`` has the label ``reason``."""

    handshakes_failed: Counter

    def cut(self, port: str, reason: str) -> None:
        """Count a connection that was cut off."""


MOST: Final = 384
"""An API server keeps 25 idle connections and opens one for each admission at a time."""


def most_connections() -> int:
    """Connections that the process can serve: :data:`MOST`, or less where the system lets it open
    fewer files than that; as many as it lets are set.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + _SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MOST if soft == resource.RLIM_INFINITY else min(MOST, max(soft - _SPARE, 16))


class Connections:
    """Accepts connections of one listening socket, at most ``most`` at a time. ``protocol`` makes
    one; ``context``: what a new one is served with, None for plain ones. Use within one event loop.

    Who comes when there is no room takes the place of the one that has waited longest without ever
    having had an answer, or else of the one that is idle longest. A request that is being answered
    is never cut off.
    """

    def __init__(
        self,
        listener: socket.socket,
        most: int,
        protocol: Callable[[], Bounded],
        *,
        context: Callable[[], ssl.SSLContext | None],
        metrics: Counted,
        name: str,
    ) -> None:
        self._listener, self._most, self._protocol = listener, most, protocol
        self._context, self._metrics, self._name = context, metrics, name
        self._shaking: dict[asyncio.Task[None], float] = {}
        """Since when, in the order in which they came; so for the others."""
        self._open: dict[Bounded, float] = {}
        self._waiting: dict[Bounded, Any] = {}
        """Whose turn it was at the last look, and the request that it was about."""
        self._holding: dict[Bounded, int] = {}
        """Bytes of unfinished requests, in the order in which they began."""
        self._held = 0
        self._dropped: dict[Bounded, None] = {}
        """Those whose body is not kept."""
        self.refusal_logged = False
        """Whether the log has that clients refuse this certificate."""
        self._resume: asyncio.TimerHandle | None = None
        self._closed = False

    def open(self) -> None:
        """Begin to accept."""
        self._loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        self._listener.listen(_BACKLOG)
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more, and end what no request has come from."""
        if self._closed:
            return
        self._closed = True
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for task in list(self._shaking):
            task.cancel()

    async def wait_closed(self) -> None:
        """Until no handshake is under way any more; as uvicorn asks of what it serves with."""
        if self._shaking:
            await asyncio.wait(self._shaking)

    def __len__(self) -> int:
        return len(self._shaking) + len(self._open)

    def cut_stalled(self) -> None:
        """Cut off whose client has begun nothing, or begun a request and not gone on, since the
        call before. A call now and then costs a request nothing.
        """
        waiting = {connection: connection.cycle for connection in self._open if connection.stalls}
        for connection, cycle in waiting.items():
            if connection in self._waiting and self._waiting[connection] is cycle:
                self._cut(connection, "stalled")
        self._waiting = waiting

    def cut_unfinished(self) -> None:
        """Cut off who has not sent a whole request by now; for the end."""
        for connection in [*self._open]:
            if connection.waits:
                connection.transport.abort()

    def retire(self) -> None:
        """Let every connection serve the request that it is at, and no further one."""
        for connection in [*self._open]:
            connection.shutdown()

    # What protocols say of themselves.

    def add(self, connection: Bounded) -> None:
        """``connection`` has been opened, its handshake done."""
        self._open[connection] = self._loop.time()

    def lost(self, connection: Bounded) -> None:
        """``connection`` has ended."""
        self._open.pop(connection, None)
        self.release(connection)

    def hold(self, connection: Bounded, size: int) -> None:
        """``connection`` has sent ``size`` more bytes of a request that is not answered yet."""
        self._holding[connection] = self._holding.get(connection, 0) + size
        self._held += size
        while self._held > MOST_UNFINISHED:
            # Who has been at it longest: a review of an API server comes within milliseconds.
            oldest = next((other for other in self._holding if other.open), connection)
            self.release(oldest)
            self._metrics.cut(self._name, "bytes")
            if not oldest.drop_body():
                oldest.transport.abort()
                continue
            self._dropped[oldest] = None
            if len(self._dropped) > _MOST_DROPPED:
                first = next(iter(self._dropped))
                del self._dropped[first]
                first.transport.abort()

    def release(self, connection: Bounded) -> None:
        """``connection`` has had its answer, or keeps nothing any more."""
        self._dropped.pop(connection, None)
        if (size := self._holding.pop(connection, None)) is not None:
            self._held -= size

    def _cut(self, connection: Bounded, why: str) -> None:
        self._metrics.cut(self._name, why)
        # Gone at once: a client that does nothing does not answer a farewell either.
        connection.transport.abort()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if len(self) >= self._most and not self._make_room():
                self._pause(_FULL)
                return
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                # No descriptor, no memory: whoever waits for a place goes, and it is tried again.
                log.warning(
                    "cannot accept a connection", port=self._name, error=error.strerror or error
                )
                self._make_room()
                self._pause(_PAUSE)
                return
            accepted.setblocking(False)
            task = self._loop.create_task(self._serve(accepted))
            self._shaking[task] = self._loop.time()
            task.add_done_callback(lambda task: self._shaking.pop(task, None))

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._resume = self._loop.call_later(
            seconds, self._loop.add_reader, self._listener.fileno(), self._accept
        )

    def _make_room(self) -> bool:
        """End one connection that is of no use now; whether there was one."""
        before = self._loop.time() - _YOUNG
        shaking = next((task for task, since in self._shaking.items() if since <= before), None)
        fresh = [connection for connection in self._open if not connection.answered]
        waiting = (connection for connection in fresh if connection.waits)
        useless = next(waiting, None)
        if useless is not None and self._open[useless] > before:
            useless = None
        if shaking is not None and (useless is None or len(self._shaking) >= len(fresh)):
            shaking.cancel()
            del self._shaking[shaking]
            self._metrics.cut(self._name, "full")
            return True
        if useless is None:
            idle = [it for it in self._open if it.answered and it.waits]
            useless = min(idle, key=lambda connection: connection.idle_since, default=None)
        if useless is None:
            return False
        del self._open[useless]
        self._cut(useless, "full")
        return True

    async def _serve(self, accepted: socket.socket) -> None:
        more: dict[str, Any] = {}
        if (context := self._context()) is not None:
            shaking = dict.fromkeys(("ssl_handshake_timeout", "ssl_shutdown_timeout"), HANDSHAKE)
            more = {"ssl": context, **shaking}
        try:
            await self._loop.connect_accepted_socket(self._protocol, accepted, **more)
        except OSError as error:
            self._refused(error)

    def _refused(self, error: Exception) -> None:
        """A handshake that came to nothing: counted by its reason, and logged once where an
        operator must do something.
        """
        reason = (getattr(error, "reason", None) or "") if isinstance(error, ssl.SSLError) else ""
        if any(alert in reason for alert in _ALERTS):
            kind = "certificate-refused"
        elif "CERTIFICATE" in reason:
            kind = "client-certificate"  # ours to refuse: none, or of another authority
        elif reason:
            kind = "no-tls"
        else:
            late = "taking longer" in str(error) or isinstance(error, TimeoutError)
            kind = "timeout" if late else "ended"
        self._metrics.handshakes_failed.labels(kind).inc()
        if kind == "certificate-refused" and not self.refusal_logged:
            self.refusal_logged = True
            log.error(
                "clients refuse the serving certificate: see that the webhook configuration's caBundle "
                "holds its authority and that it is for the Service's name",
                reason=reason,
            )


class Bounded(HttpToolsProtocol):
    """uvicorn's protocol with bounds: of a request's head, of everything unfinished, and of time by
    its :class:`Connections`.

    What is overridden is called for every request, so it names uvicorn's class rather than asking
    for it by ``super()``.
    """

    connections_of: Connections | None = None
    """Whose bounds hold; without one, those of uvicorn's own server."""
    open = False
    """Whether a request has begun that is not whole yet."""
    idle_since = 0.0
    """When the last answer was sent, by the loop's clock; 0 while a request is under way, or none
    has been yet.
    """
    answered = False
    """Whether it has had an answer."""
    _fed = _chunk = 0  # bytes of this request before what came last, and those of that
    _in_head = _large_head = _over = _dropped = _held = False

    @property
    def waits(self) -> bool:
        """Whether it is the client's turn."""
        return self.open or self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]

    @property
    def stalls(self) -> bool:
        """Whether more of a request has to come before anything else happens."""
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            return not self.idle_since
        return bool(cycle.more_body)

    def connection_made(self, transport: Any) -> None:
        """Of asyncio: it is open."""
        super().connection_made(transport)
        if is_ssl(transport):
            transport.set_read_buffer_limits(high=_READ_AHEAD)
        if self.connections_of is not None:
            self.connections_of.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Of asyncio: it has ended, with ``exc`` or as it should."""
        if self.connections_of is not None:
            self.connections_of.lost(self)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # also of one that was cut off
        # It and its last cycle hold each other, and with them some 300 KB of TLS buffers, until a
        # garbage collection, which is rare here.
        self.cycle = None  # type: ignore[assignment]  # as uvicorn has it between requests

    def data_received(self, data: bytes) -> None:
        """Of asyncio: count what came, and refuse what is too large."""
        if self._over:  # TLS goes on reading until the client has said farewell
            return
        self._chunk = len(data)
        HttpToolsProtocol.data_received(self, data)
        if not self.open or self._over:
            return
        self._fed += self._chunk
        if self._in_head and self._fed > MOST_HEAD:
            self._refuse(431, _LARGE_HEAD)
        elif self.connections_of is None or self._dropped:
            return
        elif self._fed <= MOST_KEPT:
            self._held = True
            self.connections_of.hold(self, len(data))
        elif any(name == b"content-length" for name, _ in self.headers):
            self.connections_of.release(self)
        else:  # what is behind a chunked body is kept until its end, whatever its size
            self._refuse(413, f"a request of more than {MOST_KEPT} bytes is too large")

    def drop_body(self) -> bool:
        """Keep no more of the body that is coming in; whether that is possible. Its request is
        answered all the same when it has come.
        """
        body = self.scope.get(BODY)
        if not isinstance(body, Body):
            return False
        self._dropped = True
        body.drop("too many large reviews came at a time; try again")
        return True

    def on_message_begin(self) -> None:
        """Of the parser: a request begins."""
        self._dropped = False
        self.open = self._in_head = True
        self._fed = 0
        HttpToolsProtocol.on_message_begin(self)

    def on_headers_complete(self) -> None:
        """Of the parser: refuse a head that is too large."""
        self._in_head = False
        # Looked at only where what came could hold too large a head: a review that comes in one
        # piece could not.
        if self._fed + self._chunk > MOST_HEAD:
            sizes = [len(name) + len(value) + _EACH_HEADER for name, value in self.headers]
            if len(self.url) + sum(sizes) > MOST_HEAD:
                self._large_head = True
                # Ends the parsing; answered in send_400_response.
                raise httptools.HttpParserError("too large a head")
        HttpToolsProtocol.on_headers_complete(self)

    def on_message_complete(self) -> None:
        """Of the parser: the whole request is here."""
        self.open = False
        HttpToolsProtocol.on_message_complete(self)

    def on_response_complete(self) -> None:
        """Of uvicorn: the answer has been sent; wait for the next request."""
        self.answered = True
        if self._held and not self.open and self.connections_of is not None:
            self._held = False
            self.connections_of.release(self)
        HttpToolsProtocol.on_response_complete(self)
        if self.timeout_keep_alive_task is not None:
            self.idle_since = self.loop.time()

    def _unset_keepalive_if_required(self) -> None:
        # Called whenever anything comes.
        self.idle_since = 0.0
        HttpToolsProtocol._unset_keepalive_if_required(self)

    def send_400_response(self, msg: str) -> None:
        """Of uvicorn: answer what is not HTTP, or has too large a head, and close."""
        if self._large_head:
            self._refuse(431, _LARGE_HEAD)
        else:
            self._over = True
            super().send_400_response(msg)

    def _refuse(self, status: int, message: str) -> None:
        self._over = True
        if self.connections_of is not None:
            self.connections_of.release(self)
        text = message.encode() + b"\n"
        head = (
            b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            % len(text)
        )
        self.transport.write(STATUS_LINE[status] + head + text)
        self.transport.close()
