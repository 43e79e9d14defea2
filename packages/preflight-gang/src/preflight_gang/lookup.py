"""The objects that know sizes, mirrored: PodGroups, Workloads and what else the table of sources names.

The served version of each API is discovered; an API that the cluster does not have is looked for again every minute, and until
then its objects are simply not there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
import msgspec

from .kube.client import Client, KubeError
from .kube.reflector import Change, Reflector
from .sources import SOURCES, Source

__all__ = ["Objects"]

ABSENT_RETRY: Final = 60.0
_FIRST_RETRY: Final = 1.0

log = logging.getLogger(__name__)

Object = dict[str, Any]


class _Version(msgspec.Struct, rename="camel"):
    group_version: str
    version: str


class _Group(msgspec.Struct, rename="camel"):
    versions: list[_Version]
    preferred_version: _Version


class _Resource(msgspec.Struct):
    name: str


class _Resources(msgspec.Struct):
    resources: list[_Resource]


class Objects:
    """``changed(source, namespace, name)`` is called, in the event loop, when an object has come, changed or gone."""

    def __init__(self, client: Client, changed: Callable[[str, str, str], None]) -> None:
        self._client, self._changed = client, changed
        self._found: dict[tuple[str, str, str], Object] = {}
        self._state = dict.fromkeys(SOURCES, "cannot be read yet")
        self._reflectors: dict[str, Reflector[Object]] = {}

    def find(self, source: str, namespace: str, name: str) -> Mapping[str, Any] | str:
        """The object, or why it cannot be had (fits behind its kind and name)."""
        found = self._found.get((source, namespace, name))
        if found is not None:
            return found
        return self._state[source] or "does not exist yet"

    async def run(self) -> None:
        """Keep them current until cancelled."""
        async with anyio.create_task_group() as group:
            for source in SOURCES.values():
                group.start_soon(self._mirror, source)

    async def _mirror(self, source: Source) -> None:
        pause = _FIRST_RETRY
        while True:
            try:
                path = await served(self._client, source.group, source.resource)
            except KubeError as error:
                self._state[source.name] = f"cannot be read: {error}"
                await anyio.sleep(pause)
                pause = min(2 * pause, ABSENT_RETRY)
                continue
            if path is not None:
                break
            self._state[source.name] = f"cannot be read: the cluster does not serve {source.resource}.{source.group}"
            await anyio.sleep(ABSENT_RETRY)
        self._state[source.name] = ""
        log.info("size source found", extra={"about": {"source": source.name, "path": path}})

        def on_change(change: Change[Object]) -> None:
            about = change.object["metadata"]
            key = (source.name, about["namespace"], about["name"])
            if change.kind == "deleted":
                self._found.pop(key, None)
            else:
                self._found[key] = change.object
            self._changed(*key)

        await Reflector(self._client, path, dict, on_change=on_change, key=_uid).run()


async def served(client: Client, group: str, resource: str) -> str | None:
    """The path of ``resource`` in the version of its API that the cluster prefers and has it in; None where it has none.

    Raises :class:`KubeError` when the cluster does not say.
    """
    groups = await client.get("/apis", _Groups)
    known = next((g for g in groups.groups if g.name == group), None)
    if known is None:
        return None
    for version in [known.preferred_version, *known.versions]:
        listed = await client.get(f"/apis/{version.group_version}", _Resources)
        if any(one.name == resource for one in listed.resources):
            return f"/apis/{version.group_version}/{resource}"
    return None


class _Named(_Group, rename="camel"):
    name: str


class _Groups(msgspec.Struct):
    groups: list[_Named]


def _uid(item: Object) -> str:
    return str(item["metadata"]["uid"])
