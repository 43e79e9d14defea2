"""What there is in a cluster about ComputeDomains, as far as the administrator's commands speak of
it.

Pure: ``look`` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from .names import DRIVER, TARGET_LABEL
from .objects import (
    AllocationConfig,
    AllocationResult,
    ClaimTemplate,
    ComputeDomain,
    DeviceConfig,
    Metadata,
    Slice,
)

__all__ = ["ClusterObjects", "Labeled", "Pod", "UsedClaim", "is_daemon_template"]

DAEMON: Final = "Daemon"
"""Value of the label by which driver-managed mode marks its daemons' templates."""


class _Struct(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    pass


class Labeled(_Struct, frozen=True, kw_only=True):
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


class UsedClaim(_Struct, frozen=True, kw_only=True):
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
class ClusterObjects:
    """``plugins``: pods of the kubelet plugin. ``unread``: what could not be read, one sentence
    each; what is said of it then rests on nothing.
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


def is_daemon_template(template: ClaimTemplate) -> bool:
    """Whether driver-managed mode has left it."""
    return template.metadata.labels.get(TARGET_LABEL) == DAEMON
