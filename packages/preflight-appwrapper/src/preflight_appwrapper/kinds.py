"""Where the API server serves the kinds that are wrapped: asked once for each group and version,
and again for what was not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import anyio
import msgspec
from preflight_kube.client.client import Client, NotFound

from .served import Kind, Served, root

__all__ = ["ServedKinds"]

_AGAIN: Final = 5.0
"""Seconds after which what was not served is asked for again: a definition may have come."""
_MOST_KNOWN: Final = 256
"""Groups and versions that are remembered; anybody may ask for any."""
_GROUP: Final = re.compile(
    r"(?=.{0,253}$)([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?"
)
_VERSION: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""As Kubernetes has them; anything else is served nowhere, and must not lead elsewhere."""


class _Resource(msgspec.Struct):
    name: str
    kind: str
    namespaced: bool = False


class _Resources(msgspec.Struct):
    resources: list[_Resource] = []


class _Known:
    """What is served of one group and version. ``lock``: of whoever asks for it."""

    def __init__(self) -> None:
        self.at, self.kinds, self.lock = -_AGAIN, dict[str, Served](), anyio.Lock()


class ServedKinds:
    """What a cluster serves, as far as it was asked for."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, _Known] = {}  # the one that was asked for last is last

    async def find(self, kind: Kind) -> Served | None:
        """How it is served; None where it is not. Raises :class:`~preflight_kube.errors.KubeError`
        when the cluster does not say.
        """
        if not _GROUP.fullmatch(kind[0]) or not _VERSION.fullmatch(kind[1]):
            return None
        where = root(kind)
        known = self._known[where] = self._known.pop(where, _Known())
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        async with known.lock:
            if kind[2] not in known.kinds and self._client.clock() - known.at >= _AGAIN:
                known.kinds = await self._read(where)
                known.at = self._client.clock()
        return known.kinds.get(kind[2])

    async def all(self, kinds: Iterable[Kind]) -> dict[Kind, Served]:
        """Those of ``kinds`` that are served. Raises as :meth:`find`."""
        found: dict[Kind, Served] = {}
        for kind in dict.fromkeys(kinds):
            if all(kind[1:]) and (served := await self.find(kind)) is not None:
                found[kind] = served
        return found

    async def collection(self, kind: Kind, namespace: str = "") -> str | None:
        """The path of its objects, in one namespace or in all; None where it is not served. Raises
        as :meth:`find`.
        """
        served = await self.find(kind)
        if served is None:
            return None
        within = f"/namespaces/{namespace}" if namespace and served.namespaced else ""
        return f"{root(kind)}{within}/{served.resource}"

    async def _read(self, where: str) -> dict[str, Served]:
        try:
            found = await self._client.get(where, _Resources)
        except NotFound:
            return {}
        return {
            one.kind: Served(one.name, one.namespaced)
            for one in found.resources
            if "/" not in one.name
        }
