"""Where the API server serves the kinds that are wrapped: asked once for each group and version,
and again for what was not there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import anyio
import msgspec
from preflight_kube.client import Client, NotFound

from .served import Kind, Served, root

__all__ = ["ServedKinds"]

_AGAIN: Final = 5.0
"""Seconds after which what was not served is asked for again: a definition may have come."""


class _Resource(msgspec.Struct):
    name: str
    kind: str
    namespaced: bool = False


class _Resources(msgspec.Struct):
    resources: list[_Resource] = []


class ServedKinds:
    """What a cluster serves, as far as it was asked for."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, tuple[float, dict[str, Served]]] = {}
        self._locks: dict[str, anyio.Lock] = {}

    async def find(self, kind: Kind) -> Served | None:
        """How it is served; None where it is not. Raises :class:`~preflight_kube.errors.KubeError`
        when the cluster does not say.
        """
        where = root(kind)
        async with self._locks.setdefault(where, anyio.Lock()):
            at, known = self._known.get(where, (-_AGAIN, {}))
            if kind[2] not in known and self._client.clock() - at >= _AGAIN:
                known = await self._read(where)
                self._known[where] = (self._client.clock(), known)
        return known.get(kind[2])

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
        if any(
            part in {"", ".", ".."} or "%" in part or "?" in part or "#" in part
            for part in where[1:].split("/")
        ):
            return {}  # from a manifest: it must not lead elsewhere
        try:
            found = await self._client.get(where, _Resources)
        except NotFound:
            return {}
        return {
            one.kind: Served(one.name, one.namespaced)
            for one in found.resources
            if "/" not in one.name
        }
