"""Keeps the node's ResourceSlice in the cluster: a write wherever one is not as it should be.

The kubelet removes the slices of its node when it starts, and those of a driver whose socket has
been away for long; so it is put back as often as it goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import anyio
from preflight_kube.client.client import Client, Conflict, KubeError, NotFound
from preflight_kube.logs import get_logger
from preflight_kube.runtime.reflector import Reflector

from preflight_computedomain.api.names import DRIVER, SLICES, slice_name
from preflight_computedomain.api.types import Identified, Slice
from preflight_computedomain.core import slices

FIRST: Final = 0.1
LONGEST: Final = 10.0
"""Seconds, from the first and at most, until a write that was refused is tried again."""

log = get_logger(__name__)


class Publisher:
    """``written`` is called with ``create``, ``update`` or ``delete`` at each write."""

    def __init__(
        self, client: Client, node: str, written: Callable[[str], None] = lambda _: None
    ) -> None:
        self._client, self._node, self._written = client, node, written
        self._uid = ""
        self._devices: list[dict[str, Any]] = []
        self._look = anyio.Event()
        self._mirror = Reflector(
            client,
            SLICES,
            Slice,
            on_change=lambda _: self.poke(),
            params={"fieldSelector": f"spec.driver={DRIVER},spec.nodeName={node}"},
        )

    @property
    def published(self) -> bool:
        """Tell whether the cluster has the slice as it should be, by what is known of it."""
        if (there := self._ours()) is None or not self._uid:
            return False
        return slices.wanted(self._node, self._uid, self._devices, there) is None

    def offer(self, devices: list[dict[str, Any]]) -> None:
        """Have the slice offer ``devices`` (of :func:`~.core.slices.channel`) from now on."""
        if devices != self._devices:
            self._devices = devices
            self.poke()

    def poke(self) -> None:
        """Look soon."""
        self._look.set()

    async def run(self) -> None:
        """Publish, and keep it so until cancelled; the slice stays while the plugin is updated."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._mirror.run)
            await self._mirror.synced.wait()
            pause = FIRST
            while True:
                self._look = anyio.Event()
                try:
                    await self._publish()
                    pause = FIRST
                except KubeError as error:
                    # Also one that the watch has not brought yet, or never does: another driver's.
                    log.warning("ResourceSlice not written yet", error=str(error))
                    await anyio.sleep(pause)
                    pause = min(pause * 2, LONGEST)
                    continue
                await self._look.wait()

    def _ours(self) -> Slice | None:
        name, there = slice_name(self._node), self._mirror.store.values()
        return next((item for item in there if item.metadata.name == name), None)

    async def _publish(self) -> None:
        name, there = slice_name(self._node), self._ours()
        # The Node may have been made anew since, which is why its slice has gone.
        if there is None or not self._uid:
            node = await self._client.get(f"/api/v1/nodes/{self._node}", Identified)
            self._uid = node.metadata.uid
        body = slices.wanted(self._node, self._uid, self._devices, there)
        for other in list(self._mirror.store.values()):
            # One more in the pool would make the scheduler take none of them.
            if other.metadata.name != name:
                await self._remove(other)
        if body is None:
            return
        verb = "create" if there is None else "update"
        if there is None:
            await self._client.create(SLICES, body)
        else:
            await self._client.replace(f"{SLICES}/{name}", body)
        log.info("ResourceSlice written", verb=verb, generation=body["spec"]["pool"]["generation"])
        self._written(verb)

    async def _remove(self, other: Slice) -> None:
        try:
            await self._client.delete(f"{SLICES}/{other.metadata.name}", uid=other.metadata.uid)
        except (Conflict, NotFound):
            return
        log.warning("surplus ResourceSlice deleted", slice=other.metadata.name)
        self._written("delete")
