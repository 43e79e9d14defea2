"""Reads what there is in a cluster about ComputeDomains, once; it writes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client, KubeError, NotFound

from preflight_computedomain.api import names
from preflight_computedomain.api.types import (
    ClaimTemplate,
    ComputeDomain,
    Identified,
    Metadata,
    Slice,
    UsedClaim,
)

T = TypeVar("T")
_PLUGINS: Final = (
    "app.kubernetes.io/name=preflight-computedomain,app.kubernetes.io/component=kubelet-plugin"
)
"""As the chart labels the plugin's pods."""


class _PodSpec(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    node_name: str = ""


class _PodStatus(msgspec.Struct, frozen=True, kw_only=True):
    phase: str = ""


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pod is, and how far."""

    metadata: Metadata
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


@dataclass
class ClusterObjects:
    """``plugins``: pods of the kubelet plugin. ``unread``: what could not be read, in sentences.
    ``served``: whether the cluster has the definition of ComputeDomain.
    """

    domains: list[ComputeDomain] = field(default_factory=list)
    templates: list[ClaimTemplate] = field(default_factory=list)
    claims: list[UsedClaim] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    nodes: list[Identified] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    plugins: list[Pod] = field(default_factory=list)
    daemons: list[Identified] = field(default_factory=list)
    cliques: list[Identified] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    served: bool = True


async def read_cluster(namespace: str = "") -> ClusterObjects:
    """The whole cluster; with ``namespace`` that one, and its pods. Raises KubeError."""
    async with Client(connection(home=Path.home()), agent="preflight-computedomain") as client:
        return await _read(client, namespace)


async def _read(client: Client, namespace: str) -> ClusterObjects:
    seen, absent = ClusterObjects(), []

    async def every(path: str, type_: type[T], *, missing: bool = False, **params: Any) -> list[T]:
        there = names.namespaced(path, namespace) if namespace else path
        items: list[T] = []
        try:
            async for page, _ in client.pages(there, type_, params=params or None):
                items += page
        except NotFound:
            if path == names.DOMAINS:
                seen.served = False
                absent.append(f"{there}: this cluster does not serve it; install the definition.")
            elif not missing:
                absent.append(
                    f"{there}: this cluster does not serve it; Kubernetes does from 1.34 on."
                )
        except KubeError as error:
            if error.status == 0:
                raise
            seen.unread.append(str(error))
        return items

    seen.domains = await every(names.DOMAINS, ComputeDomain)
    seen.templates = await every(names.TEMPLATES, ClaimTemplate)
    seen.claims = await every(names.CLAIMS, UsedClaim)
    if namespace:
        seen.pods = await every("/api/v1/pods", Pod)
        seen.unread += absent
        return seen
    seen.slices = await every(names.SLICES, Slice, fieldSelector=f"spec.driver={names.DRIVER}")
    seen.nodes = await every("/api/v1/nodes", Identified)
    seen.plugins = await every("/api/v1/pods", Pod, labelSelector=_PLUGINS)
    seen.daemons = await every("/apis/apps/v1/daemonsets", Identified, labelSelector=names.LABEL)
    cliques = f"/apis/{names.API_VERSION}/computedomaincliques"
    seen.cliques = await every(cliques, Identified, missing=True)
    if seen.served or seen.plugins:  # else nobody needs them here
        seen.unread += absent
    return seen
