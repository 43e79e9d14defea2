"""A gRPC server on a unix socket that comes back when its file is removed.

Handlers take and return bytes; the messages are betterproto2's. An unknown service or method is
answered UNIMPLEMENTED by grpcio itself.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import betterproto2
import grpc
from preflight_kube.logs import get_logger

from preflight_computedomain.api.wire import Shape, fits

__all__ = ["Method", "Socket", "unary"]

Method = Callable[[bytes, "grpc.aio.ServicerContext[Any, Any]"], Awaitable[bytes]]
_log = get_logger(__name__)
_CONNECT: Final = 1.0
"""Seconds; a socket of this machine that is served takes a connection at once."""
_OPTIONS: Final = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 16 * 1024 * 1024))


def unary(
    type_: type[betterproto2.Message],
    shape: Shape,
    answer: Callable[[Any], Awaitable[betterproto2.Message]],
) -> Method:
    """A method for messages of ``type_``; bytes that are none are refused as INVALID_ARGUMENT."""

    async def method(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        if not fits(data, shape):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"the bytes are no {type_.__name__}"
            )
        return bytes(await answer(type_.parse(data)))

    return method


class Socket:
    """``services``: by full name, their methods. Use within one event loop."""

    def __init__(self, path: Path, services: Mapping[str, Mapping[str, Method]]) -> None:
        self.path, self._services = path, services
        self._server: grpc.aio.Server | None = None
        self._made: tuple[int, int] | None = None

    async def start(self) -> None:
        """Serve; a file that is there, of a process before or beside this one, is replaced. Raises
        OSError.
        """
        # Bound under another name, and renamed: a server that stops removes the path that it has
        # bound, though that may be another server's by then. The kubelet passes over names that
        # begin with a dot.
        bound = self.path.with_name(f".{secrets.token_hex(4)}")
        server = grpc.aio.server(options=_OPTIONS)
        for name, methods in self._services.items():
            handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
                key: grpc.unary_unary_rpc_method_handler(method) for key, method in methods.items()
            }
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        try:
            server.add_insecure_port(f"unix://{bound.absolute()}")
        except RuntimeError as error:
            raise OSError(0, f"no socket can be made here ({error})", str(self.path)) from None
        await server.start()
        bound.replace(self.path)
        self._server, self._made = server, self._identity()

    async def stop(self, grace: float = 0.0) -> None:
        """Take the file away, so that nobody comes any more; finish what runs within ``grace``
        seconds.
        """
        server, self._server = self._server, None
        if self._identity() == self._made:
            self.path.unlink(missing_ok=True)
        if server is not None:
            await server.stop(grace)

    def there(self) -> bool:
        """Whether the file is the one that was made."""
        return self._made is not None and self._identity() == self._made

    async def restored(self) -> bool:
        """Make the socket again where its file has gone, or nobody answers behind it; whether that
        was so. Calls that run are finished.

        One that another process serves is left to it: while the DaemonSet is updated two plugins
        run on a node, and the kubelet would otherwise learn of one and the other in turn, or of the
        new one never.
        """
        if self.there() or await self._served():
            return False
        _log.warning("socket removed or replaced, made again", path=self.path)
        old, self._server = self._server, None
        await self.start()
        if old is not None:
            await old.stop(45.0)
        return True

    async def _served(self) -> bool:
        try:
            async with asyncio.timeout(_CONNECT):
                _, writer = await asyncio.open_unix_connection(self.path)
        except (OSError, TimeoutError):
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self.path.lstat()
        except OSError:
            return None
        return found.st_dev, found.st_ino
