"""What there is in a cluster about ComputeDomains, read once with the administrator's own rights. It writes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from preflight_kube.client import Client, KubeError, NotFound
from preflight_kube.connection import connection

from .names import DRIVER, GROUP, LABEL, PLURAL, TARGET_LABEL, VERSION
from .objects import (
    AllocationConfig,
    AllocationResult,
    ClaimTemplate,
    ComputeDomain,
    DeviceConfig,
    Metadata,
    Slice,
)

__all__ = ["Claim", "Labelled", "Pod", "Seen", "look"]

T = TypeVar("T")
DAEMON: Final = "Daemon"
"""Value of the label by which driver-managed mode marks its daemons' templates."""


class _Struct(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    pass


class Labelled(_Struct, frozen=True, kw_only=True):
    """Any object of which its name and labels are enough."""

    metadata: Metadata


class _SpecDevices(_Struct, frozen=True, kw_only=True):
    config: tuple[DeviceConfig, ...] = ()


class _Spec(_Struct, frozen=True, kw_only=True):
    devices: _SpecDevices = _SpecDevices()


class _AllocatedDevices(_Struct, frozen=True, kw_only=True):
    results: tuple[AllocationResult, ...] = ()
    config: tuple[AllocationConfig, ...] = ()


class _Allocation(_Struct, frozen=True, kw_only=True):
    devices: _AllocatedDevices = _AllocatedDevices()


class _User(_Struct, frozen=True, kw_only=True):
    name: str = ""
    uid: str = ""


class _ClaimStatus(_Struct, frozen=True, kw_only=True):
    allocation: _Allocation | None = None
    reserved_for: tuple[_User, ...] = ()


class Claim(_Struct, frozen=True, kw_only=True):
    """A ResourceClaim with who uses it."""

    metadata: Metadata
    spec: _Spec = _Spec()
    status: _ClaimStatus = _ClaimStatus()

    @property
    def configs(self) -> tuple[bytes, ...]:
        """The parameters for this driver."""
        return tuple(
            bytes(one.opaque.parameters)
            for one in self.spec.devices.config
            if one.opaque is not None and one.opaque.driver == DRIVER
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        """On which nodes it has a device of this driver."""
        allocated = self.status.allocation
        found = () if allocated is None else allocated.devices.results
        return tuple(sorted({one.pool for one in found if one.driver == DRIVER}))


class _PodSpec(_Struct, frozen=True, kw_only=True):
    node_name: str = ""


class _PodStatus(_Struct, frozen=True, kw_only=True):
    phase: str = ""


class Pod(_Struct, frozen=True, kw_only=True):
    """Where a pod is, and how far."""

    metadata: Metadata
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


@dataclass
class Seen:
    """``unread``: what could not be read, one sentence each; what is said of it then rests on nothing."""

    domains: list[ComputeDomain] = field(default_factory=list)
    templates: list[ClaimTemplate] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    nodes: list[Labelled] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    daemons: list[Labelled] = field(default_factory=list)
    cliques: list[Labelled] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


async def look(namespace: str = "") -> Seen:
    """The whole cluster; with ``namespace`` that one, and its pods. Raises KubeError where the cluster is not reached."""
    async with Client(connection(home=Path.home()), agent="preflight-computedomain") as client:
        return await _look(client, namespace)


async def _look(client: Client, namespace: str) -> Seen:
    seen = Seen()

    async def every(path: str, type_: type[T], *, missing: bool = False, **params: Any) -> list[T]:
        group, _, plural = path.rpartition("/")
        there = f"{group}/namespaces/{namespace}/{plural}" if namespace else path
        found: list[T] = []
        try:
            async for page, _ in client.pages(there, type_, params=params or None):
                found += page
        except NotFound:
            if not missing:
                seen.unread.append(f"{there}: this cluster does not serve it; install the definition.")
        except KubeError as error:
            if error.status == 0:
                raise
            seen.unread.append(str(error))
        return found

    seen.domains = await every(f"/apis/{GROUP}/{VERSION}/{PLURAL}", ComputeDomain)
    seen.templates = await every("/apis/resource.k8s.io/v1/resourceclaimtemplates", ClaimTemplate)
    seen.claims = await every("/apis/resource.k8s.io/v1/resourceclaims", Claim)
    if namespace:
        seen.pods = await every("/api/v1/pods", Pod)
        return seen
    seen.slices = await every("/apis/resource.k8s.io/v1/resourceslices", Slice, fieldSelector=f"spec.driver={DRIVER}")
    seen.nodes = await every("/api/v1/nodes", Labelled)
    seen.daemons = await every("/apis/apps/v1/daemonsets", Labelled, labelSelector=LABEL)
    seen.cliques = await every(f"/apis/{GROUP}/{VERSION}/computedomaincliques", Labelled, missing=True)
    return seen


def is_daemon_template(template: ClaimTemplate) -> bool:
    """Whether driver-managed mode has left it."""
    return template.metadata.labels.get(TARGET_LABEL) == DAEMON
