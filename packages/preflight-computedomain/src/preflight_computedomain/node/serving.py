"""Both sockets from start to end: bound in order, looked after, probed as the kubelet would, and
taken away in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc
from preflight_kube.logs import get_logger

from preflight_computedomain._generated.dra import (
    NodePrepareResourcesRequest,
    NodePrepareResourcesResponse,
)
from preflight_computedomain._generated.registration import InfoRequest, PluginInfo
from preflight_computedomain.api.names import DRIVER
from preflight_computedomain.core.facts import Unfit
from preflight_computedomain.metrics import PREPARE, PluginMetrics
from preflight_computedomain.node.dra import VERSIONS, service_name, services
from preflight_computedomain.node.grpc_server import Socket
from preflight_computedomain.node.prepare import ClaimPreparer
from preflight_computedomain.node.registration import SERVICE, Registration

__all__ = ["Serving"]

_log = get_logger(__name__)
_LOOK: Final = 5.0
_AGAIN: Final = 30.0


class Serving:
    """``registry``: the kubelet's folder of registrations; ``folder``: the plugin's own. ``look``,
    ``again``: seconds.

    ``look``: between two looks at the sockets' files. ``again``: after the kubelet's refusal, until
    the socket is made anew. ``registered`` is called each time the kubelet says that it knows the
    plugin: it may have removed the slices before.
    """

    def __init__(
        self,
        page: ClaimPreparer,
        metrics: PluginMetrics,
        registry: Path,
        folder: Path,
        *,
        look: float = _LOOK,
        again: float = _AGAIN,
        registered: Callable[[], None] = lambda: None,
    ) -> None:
        self._registry, self._look, self._again, self._registered = (
            registry,
            look,
            again,
            registered,
        )
        self._refused = asyncio.Event()
        self._plugin = Socket(folder / "dra.sock", services(page, metrics))
        self.registration = Registration(self._plugin.path, self._told)
        self._door = Socket(registry / f"{DRIVER}-reg.sock", self.registration.services())

    async def start(self) -> None:
        """Serve, and then be found. Raises :class:`Unfit` where the kubelet's folder is missing,
        and OSError.
        """
        if not self._registry.is_dir():
            raise Unfit(
                f"{self._registry}: no such folder; mount the kubelet's plugins_registry there."
            )
        self._plugin.path.parent.mkdir(parents=True, exist_ok=True)
        self._plugin.path.parent.chmod(0o750)
        await self._plugin.start()
        await self._door.start()

    async def watch(self) -> None:
        """Make again what is removed, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._look):
                    await self._refused.wait()
                await asyncio.sleep(self._again)
                self._refused.clear()
                await self._door.stop()
                await self._door.start()
            except TimeoutError:
                await self._restore()
            except OSError as error:
                _log.error("socket not made, tried again", path=self._door.path, error=str(error))

    async def _restore(self) -> None:
        for socket in (self._plugin, self._door):
            try:
                await socket.restored()
            except OSError as error:
                _log.error("socket not made, tried again", path=socket.path, error=str(error))

    async def stop(self, grace: float = 10.0) -> None:
        """Not be found any more, then finish what runs within ``grace`` seconds."""
        await self._door.stop()
        await self._plugin.stop(grace)

    async def alive(self, patience: float = 5.0) -> bool:
        """Whether both sockets answer, asked as the kubelet asks: who are you,
        and prepare nothing.
        """
        try:
            async with _channel(self._door.path) as channel:
                info = await _ask(channel, f"/{SERVICE}/GetInfo", bytes(InfoRequest()), patience)
            async with _channel(self._plugin.path) as channel:
                method = f"/{service_name(VERSIONS[0])}/{PREPARE}"
                done = await _ask(channel, method, bytes(NodePrepareResourcesRequest()), patience)
            return (
                PluginInfo.parse(info).name == DRIVER
                and not NodePrepareResourcesResponse.parse(done).claims
            )
        except (grpc.aio.AioRpcError, ValueError):
            return False

    def _told(self, registered: bool) -> None:
        if registered:
            self._refused.clear()
            self._registered()
        else:
            self._refused.set()


def _channel(path: Path) -> grpc.aio.Channel:
    """A connection of its own: one that is shared may be to a server whose file has gone."""
    return grpc.aio.insecure_channel(
        f"unix://{path.absolute()}", options=(("grpc.use_local_subchannel_pool", 1),)
    )


async def _ask(channel: grpc.aio.Channel, method: str, data: bytes, patience: float) -> bytes:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
    answer: bytes = await call(data, timeout=patience)
    return answer
