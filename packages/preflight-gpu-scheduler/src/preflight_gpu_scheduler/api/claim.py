"""GpuClaim: what each pod that names it wants. The Structs are the schema."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from preflight_kube.api.crd import ValidationRule

from preflight_gpu_scheduler.api import allocation, messages
from preflight_gpu_scheduler.api.types import Metadata

MOST_COUNT: Final = 64
MOST_KEY: Final = 317
"""Characters of a label's key: a DNS subdomain, a slash, and 63 more."""
Policy = Literal["contiguous", "spread", "preferIds"]
Mode = Literal["Required", "Preferred", "Ignore"]


class _Section(
    msgspec.Struct, rename="camel", frozen=True, kw_only=True, forbid_unknown_fields=True
):
    pass


class Devices(_Section, frozen=True, kw_only=True):
    """``prefer_ids``: with the policy of that name, in order of preference."""

    count: Annotated[int, Meta(ge=1, le=MOST_COUNT, description="GPUs for each pod.")] = 1
    policy: Policy = "contiguous"
    prefer_ids: Annotated[tuple[allocation.Id, ...], Meta(max_length=MOST_COUNT)] = ()
    exclusivity: Annotated[
        Literal["Exclusive"], Meta(description="Shared and MIG are not supported; leave it out.")
    ] = "Exclusive"


class Topology(_Section, frozen=True, kw_only=True):
    """How much the way between the GPUs matters. ``min_bandwidth_gbps``: GB/s in one direction, of
    every GPU.
    """

    mode: Mode = "Preferred"
    min_bandwidth_gbps: Annotated[float, Meta(ge=0, le=100_000)] = msgspec.field(
        name="minBandwidthGBps", default=0.0
    )


class Selector(_Section, frozen=True, kw_only=True):
    """Labels that the node must have."""

    match_labels: Annotated[
        dict[str, Annotated[str, Meta(max_length=63)]], Meta(max_length=64)
    ] = {}


class Spec(_Section, frozen=True, kw_only=True):
    """What each pod that names the claim gets. It cannot be changed: make another claim."""

    devices: Devices = Devices()
    topology: Topology = Topology()
    selector: Selector = Selector()
    gang_ref: Annotated[
        str,
        Meta(
            pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$",
            max_length=253,
            description="The name of its pods' gang.",
        ),
    ] = ""


class Want(msgspec.Struct, frozen=True):
    """The part of a claim that decides which GPUs it may be. ``least``: GB/s, 0 for any."""

    count: int
    policy: Policy = "contiguous"
    mode: Mode = "Preferred"
    least: float = 0.0
    prefer: tuple[int, ...] = ()


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A GpuClaim as far as decisions read it."""

    namespace: str
    name: str
    uid: str
    spec: Spec

    @property
    def want(self) -> Want:
        """The part of it that decides which GPUs it may be."""
        gpus, way = self.spec.devices, self.spec.topology
        return Want(gpus.count, gpus.policy, way.mode, way.min_bandwidth_gbps, gpus.prefer_ids)

    @property
    def count(self) -> int:
        """GPUs for each pod."""
        return self.spec.devices.count

    @property
    def gang(self) -> tuple[str, str] | None:
        """(namespace, name) of the gang; None where its pods are single ones."""
        return (self.namespace, self.spec.gang_ref) if self.spec.gang_ref else None


_RULES: Final = (
    ("self == oldSelf", "spec: cannot be changed; make another GpuClaim."),
    (
        "size(self.devices.preferIds) == 0 || self.devices.policy == 'preferIds'",
        "spec.devices.preferIds: is read with policy preferIds only; set that policy, or leave it out.",
    ),
    (
        "size(self.devices.preferIds) > 0 || self.devices.policy != 'preferIds'",
        "spec.devices.preferIds: is empty with policy preferIds; name the ids, or use policy contiguous.",
    ),
    (
        "self.devices.preferIds.all(x, self.devices.preferIds.exists_one(y, x == y))",
        "spec.devices.preferIds: has an id twice; name each once.",
    ),
    (
        "self.devices.policy != 'spread' || self.topology.mode == 'Preferred'",
        "spec.topology.mode: must be Preferred with policy spread, which decides about islands itself; leave it out.",
    ),
    (
        "self.topology.minBandwidthGBps == 0.0 || self.topology.mode == 'Required'",
        "spec.topology.minBandwidthGBps: is read with mode Required only; set that mode, or leave it out.",
    ),
    (
        f"!has(self.selector.matchLabels) || self.selector.matchLabels.all(k, size(k) <= {MOST_KEY})",
        f"spec.selector.matchLabels: has a key of more than {MOST_KEY} characters, as no label has; shorten it.",
    ),
)
"""What a schema, whose defaults the API server fills in first, cannot say: as CEL, and why not."""
RULES: Final = tuple(ValidationRule(("spec",), cel, why) for cel, why in _RULES)


class _Written(msgspec.Struct):
    spec: Spec


class RawClaim(msgspec.Struct, frozen=True):
    """A GpuClaim as a mirror keeps it, without its status, which nobody here reads."""

    metadata: Metadata
    spec: Any = None

    def read(self) -> Claim | list[str]:
        """The claim, or every problem of it, one sentence each, beginning with its path."""
        about, raw = self.metadata, {} if self.spec is None else {"spec": self.spec}
        try:
            spec = msgspec.convert(raw, _Written).spec
        except (msgspec.ValidationError, RecursionError) as error:
            return messages.misfits(_Written, raw, error, "the claim")
        return Claim(namespace=about.namespace, name=about.name, uid=about.uid, spec=spec)
