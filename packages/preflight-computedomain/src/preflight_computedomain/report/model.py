"""The objects in a cluster that the administrator's commands speak of; :mod:`.live` reads them."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from preflight_computedomain.api.types import (
    ClaimTemplate,
    ComputeDomain,
    Metadata,
    Slice,
    UsedClaim,
)


class Labeled(msgspec.Struct, frozen=True, kw_only=True):
    """Any object of which its name and labels are enough."""

    metadata: Metadata


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
    nodes: list[Labeled] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    plugins: list[Pod] = field(default_factory=list)
    daemons: list[Labeled] = field(default_factory=list)
    cliques: list[Labeled] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    served: bool = True
