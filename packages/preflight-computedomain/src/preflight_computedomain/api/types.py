"""The fields of Kubernetes objects that the programs read, and no others. Pure.

What is kept as it came stays bytes: a claim's status goes into the checkpoint unchanged, and
parameters are judged by :mod:`.opaque_config`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from preflight_computedomain.api.names import DRIVER, GRANTED, LABEL, TARGET_LABEL

CLIQUE_LABEL: Final = "nvidia.com/gpu.clique"
"""Of a node: its NVLink clique, as GPU feature discovery says it."""
_LABELS: Final = (LABEL, TARGET_LABEL, CLIQUE_LABEL)
_MOST_FINALIZERS: Final = 64


class _Object(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    pass


class OwnerReference(_Object, frozen=True, kw_only=True):
    """Whom an object belongs to. ``controller`` is null in some."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


Place = tuple[str, str]
"""Namespace and name."""


class Metadata(_Object, frozen=True, kw_only=True):
    """Times are RFC 3339 as sent; empty where there is none. ``labels``,
    ``annotations``: those that are read; ``owner_references``: the controller.
    """

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()

    def __post_init__(self) -> None:
        put = msgspec.structs.force_setattr
        if labels := self.labels:
            put(self, "labels", {key: labels[key] for key in _LABELS if key in labels})
        if annotations := self.annotations:
            kept = {GRANTED: annotations[GRANTED]} if GRANTED in annotations else {}
            put(self, "annotations", kept)
        if owners := self.owner_references:
            put(self, "owner_references", tuple(owner for owner in owners if owner.controller)[:1])

    @property
    def place(self) -> Place:
        """Which object has this name now, whatever its uid."""
        return self.namespace, self.name

    @property
    def cliques(self) -> frozenset[str]:
        """The NVLink cliques that a ComputeDomain has for itself."""
        return frozenset(filter(None, self.annotations.get(GRANTED, "").split(",")))

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Identified(_Object, frozen=True, kw_only=True):
    """Any object, of which its metadata are enough."""

    metadata: Metadata


class _FinalizedObject(Identified, frozen=True, kw_only=True):
    """One with more finalizers than anybody has cannot be read: all are written back, and
    Kubernetes bounds them by an object's bytes alone.
    """

    def __post_init__(self) -> None:
        if (count := len(self.metadata.finalizers)) > _MOST_FINALIZERS:
            raise ValueError(f"it has {count} finalizers, more than {_MOST_FINALIZERS}")


class _TemplateName(_Object, frozen=True, kw_only=True):
    name: str = ""


class _Channel(_Object, frozen=True, kw_only=True):
    resource_claim_template: _TemplateName = _TemplateName()
    allocation_mode: str = "Single"


class _DomainSpec(_Object, frozen=True, kw_only=True):
    channel: _Channel = _Channel()


class ComputeDomainStatus(_Object, frozen=True, kw_only=True):
    """``status``: Ready, NotReady, or empty before the first write."""

    status: str = ""


class ComputeDomain(_FinalizedObject, frozen=True, kw_only=True):
    """A ComputeDomain. ``spec.channel.allocation_mode``: Single or All."""

    spec: _DomainSpec = _DomainSpec()
    status: ComputeDomainStatus = ComputeDomainStatus()

    @property
    def template(self) -> str:
        """The name of the ResourceClaimTemplate that it asks for."""
        return self.spec.channel.resource_claim_template.name


class Opaque(_Object, frozen=True, kw_only=True):
    """``parameters``: JSON as it was sent, for the driver that it names to read."""

    driver: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"null")

    def __post_init__(self) -> None:
        # What is kept must not keep the whole answer that it came in.
        kept = self.parameters.copy() if self.driver == DRIVER else msgspec.Raw(b"null")
        msgspec.structs.force_setattr(self, "parameters", kept)


class DeviceConfig(_Object, frozen=True, kw_only=True):
    """A configuration in a claim or template; ``requests``: to which it applies, none means all.
    ``source``: of an allocation's, FromClass or FromClaim.
    """

    requests: tuple[str, ...] = ()
    opaque: Opaque | None = None
    source: str = ""


class AllocationResult(_Object, frozen=True, kw_only=True):
    """One device that the scheduler chose. ``request`` may be ``request/subrequest``."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""

    @property
    def base(self) -> str:
        """The request without the subrequest, as the kubelet names it."""
        return self.request.partition("/")[0]


class _Devices(_Object, frozen=True, kw_only=True):
    results: tuple[AllocationResult, ...] = ()
    config: tuple[DeviceConfig, ...] = ()

    @property
    def ours(self) -> tuple[bytes, ...]:
        """The parameters for this driver."""
        return tuple(
            bytes(config.opaque.parameters)
            for config in self.config
            if config.opaque is not None and config.opaque.driver == DRIVER
        )


class _ClaimSpec(_Object, frozen=True, kw_only=True):
    """That of a claim, and what the scheduler has made of it: an allocation has the same fields."""

    devices: _Devices = _Devices()


class _TemplateSpec(_Object, frozen=True, kw_only=True):
    spec: _ClaimSpec = _ClaimSpec()


class ClaimTemplate(_FinalizedObject, frozen=True, kw_only=True):
    """A ResourceClaimTemplate."""

    spec: _TemplateSpec = _TemplateSpec()

    @property
    def configs(self) -> tuple[bytes, ...]:
        """The parameters for this driver that its claims get."""
        return self.spec.spec.devices.ours


class _User(_Object, frozen=True, kw_only=True):
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(_Object, frozen=True, kw_only=True):
    """``allocation`` is None before the scheduler has chosen, and after the last pod has gone.
    ``reserved_for``: pods.
    """

    allocation: _ClaimSpec | None = None
    reserved_for: tuple[_User, ...] = ()


class ResourceClaim(_Object, frozen=True, kw_only=True):
    """A ResourceClaim. ``status`` is JSON as it was sent."""

    metadata: Metadata
    status: msgspec.Raw = msgspec.Raw(b"{}")


class UsedClaim(_Object, frozen=True, kw_only=True):
    """A ResourceClaim with who uses it."""

    metadata: Metadata
    spec: _ClaimSpec = _ClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()

    @property
    def configs(self) -> tuple[bytes, ...]:
        """The parameters for this driver."""
        return self.spec.devices.ours

    @property
    def nodes(self) -> tuple[str, ...]:
        """On which nodes it has a device of this driver."""
        allocation = self.status.allocation
        results = () if allocation is None else allocation.devices.results
        return tuple(sorted({result.pool for result in results if result.driver == DRIVER}))


class _Pool(_Object, frozen=True, kw_only=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(_Object, frozen=True, kw_only=True):
    """A driver's offer on a node. ``devices``: all that is said of them. ``all_nodes`` and the
    two after it: instead of ``node_name``, which ours never is.
    """

    driver: str = ""
    node_name: str = ""
    pool: _Pool = _Pool()
    devices: list[Any] = []
    all_nodes: bool = False
    node_selector: msgspec.Raw = msgspec.Raw(b"")
    per_device_node_selection: bool = False


class Slice(_Object, frozen=True, kw_only=True):
    """A ResourceSlice."""

    metadata: Metadata
    spec: SliceSpec = SliceSpec()
