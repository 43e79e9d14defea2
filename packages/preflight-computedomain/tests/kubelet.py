"""What a kubelet does with a plugin, by Google's own gRPC and messages: find it, ask who it is,
prepare, unprepare.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
from preflight_computedomain.core.claims import KubeletClaim


def connection(path: object) -> grpc.aio.Channel:
    """A connection that no other call shares, as after a restart."""
    return grpc.aio.insecure_channel(
        f"unix://{path}", options=(("grpc.use_local_subchannel_pool", 1),)
    )


class Kubelet:
    """``registry``: its folder of registrations. ``google``: the generated modules."""

    def __init__(self, registry: Path, google: dict[str, ModuleType]) -> None:
        self.registry, self.google = registry, google
        self.endpoint = ""

    async def register(self, error: str = "") -> Any:
        """As on finding a socket. ``error``: refuse the plugin. Returns what the plugin says of
        itself.
        """
        (socket,) = self.registry.glob("*.sock")
        async with connection(socket) as channel:
            stub = self.google["registration_grpc"].RegistrationStub(channel)
            messages = self.google["registration"]
            info = await stub.GetInfo(messages.InfoRequest(), timeout=10)
            self.endpoint = info.endpoint
            await stub.NotifyRegistrationStatus(
                messages.RegistrationStatus(plugin_registered=not error, error=error), timeout=10
            )
        return info

    async def prepare(
        self, refs: Iterable[KubeletClaim], version: str = "v1", timeout: float = 45
    ) -> Any:
        return await self._call("NodePrepareResources", refs, version, timeout)

    async def unprepare(
        self, refs: Iterable[KubeletClaim], version: str = "v1", timeout: float = 45
    ) -> Any:
        return await self._call("NodeUnprepareResources", refs, version, timeout)

    async def _call(
        self, method: str, refs: Iterable[KubeletClaim], version: str, timeout: float
    ) -> Any:
        messages = self.google[version]
        claims = [
            messages.Claim(namespace=one.namespace, name=one.name, uid=one.uid) for one in refs
        ]
        async with connection(self.endpoint) as channel:
            stub = self.google[f"{version}_grpc"].DRAPluginStub(channel)
            request = getattr(messages, f"{method}Request")(claims=claims)
            return (await getattr(stub, method)(request, timeout=timeout)).claims
