"""TCP servers of tests, which own every connection from the moment that it is let in."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress


class TcpServer:
    """A server on loopback. Each connection is a task of ``serve``; :meth:`stop` cancels these, and
    no connection outlives it.

    asyncio's own server loses a connection that it let in the turn before it was closed (Python
    3.11 and 3.12; CPython's issue 109564), and a TLS handshake that is under way: nobody serves
    them, and nobody closes them.
    """

    def __init__(
        self,
        serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
        *,
        tls: ssl.SSLContext | None = None,
        limit: int = 2**16,
    ) -> None:
        self._serve, self._tls, self._limit = serve, tls, limit
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> int:
        """Listen, on a free port unless one is named; returns it."""
        self._listening = socket.create_server(("127.0.0.1", port), backlog=1024)
        self._listening.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listening, self._accept)
        return int(self._listening.getsockname()[1])

    async def stop(self) -> None:
        """Let nobody in any more, and end whoever is in."""
        asyncio.get_running_loop().remove_reader(self._listening)
        self._listening.close()
        await asyncio.sleep(0)  # the task of whoever was let in last has begun, and so can end
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the loop's next turn

    def cut(self) -> None:
        """Break every connection, and listen on."""
        for task in self._tasks:
            task.cancel()

    def _accept(self) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):
            while True:
                accepted, _ = self._listening.accept()
                task = asyncio.get_running_loop().create_task(self._own(accepted))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _own(self, accepted: socket.socket) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        reader = asyncio.StreamReader(self._limit)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, accepted, ssl=self._tls
            )
        except OSError:
            return  # no handshake came of it
        try:
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            await self._serve(reader, writer)
            if not task.cancelling():
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
        finally:
            transport.abort()
