"""The objects that know sizes, mirrored from the moment a gang asks for one of their kind.

The served version of each API is discovered, every minute again while the cluster has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio
import anyio.abc
from preflight_kube.api.workloads.sizes import SizedObject
from preflight_kube.client.client import Client, KubeError, Unreadable
from preflight_kube.logs import get_logger
from preflight_kube.runtime.discovery import served
from preflight_kube.runtime.reflector import Reflector
from preflight_kube.runtime.retry import cause_of

from preflight_gang.api.sources import SizedKind, Sources
from preflight_gang.api.types import OwnerReference

ABSENT_RETRY: Final = 60.0
_FIRST_RETRY: Final = 1.0

log = get_logger(__name__)


class WorkloadWatch:
    """``changed(kind, namespace, name)`` is called when an object has come, changed or gone.

    ``changed(kind, "", "")`` says that it is known by now which objects of a kind there are, or
    that there can be none.
    """

    def __init__(
        self, client: Client, changed: Callable[[SizedKind, str, str], None], sources: Sources
    ) -> None:
        self._client, self._changed, self._sources = client, changed, sources
        self._mirrors: dict[SizedKind, Reflector[SizedObject]] = {}
        self._state: dict[SizedKind, str] = {}
        self._version: dict[SizedKind, str] = {}
        self._group: anyio.abc.TaskGroup | None = None

    def find(self, source: str, namespace: str, name: str) -> SizedObject | str:
        """The object, or why it cannot be had, in words. To ask begins the mirroring."""
        troubles, key = [], f"{namespace}/{name}"
        for kind in self._sources[source]:
            if (mirror := self._mirrors.get(kind)) is not None:
                if (item := mirror.get(key)) is not None:
                    return item
                if (unreadable := mirror.unreadable.get(key)) is not None:
                    return f"cannot be read: {unreadable.why}"
                if mirror.problem is not None and not mirror.synced.is_set():
                    troubles.append(f"cannot be read: {cause_of(mirror.problem)}")
                    continue
            if kind not in self._state:
                self._state[kind] = "cannot be read yet"
                if self._group is not None:
                    self._group.start_soon(self._mirror, kind)
            troubles.append(self._state[kind])
        return "does not exist yet" if "" in troubles else troubles[0]

    def reference(self, source: str, namespace: str, name: str) -> OwnerReference | None:
        """The object as an owner, where it is known."""
        for kind in self._sources.get(source, ()):
            mirror = self._mirrors.get(kind)
            if mirror is not None and (item := mirror.get(f"{namespace}/{name}")) is not None:
                version, uid = self._version[kind], item.metadata.uid
                return OwnerReference(api_version=version, kind=kind.kind, name=name, uid=uid)
        return None

    async def run(self) -> None:
        """Keep them current until cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            for kind in self._state:  # asked for before
                group.start_soon(self._mirror, kind)
            await anyio.sleep_forever()

    async def _mirror(self, kind: SizedKind) -> None:
        def changed(item: SizedObject | Unreadable) -> None:
            self._changed(kind, item.metadata.namespace, item.metadata.name)

        while True:
            path = await self._discover(kind)
            self._version[kind] = path.removeprefix("/apis/").rpartition("/")[0]
            mirror = self._mirrors[kind] = Reflector(
                self._client,
                path,
                kind.type,
                on_change=lambda change: changed(change.object),
                on_unreadable=lambda item, _: changed(item),
                key=lambda item: f"{item.metadata.namespace}/{item.metadata.name}",
            )
            async with anyio.create_task_group() as group:
                group.start_soon(mirror.run)
                await mirror.synced.wait()
                while not mirror.absent:  # else its version is retired, or its definition deleted
                    self._set_state(kind, "")
                    await anyio.sleep(ABSENT_RETRY)
                group.cancel_scope.cancel()

    async def _discover(self, kind: SizedKind) -> str:
        pause = _FIRST_RETRY
        while True:
            try:
                path = await served(self._client, kind.group, kind.resource)
            except KubeError as error:
                self._set_state(kind, f"cannot be read: {error}")
                await anyio.sleep(pause)
                pause = min(2 * pause, ABSENT_RETRY)
                continue
            if path is not None:
                log.info("watching workload objects", path=path)
                return path
            self._set_state(kind, kind.absent)
            await anyio.sleep(ABSENT_RETRY)

    def _set_state(self, kind: SizedKind, state: str) -> None:
        if self._state.get(kind) != state:
            self._state[kind] = state
            self._changed(kind, "", "")
