"""What devices a pod gets: extended resources and claims of dynamic resource allocation, by what
they are here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from preflight_kube.api.quantities import UNIT
from preflight_kube.api.workloads.model import map_of
from preflight_proto.devices import DeviceRequest, is_for_gpus, requests_of

from preflight_webhook.config.config import CheckConfig, Config
from preflight_webhook.core.detect.resources import COMPUTE, ResourceTally, kind, matches

CLAIMS: Final = "resourceclaims"
TEMPLATES: Final = "resourceclaimtemplates"
NO_GPU: Final = frozenset({"network", "mirrored"})
"""Kinds of what a pod gets beside GPUs."""


class Ref(NamedTuple):
    """A claim or a template in the pod's namespace; ``plural`` is the resource's."""

    plural: str
    name: str

    @property
    def kind(self) -> Literal["ResourceClaim", "ResourceClaimTemplate"]:
        """The object's kind."""
        return "ResourceClaim" if self.plural == CLAIMS else "ResourceClaimTemplate"


class DeviceClaim(NamedTuple):
    """What a claim, or the template of one, asks for. ``uid``: its own; ``used_by``: the pod that
    has it now, empty where none has.
    """

    requests: tuple[DeviceRequest, ...]
    uid: str = ""
    used_by: str = ""


PodClaim = tuple[str, Ref | None, DeviceClaim | None]
"""A claim of a pod: its name there, which it is, and what it asks for, None where there is none."""


class ClaimDevices(NamedTuple):
    """What a claim gives. ``gpus``: how many, None when that is not known beforehand; ``mirrored``:
    what the checks get as the workload does, and is neither GPU nor network device, such as a
    channel to GPUs of other nodes."""

    gpu: bool
    network: bool
    gpus: int | None
    mirrored: bool = False


def ref(claim: str | None, template: str | None) -> Ref | None:
    """What an entry of `spec.resourceClaims` names, or None when that is nothing known here."""
    if template:
        return Ref(TEMPLATES, template)
    return Ref(CLAIMS, claim) if claim else None


def detects(config: Config) -> bool:
    """Tell whether claims matter at all here."""
    return bool(
        config.gpu_detection.device_classes
        or config.network_detection.device_classes
        or config.mirror_claims
    )


def read_claim(item: Mapping[str, Any]) -> DeviceClaim:
    """A ResourceClaim or ResourceClaimTemplate as the API server gives it. Never raises."""
    uid = map_of(item.get("metadata")).get("uid")
    return DeviceClaim(
        tuple(requests_of(item)),
        uid if isinstance(uid, str) else "",
        _user(map_of(item.get("status")).get("reservedFor")),
    )


def _user(reserved: Any) -> str:
    """The first of those that a claim is reserved for, which are pods."""
    first = map_of(reserved[0]) if isinstance(reserved, list) and reserved else {}
    return str(first.get("name") or "another") if first else ""


def given_by(claim: DeviceClaim | None, config: Config) -> ClaimDevices:
    """Devices that the configured classes make of ``claim``; None is one that does not exist.
    Administrative access gives a pod no device of its own.

    A request that may be met by GPUs or by something else is for GPUs: the scheduler decides, and
    it may decide for them.
    """
    classes, nics = config.gpu_detection.device_classes, config.network_detection.device_classes
    if claim is None:  # without classes no claim is for GPUs
        return ClaimDevices(bool(classes) and config.unresolved_claims != "allow", False, None)
    gpu = network = mirrored = False
    total: int | None = 0
    for names, amount, admin in claim.requests:
        if admin:
            continue
        network = network or _all_like(names, nics)
        mirrored = mirrored or _all_like(names, config.mirror_claims)
        if is_for_gpus(names, classes, admin=admin):
            known = amount is not None and total is not None and _all_like(names, classes)
            gpu, total = True, (total or 0) + (amount or 0) if known else None
    return ClaimDevices(gpu, network, total, mirrored)


def _all_like(names: tuple[str, ...], globs: tuple[str, ...]) -> bool:
    """Tell whether, whichever alternative the scheduler takes, it is of these classes."""
    return bool(names and globs) and all(matches(name, globs) for name in names)


class CountedDevices(NamedTuple):
    """Those of a resource or a claim. ``kind``: gpu (whole ones of the pod's own), mig, shared,
    network, or mirrored (a claim of neither); ``number``: of a claim, how many GPUs it gives, None
    where that is not known.
    """

    kind: str
    number: int | None


class PodDevices(NamedTuple):
    """What a pod gets.

    ``resources``: extended ones that the scheduler reserves; ``claims``: those that checks get;
    ``network``: whether any of it is a network device; ``busy``: GPU claims that another pod has
    now, each with that pod; ``gpus``: how many of each resource that is GPUs or slices of them;
    ``gpu_claims``: names of those for GPUs; ``of_gpus``: the kinds of GPUs that there are (gpu,
    mig, shared); ``annotation``: which alone says that the pod gets GPUs, how many nobody knows
    yet; empty for none.
    """

    resources: dict[str, CountedDevices]
    claims: dict[str, CountedDevices]
    network: bool
    busy: dict[str, str]
    gpus: dict[str, int]
    gpu_claims: tuple[str, ...]
    of_gpus: frozenset[str]
    annotation: str


def devices_of(
    accounts: Mapping[str, ResourceTally],
    named: Sequence[PodClaim],
    config: Config,
    *,
    claimed: bool,
) -> PodDevices:
    """What a pod with these ``accounts`` of its resources and these claims gets. ``claimed``: it
    has the annotation of deviceVariables, be its claim there already or not.
    """
    resources = {
        name: CountedDevices(kind(name, config), number)
        for name, account in accounts.items()
        if name not in COMPUTE and (number := account.requests.effective // UNIT) > 0
    }
    gpus = {name: of.number or 0 for name, of in resources.items() if of.kind != "network"}
    network = len(gpus) < len(resources)
    claims: dict[str, CountedDevices] = {}
    busy: dict[str, str] = {}
    for name, which, claim in named:
        given = given_by(claim, config)
        network = network or given.network
        if given.gpu:
            if claim is not None and claim.used_by:
                busy[name] = claim.used_by
            shared = _shared(which, claim, config)
            claims[name] = CountedDevices("shared" if shared else "gpu", given.gpus)
        elif given.network or given.mirrored:
            claims[name] = CountedDevices("network" if given.network else "mirrored", None)
    gpu_claims = tuple([name for name, given in claims.items() if given.kind not in NO_GPU])
    of_gpus = {
        *[resources[name].kind for name in gpus],
        *[claims[name].kind for name in gpu_claims],
    }
    annotation = ""
    if claimed and not of_gpus:
        annotation, of_gpus = config.device_variables.claim_annotation, {"gpu"}
    return PodDevices(
        resources, claims, network, busy, gpus, gpu_claims, frozenset(of_gpus), annotation
    )


def _shared(which: Ref | None, claim: DeviceClaim | None, config: Config) -> bool:
    """Whether the GPUs of a claim count as shared with other pods."""
    if which is None or which.plural != CLAIMS:
        return False
    how = config.gpu_detection.shared_claims
    return how == "skip" or (how == "auto" and claim is not None and bool(claim.used_by))


def will_test(checks: Sequence[CheckConfig], pod: PodDevices) -> str:
    """What is tested, and what of the pod's GPUs no check can test."""
    named = [(given.kind, f"{given.number} {name}") for name, given in pod.resources.items()]
    named += [(given.kind, f"claim {name}") for name, given in pod.claims.items()]
    if pod.annotation:
        named.append(("gpu", f"the GPUs of annotation {pod.annotation}"))
    can = {"gpu"}.union(*[check.supports for check in checks])
    tested = ", ".join([text for kind, text in named if kind in can])
    rest = ", ".join([text for kind, text in named if kind not in can and kind not in NO_GPU])
    sentence = (
        f"{', '.join([check.name for check in checks])} will test {tested} before the pod starts"
    )
    return f"{sentence}; {rest} cannot be tested by any of them." if rest else f"{sentence}."
