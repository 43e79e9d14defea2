"""The answer whether pods share one fabric: one ComputeDomain, one NVLink clique. Pure.

Nobody asks IMEX: of its daemons is told what the ComputeDomain's status has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, Final

import msgspec

from preflight_mnnvl.api.names import CLAIM
from preflight_mnnvl.api.types import ComputeDomain, KubeObject, Metadata, shown

DRIVER: Final = "compute-domain.nvidia.com"
WAITING: Final = "not known yet"
"""Begins the answer about pods that are not all there yet."""
MOST_NAMED: Final = 5
_CLIQUE: Final = "cliqueID"
_OF_POD: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a claim that was made for a pod: the entry of the pod that asks for it."""


class _Opaque(msgspec.Struct, rename="camel", gc=False):
    driver: str = ""
    parameters: dict[str, Any] | None = None


class _Configuration(msgspec.Struct, gc=False):
    opaque: _Opaque | None = None


class _Result(msgspec.Struct, gc=False):
    driver: str = ""
    pool: str = ""


class _Devices(msgspec.Struct, gc=False):
    config: list[_Configuration] | None = None
    results: list[_Result] | None = None


class _Spec(msgspec.Struct, gc=False):
    devices: _Devices = msgspec.field(default_factory=_Devices)


class _Status(msgspec.Struct, gc=False):
    allocation: _Spec | None = None


class ResourceClaim(KubeObject):
    """The fields of a claim of which a :class:`PodClaim` is made."""

    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class PodClaim(msgspec.Struct, frozen=True, gc=False):
    """``pod``: for which it was made, empty where it is not the claim of ours; ``domain``: the uid
    of the ComputeDomain that it names; ``node``: where it is allocated. Empty for none yet.
    """

    metadata: Metadata
    pod: str
    domain: str
    node: str


def pod_claim(claim: ResourceClaim) -> PodClaim:
    """The part of a claim that says whose channel a pod has."""
    owner = next(iter(claim.metadata.owner_references or ()), None)
    ours = claim.metadata.annotation(_OF_POD) == CLAIM
    pod = owner.name if ours and owner is not None and owner.kind == "Pod" else ""
    opaque = [config.opaque for config in claim.spec.devices.config or () if config.opaque]
    uids = ((it.parameters or {}).get("domainID") for it in opaque if it.driver == DRIVER)
    allocated = claim.status.allocation
    results = (allocated and allocated.devices.results) or ()
    nodes = (result.pool for result in results if result.driver == DRIVER)
    return PodClaim(claim.metadata.brief(), pod, str(next(filter(None, uids), "")), next(nodes, ""))


class _Attribute(msgspec.Struct, gc=False):
    string: str = ""


class _Device(msgspec.Struct, gc=False):
    """``attributes``: the one that is read."""

    attributes: dict[str, _Attribute] | None = None

    def __post_init__(self) -> None:
        clique = (self.attributes or {}).get(_CLIQUE)
        self.attributes = {_CLIQUE: clique} if clique is not None else None


class _SliceSpec(msgspec.Struct, rename="camel", gc=False):
    node_name: str = ""
    devices: list[_Device] | None = None


class OfferedSlice(KubeObject):
    """A ResourceSlice of the ComputeDomain driver's."""

    spec: _SliceSpec = msgspec.field(default_factory=_SliceSpec)


def cliques_of(slices: Iterable[OfferedSlice]) -> dict[str, str]:
    """By node, the NVLink clique that the driver's ResourceSlices say; NVIDIA's say none."""
    return {
        offered.spec.node_name: clique.string
        for offered in slices
        for device in offered.spec.devices or ()
        if (clique := (device.attributes or {}).get(_CLIQUE)) is not None and clique.string
    }


def one_fabric(
    domain: ComputeDomain | None,
    pods: int,
    claims: Mapping[str, PodClaim],
    cliques: Mapping[str, str],
) -> str:
    """`yes`, `no`, `not known` or :data:`WAITING`, and why. ``pods``: how many there are to be;
    ``claims``: by pod, those that were made; ``cliques``: by node, as far as they are known.
    """
    uid = domain.metadata.uid if domain is not None else ""
    nodes = {claim.node for claim in claims.values() if claim.node}
    known = {cliques[node] for node in nodes if node in cliques}
    waiting = pods - sum(bool(claim.node) for claim in claims.values())
    wrong = []
    if foreign := [pod for pod, claim in claims.items() if claim.domain != uid]:
        wrong.append(f"{some_of(foreign)} with the claim of another domain")
    if len(known) > 1:
        of = ", ".join(sorted(map(shown, known)))
        wrong.append(f"nodes of {len(known)} NVLink cliques ({of})")
    if wrong:
        return f"no: {'; '.join(wrong)}"
    if not pods or waiting > 0:
        return f"{WAITING}: {max(0, waiting)} of {pods} pods wait for their claim"
    if unknown := len(nodes - cliques.keys()):
        return f"not known: the NVLink clique of {unknown} of {len(nodes)} nodes is not known; {_daemons(domain, nodes)}"
    of = "".join(map(shown, known))
    return (
        f"yes: {pods} pods, {len(nodes)} nodes of the NVLink clique {of}; {_daemons(domain, nodes)}"
    )


def of_gang(answers: Mapping[str, str]) -> str:
    """One answer of those about a PodGang's domains, by their names: the worst ones."""
    if len(answers) == 1:
        return next(iter(answers.values()))
    for worst in ("no", WAITING, "not known", "yes"):
        of = [
            f"{name}: {answer[len(worst) + 2 :]}"
            for name, answer in answers.items()
            if answer.startswith(f"{worst}:")
        ]
        if of:
            more = f"; {len(of) - MOST_NAMED} domains more" if len(of) > MOST_NAMED else ""
            return f"{worst}: {'; '.join(of[:MOST_NAMED])}{more}"
    return ""


def _daemons(domain: ComputeDomain | None, nodes: Set[str]) -> str:
    """Say on how many of the pods' ``nodes`` the driver's daemons are ready, once it has any."""
    listed = (domain and domain.status and domain.status.nodes) or ()
    if not listed:
        return "its status names no daemons, and those that hosts run are not asked"
    ready = nodes & {node.name for node in listed if node.status == "Ready"}
    return f"its daemons are ready on {len(ready)} of {len(nodes)} nodes"


def some_of(pods: Iterable[str]) -> str:
    """The names of pods, as many as a line holds."""
    names = sorted(map(shown, pods))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"
