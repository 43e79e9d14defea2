"""What the cluster serves: where a resource is, and where a kind is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import anyio
import msgspec

from preflight_kube.api.kinds import Kind, RESTMapping, root
from preflight_kube.client.client import Client
from preflight_kube.errors import NotFound


class _Version(msgspec.Struct, rename="camel"):
    group_version: str


class _Group(msgspec.Struct, rename="camel"):
    name: str
    versions: list[_Version]
    preferred_version: _Version


class _Groups(msgspec.Struct):
    groups: list[_Group]


class _Resource(msgspec.Struct):
    name: str
    kind: str = ""
    namespaced: bool = False


class _Resources(msgspec.Struct):
    resources: list[_Resource] = []


async def served(client: Client, group: str, resource: str) -> str | None:
    """The path of a collection (``resource`` is its plural name), in the version that the cluster
    prefers of those that have it; None where none has. ``group`` is a named one: core resources are
    always served.

    Raises :class:`~.errors.KubeError` when the cluster does not say.
    """
    for version in await group_versions(client, group):
        if any(it.name == resource for it in await _resources(client, f"/apis/{group}/{version}")):
            return f"/apis/{group}/{version}/{resource}"
    return None


async def _resources(client: Client, where: str) -> list[_Resource]:
    try:
        return (await client.get(where, _Resources)).resources
    except NotFound:
        return []


async def group_versions(client: Client, group: str) -> tuple[str, ...]:
    """The versions of ``group``, the one that the cluster prefers first; empty where it has none.
    Raises as :func:`served`.
    """
    groups = (await client.get("/apis", _Groups)).groups
    known = (api_group for api_group in groups if api_group.name == group)
    named = [v for api_group in known for v in (api_group.preferred_version, *api_group.versions)]
    return tuple(dict.fromkeys(v.group_version.rpartition("/")[2] for v in named))


_ASK_AGAIN: Final = 5.0
"""Seconds after which what was not served is asked for again: a definition may have come."""
_MAX_KNOWN: Final = 256
"""Groups and versions that are remembered; anybody may ask for any."""
_GROUP: Final = re.compile(
    r"(?=.{0,253}$)([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?"
)
_VERSION: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""As Kubernetes has them; anything else is served nowhere, and must not lead elsewhere."""


class _Known:
    """What is served of one group and version. ``lock``: of whoever asks for it."""

    def __init__(self) -> None:
        self.at, self.kinds, self.lock = -_ASK_AGAIN, dict[str, RESTMapping](), anyio.Lock()


class RESTMapper:
    """What a cluster serves, as far as it was asked for."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, _Known] = {}  # the one that was asked for last is last

    async def find(self, kind: Kind) -> RESTMapping | None:
        """How it is served; None where it is not. Raises :class:`~preflight_kube.errors.KubeError`
        when the cluster does not say.
        """
        if not _GROUP.fullmatch(kind[0]) or not _VERSION.fullmatch(kind[1]):
            return None
        where = root(kind)
        known = self._known[where] = self._known.pop(where, _Known())
        if len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        async with known.lock:
            if kind[2] not in known.kinds and self._client.clock() - known.at >= _ASK_AGAIN:
                known.kinds = {
                    it.kind: RESTMapping(it.name, it.namespaced)
                    for it in await _resources(self._client, where)
                    if "/" not in it.name
                }
                known.at = self._client.clock()
        return known.kinds.get(kind[2])

    async def all(self, kinds: Iterable[Kind]) -> dict[Kind, RESTMapping]:
        """Those of ``kinds`` that are served. Raises as :meth:`find`."""
        mappings: dict[Kind, RESTMapping] = {}
        for kind in dict.fromkeys(kinds):
            if all(kind[1:]) and (served := await self.find(kind)) is not None:
                mappings[kind] = served
        return mappings

    async def collection(self, kind: Kind, namespace: str = "") -> str | None:
        """The path of its objects, in one namespace or in all; None where it is not served. Raises
        as :meth:`find`.
        """
        served = await self.find(kind)
        if served is None:
            return None
        within = f"/namespaces/{namespace}" if namespace and served.namespaced else ""
        return f"{root(kind)}{within}/{served.resource}"

    async def newest(
        self, group: str, versions: Iterable[str], kind: str, namespace: str = ""
    ) -> str | None:
        """As :meth:`collection`, in the first of ``versions`` in which the kind is served; None
        where it is in none. Raises as :meth:`find`.
        """
        for version in versions:
            if (path := await self.collection((group, version, kind), namespace)) is not None:
                return path
        return None
