"""One list of pods for all who ask at about the same time.

An API server reads a list by label from all pods of the namespace, so that a list for each of many
wrappers would be most of its work. Those who ask while a list is under way share the next one: each
is answered by a list that began after it asked.
"""

from __future__ import annotations

from typing import Final

import anyio
import msgspec
from preflight_kube.api.kinds import version_of
from preflight_kube.client.client import Client, KubeError

from preflight_appwrapper.api.names import LABEL, LONGEST_VALUE
from preflight_appwrapper.core import decode as cluster
from preflight_appwrapper.core.decode import PartialObject
from preflight_appwrapper.core.leader_state import Listed, VersionedPod

__all__ = ["PodLists"]

_TOGETHER: Final = 32
"""Wrappers of one list: their names stand in its URL, of which proxies bound the length."""


class _Round(msgspec.Struct, eq=False):
    """One list. ``found``: by wrapper."""

    names: set[str]
    over: anyio.Event
    found: dict[str, Listed] = {}
    error: KubeError | None = None


class _Namespace(msgspec.Struct, eq=False):
    """``next``: the list that has not begun yet, and can be joined."""

    lock: anyio.Lock
    next: _Round | None = None


class PodLists:
    """Consistent lists of pods by wrapper, one at a time in each namespace."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._namespaces: dict[str, _Namespace] = {}

    async def of(self, namespace: str, name: str) -> Listed:
        """The pods of a wrapper, from a list that began after this was called. Raises
        :class:`KubeError`.
        """
        if len(name) > LONGEST_VALUE:  # no pod has it as a label
            return Listed(0, {})
        place = self._namespaces.setdefault(namespace, _Namespace(anyio.Lock()))
        joined = place.next
        if joined is not None and len(joined.names) < _TOGETHER:
            joined.names.add(name)
            await joined.over.wait()
        else:
            joined = place.next = _Round({name}, anyio.Event())
            await self._read(namespace, place, joined)
        if joined.error is not None:
            raise joined.error
        return joined.found[name]

    async def _read(self, namespace: str, place: _Namespace, one: _Round) -> None:
        try:
            async with place.lock:
                _begun(place, one)
                one.found = await self._list(namespace, sorted(one.names))
        except KubeError as error:
            one.error = error
        finally:
            if not one.found and one.error is None:
                one.error = KubeError(f"pods of namespace {namespace}: the list was given up.")
            _begun(place, one)
            one.over.set()
            if place.next is None and not place.lock.locked():
                self._namespaces.pop(namespace, None)

    async def _list(self, namespace: str, names: list[str]) -> dict[str, Listed]:
        found: dict[str, dict[str, VersionedPod]] = {name: {} for name in names}
        version = ""
        path, params = (
            f"/api/v1/namespaces/{namespace}/pods",
            {"labelSelector": f"{LABEL} in ({','.join(names)})"},
        )
        async for page, at in self._client.pages(path, PartialObject, params=params):
            version = at
            for raw in page:
                found[raw.metadata.labels[LABEL]][raw.metadata.uid] = VersionedPod(
                    cluster.pod(raw), version_of(raw.metadata.resource_version)
                )
        return {name: Listed(version_of(version), pods) for name, pods in found.items()}


def _begun(place: _Namespace, one: _Round) -> None:
    """Who asks from now on gets the next list."""
    if place.next is one:
        place.next = None
