"""/healthz, /readyz and /metrics on a plain port, from a thread of their own: a busy event loop
still answers.

Anybody on the network may connect, so there is a bound to the connections, to what is read of each
and to its time. Who comes when all are taken takes the place of the one that has been silent for
longest: a probe sends its request at once, an idle connection waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from preflight_kube.runtime.ports import listen

Probe = Callable[[], str]
"""Empty when all is well, else what is not."""

MOST_CONNECTIONS: Final = 64
MOST_HEADERS: Final = 8 * 1024
"""Bytes."""
REQUEST_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 10.0
_REASONS: Final = {
    200: "OK",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}
_END: Final = b"\r\n\r\n"
_TEXT: Final = "text/plain; charset=utf-8"


class HealthServer:
    """Serves from construction to :meth:`close`; ``port`` is the one it got. Raises
    :class:`~.ports.PortTaken`.
    """

    def __init__(
        self, host: str, port: int, registry: CollectorRegistry, healthy: Probe, ready: Probe
    ) -> None:
        self._registry, self._probes = registry, {"/healthz": healthy, "/readyz": ready}
        self._waiting: dict[asyncio.StreamWriter, None] = {}
        """For their request; who came first stands first."""
        self._listening = listen(host, port)
        self._listening.listen(1024)
        self.port = int(self._listening.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._turn, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving, and wait for the thread to end."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _turn(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        server = await asyncio.start_server(self._serve, sock=self._listening, limit=MOST_HEADERS)
        await self._stop.wait()
        # Before Python 3.13 nobody closes what was let in the turn before its server was closed.
        self._loop.remove_reader(self._listening)
        for _ in range(5):
            await asyncio.sleep(0)
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the loop's next turn

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._waiting[writer] = None
        if len(self._waiting) > MOST_CONNECTIONS:
            longest = next(iter(self._waiting))
            del self._waiting[longest]
            longest.transport.abort()
        try:
            # What ends here is somebody else's connection, and logged nowhere: too slow, too long,
            # cut off, still open when the server ends.
            with suppress(
                OSError,
                TimeoutError,
                asyncio.IncompleteReadError,
                asyncio.LimitOverrunError,
                asyncio.CancelledError,
            ):
                async with asyncio.timeout(REQUEST_SECONDS):
                    head = await reader.readuntil(_END)
                self._waiting.pop(writer, None)
                status, kind, body = self._answer(head)
                lines = (
                    f"HTTP/1.1 {status} {_REASONS[status]}",
                    f"Content-Type: {kind}",
                    f"Content-Length: {len(body)}",
                    "Connection: close",
                )
                writer.write(
                    "\r\n".join([*lines, "", ""]).encode()
                    + (b"" if head.startswith(b"HEAD ") else body)
                )
                async with asyncio.timeout(ANSWER_SECONDS):
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._waiting.pop(writer, None)
            writer.transport.abort()

    def _answer(self, head: bytes) -> tuple[int, str, bytes]:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        if method not in {b"GET", b"HEAD"}:
            return 405, _TEXT, b"only GET is answered\n"
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest(self._registry)
        if (probe := self._probes.get(path)) is None:
            return 404, _TEXT, b"there is /healthz, /readyz and /metrics\n"
        trouble = probe()
        return 503 if trouble else 200, _TEXT, (trouble or "ok").encode() + b"\n"
