"""What the plugin asks of the API server about a claim: two consistent reads, nothing kept and
nothing watched.
"""

from __future__ import annotations

import msgspec
from preflight_kube.client.client import Client, KubeError

from preflight_computedomain.api.names import GROUP, PLURAL, VERSION
from preflight_computedomain.api.types import ResourceClaim
from preflight_computedomain.node.prepare import Unreachable

__all__ = ["ClusterReader"]


class _Metadata(msgspec.Struct):
    uid: str


class _Domain(msgspec.Struct):
    """Of a ComputeDomain no more than whose it is."""

    metadata: _Metadata


class ClusterReader:
    """The two reads of :class:`.prepare.ClusterApi`, by ``client``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def claim(self, namespace: str, name: str) -> ResourceClaim | None:
        """As it is now. Raises :class:`Unreachable`."""
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
        try:
            return await self._client.get_or_none(path, ResourceClaim)
        except KubeError as error:
            raise Unreachable(str(error)) from None

    async def domains(self, namespace: str) -> frozenset[str]:
        """The uids of those in ``namespace`` now. Raises :class:`Unreachable`."""
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}"
        found: set[str] = set()
        try:
            async for page, _ in self._client.pages(path, _Domain):
                found.update(one.metadata.uid for one in page)
        except KubeError as error:
            raise Unreachable(str(error)) from None
        return frozenset(found)
