"""What devices a pod gets: extended resources and claims, by what they are here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from preflight_kube.api.quantities import UNIT

from preflight_webhook.config.config import CheckConfig, Config
from preflight_webhook.core.detect.claims import DeviceClaim, Ref, devices
from preflight_webhook.core.detect.resources import COMPUTE, ResourceTally, kind

NO_GPU: Final = frozenset({"network", "mirrored"})
"""Kinds of what a pod gets beside GPUs."""
PodClaim = tuple[str, Ref | None, DeviceClaim | None]
"""A claim of a pod: its name there, which it is, and what it asks for, None where there is none."""


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
        name: CountedDevices(kind(name, config), account.requests.effective // UNIT)
        for name, account in accounts.items()
        if name not in COMPUTE and account.requests.effective >= UNIT
    }
    gpus = {name: of.number or 0 for name, of in resources.items() if of.kind != "network"}
    network = len(gpus) < len(resources)
    claims: dict[str, CountedDevices] = {}
    busy: dict[str, str] = {}
    for name, which, claim in named:
        given = devices(claim, config)
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
    by_name = which is not None and which.kind == "ResourceClaim"
    match config.gpu_detection.shared_claims:
        case "skip":
            return by_name
        case "auto":
            return by_name and claim is not None and bool(claim.used_by)
        case _:
            return False


def will_test(checks: Sequence[CheckConfig], pod: PodDevices) -> str:
    """What is tested, and what of the pod's GPUs no check can test."""
    named = [(given.kind, f"{given.number} {name}") for name, given in pod.resources.items()]
    named += [(given.kind, f"claim {name}") for name, given in pod.claims.items()]
    if pod.annotation:
        named.append(("gpu", f"the GPUs of annotation {pod.annotation}"))
    can = {"gpu", *(kind for check in checks for kind in check.supports)}
    tested = ", ".join(text for kind, text in named if kind in can)
    rest = ", ".join(text for kind, text in named if kind not in can | NO_GPU)
    sentence = (
        f"{', '.join(check.name for check in checks)} will test {tested} before the pod starts"
    )
    return f"{sentence}; {rest} cannot be tested by any of them." if rest else f"{sentence}."
