"""Which namespaces are opted in, and why pods of theirs have GPUs, by extended resources or by
claims (DRA), that no check was injected for.

Pure. A pod gets its checks at admission or never: what slipped past the webhook stays unchecked
until it is created anew. What a pod's claims were then it has written down; they are compared with
what they are now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from preflight_kube.api.workloads.model import at, maps
from preflight_proto import names
from preflight_proto.admitted import ContractError, SeenClaim, decode_admitted, swapped
from preflight_proto.devices import (
    IMPLICIT,
    OTHER_RESOURCES,
    is_for_gpus,
    may_be_gpus,
    requests_of,
)

LEFT_OUT: Final = f"{names.CHECKED_LABEL}!={names.CHECKED}"
"""The label selector of pods without checks."""
CARRIES_CHECKS: Final = f"{names.CHECKED_LABEL}={names.CHECKED}"
"""The label selector of pods with checks."""

_DECIDED: Final = frozenset({names.CHECKED, names.NO_CHECK_APPLIES})
"""What the webhook writes to pods that it has decided about; any other value says nothing."""
# The API server's picture of a pod that the kubelet has from a file.
_MIRROR: Final = "kubernetes.io/config.mirror"


class _NamespaceMetadata(msgspec.Struct, gc=False):
    name: str
    labels: dict[str, str] | None = None


class Namespace(msgspec.Struct, gc=False):
    """Of its labels only ours is kept."""

    metadata: _NamespaceMetadata

    def __post_init__(self) -> None:
        label = (self.metadata.labels or {}).get(names.NAMESPACE_LABEL)
        self.metadata.labels = {} if label is None else {names.NAMESPACE_LABEL: label}


def opted_in(namespace: Namespace, listed: Collection[str], excluded: Collection[str]) -> bool:
    """Whether a namespace is labelled or ``listed``, and neither ``excluded`` nor switched off."""
    label = (namespace.metadata.labels or {}).get(names.NAMESPACE_LABEL)
    if namespace.metadata.name in excluded or label == names.NAMESPACE_DISABLED:
        return False
    return label == names.NAMESPACE_ENABLED or namespace.metadata.name in listed


class _Object(msgspec.Struct, rename="camel", gc=False):
    pass


class Origin(_Object, kw_only=True):
    """Which of the objects that have had a name this one is."""

    name: str
    uid: str = ""
    creation_timestamp: datetime | None = None


class ResourceClaim(_Object, kw_only=True):
    """What is asked for, and what was allocated; or a template, of which each pod gets a claim."""

    metadata: Origin
    spec: Any = None
    status: Any = None


class _ClassSpec(_Object):
    extended_resource_name: str | None = None


class DeviceClass(_Object, kw_only=True):
    """A device class, as far as it says which extended resource stands for it."""

    metadata: Origin
    spec: _ClassSpec | None = None


class GpuClaims(msgspec.Struct, frozen=True):
    """Names of a namespace's claims; by name those that give GPUs, and templates of such claims."""

    claims: Collection[str] = frozenset()
    gpu_claims: Mapping[str, Origin] = {}
    gpu_templates: Mapping[str, Origin] = {}


NO_CLAIMS: Final = GpuClaims()


def resource_names(
    named: Iterable[str], classes: Collection[str], found: Iterable[DeviceClass]
) -> frozenset[str]:
    """Extended resources that are GPUs: those ``named``, and those of the device ``classes``."""
    own = (
        one.spec.extended_resource_name
        for one in found
        if one.spec is not None and one.metadata.name in classes
    )
    return frozenset([*named, *(IMPLICIT + one for one in classes), *filter(None, own)])


def gives_gpus(claim: ResourceClaim, classes: Collection[str]) -> bool:
    """Tell whether a claim has GPUs; while it has nothing yet, whether it may get some.

    Administrative access gives a pod no device of its own.
    """
    met = None
    if (allocation := at(claim.status, ("allocation",))) is not None:
        met = {str(one.get("request")) for one in maps(at(allocation, ("devices", "results")))}
    return any(
        is_for_gpus(request.classes, classes, admin=request.admin)
        for request in requests_of({"spec": claim.spec}, met)
    )


class _About(_Object):
    name: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: datetime | None = None


class _Resources(_Object):
    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class _Container(_Object):
    name: str = ""
    resources: _Resources | None = None


class _PodClaim(_Object):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class _Spec(_Object):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    resource_claims: list[_PodClaim] | None = None
    resources: _Resources | None = None


class _Status(_Object):
    phase: str = "Pending"
    resource_claim_statuses: list[_PodClaim] | None = None


class AuditedPod(_Object):
    """A pod that :data:`LEFT_OUT` or :data:`CARRIES_CHECKS` selects."""

    metadata: _About
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def claims(self) -> bool:
        """Whether it asks for devices by claims."""
        return bool(self.spec.resource_claims)


def why_unchecked(
    pod: AuditedPod,
    gpus: Collection[str],
    claims: GpuClaims = NO_CLAIMS,
    *,
    gpu_claims: bool = False,
    others: Collection[str] = OTHER_RESOURCES,
) -> str | None:
    """Why a pod of an opted-in namespace may lack the checks for its GPUs; None where it does not.

    ``gpus``: extended resources; ``claims``: what its namespace's claims give now, whatever they
    gave when it was admitted; ``gpu_claims``: whether the annotation of a GpuClaim gives GPUs;
    ``others``: resources of nvidia.com that are no GPUs (globs).

    ``static-pod``: admission cannot change it. ``asked-for-none``: by its annotation.
    ``claim-differs``: it was decided about another claim or template, or about one that was not for
    GPUs; the only reason of a pod that carries checks, or to which none applies.
    ``unknown-resource``: it asks for what may be GPUs, and nobody has said so. ``not-started``: it
    can be created anew, and nothing is lost. ``running``: it was admitted before the opt-in,
    while no webhook answered, or asks for its GPUs in a way that the webhook is not configured for.
    """
    if pod.metadata.deletion_timestamp is not None or pod.status.phase in {"Succeeded", "Failed"}:
        return None
    if (pod.metadata.labels or {}).get(names.CHECKED_LABEL) in _DECIDED and not _forged(pod):
        return "claim-differs" if _differs(pod, claims) else None
    annotations, asked = pod.metadata.annotations or {}, _resources(pod)
    known = (
        not asked.isdisjoint(gpus)
        or any(_gpus_by_claim(pod, claims))
        or (gpu_claims and names.GPU_CLAIM_ANNOTATION in annotations)
    )
    if not known and not any(may_be_gpus(name, others) for name in asked):
        return None
    if _MIRROR in annotations:
        return "static-pod"
    if annotations.get(names.CHECKS_ANNOTATION, "every").strip() == "":
        return "asked-for-none"
    if _differs(pod, claims):
        return "claim-differs"
    if not known:
        return "unknown-resource"
    return "not-started" if pod.status.phase == "Pending" else "running"


def _forged(pod: AuditedPod) -> bool:
    """Whether it says that it carries checks, and has no container of any."""
    if (pod.metadata.labels or {}).get(names.CHECKED_LABEL) != names.CHECKED:
        return False
    every = pod.spec.init_containers or ()
    return not any(one.name.startswith(names.CONTAINER_PREFIX) for one in every)


def _resources(pod: AuditedPod) -> set[str]:
    """What it asks for: a device that any init container has, sidecar or not, is the pod's."""
    spec = pod.spec
    containers = [*(spec.containers or ()), *(spec.init_containers or ())]
    return {
        name
        for resources in (spec.resources, *(one.resources for one in containers))
        if resources is not None
        for asked in (resources.limits, resources.requests)
        for name, quantity in (asked or {}).items()
        if not set("123456789").isdisjoint(str(quantity))
    }


class _Gpus(NamedTuple):
    """A claim of a pod that gives GPUs, None while it is not made; its template as it is now."""

    entry: str
    claim: Origin | None
    template: Origin | None


def _gpus_by_claim(pod: AuditedPod, claims: GpuClaims) -> Iterator[_Gpus]:
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses or ()}
    for asked in pod.spec.resource_claims or ():
        name = asked.resource_claim_name or made.get(asked.name)
        claim = claims.gpu_claims.get(name or "")
        template = claims.gpu_templates.get(asked.resource_claim_template_name or "")
        # A claim that is not made yet, or has gone: what its template asks for.
        if claim is not None or (template is not None and name not in claims.claims):
            yield _Gpus(asked.name, claim, template)


def _differs(pod: AuditedPod, claims: GpuClaims) -> bool:
    """Whether admission decided about other claims, as far as something readable says so."""
    text = (pod.metadata.annotations or {}).get(names.CLAIMS_ANNOTATION)
    if text is None or not pod.claims:
        return False
    try:
        admitted = decode_admitted(text).claims
    except ContractError:
        return False
    return any(_anew(admitted.get(one.entry), one) for one in _gpus_by_claim(pod, claims))


def _anew(seen: SeenClaim | None, now: _Gpus) -> bool:
    live = now.claim or now.template
    if swapped(seen, live.uid if live is not None else "", gpu=True):
        return True
    if seen is None or seen.kind != "ResourceClaimTemplate" or now.template is None:
        return False
    if seen.uid in {"", now.template.uid}:
        return False
    # There is another template by now. The claim was made of it, unless the claim is older. Both
    # are known to the second.
    claim = now.claim.creation_timestamp if now.claim is not None else None
    template = now.template.creation_timestamp
    return claim is None or template is None or template <= claim
