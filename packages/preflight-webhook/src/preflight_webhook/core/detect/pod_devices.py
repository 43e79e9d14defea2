"""What devices a pod gets: extended resources and claims, by what they are here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from preflight_kube.api.quantities import UNIT

from preflight_webhook.config.config import CheckConfig, Config
from preflight_webhook.core.detect.claims import ClaimDevices, DeviceClaim, Ref
from preflight_webhook.core.detect.claims import devices as gives_of
from preflight_webhook.core.detect.resources import COMPUTE, ResourceTally, kind

__all__ = ["NO_GPU", "PodClaim", "PodDevices", "devices_of", "gives", "will_test"]

NO_GPU: Final = frozenset({"network", "mirrored"})
"""Kinds of what a pod gets beside GPUs."""
PodClaim = tuple[str, Ref | None, DeviceClaim | None]
"""A claim of a pod: its name there, which it is, and what it asks for, None where there is none."""


class PodDevices(NamedTuple):
    """What a pod gets.

    ``counts``: extended resources that the scheduler reserves; ``claims``: those that checks get,
    with how many GPUs each gives, None where that is not known; ``kinds`` and ``claim_kinds``: of
    both by name: gpu (whole ones of the pod's own), mig, shared, network, or mirrored (a claim of
    neither); ``network``: whether any of it is a network device; ``busy``: GPU claims that another
    pod has now, each with that pod; ``gpus``: those of ``counts`` that are GPUs or slices of them;
    ``gpu_claims``: names of those for GPUs; ``of_gpus``: the kinds of GPUs that there are (gpu,
    mig, shared); ``annotation``: which alone says that the pod gets GPUs, how many nobody knows
    yet; empty for none.
    """

    counts: dict[str, int]
    claims: dict[str, int | None]
    kinds: dict[str, str]
    claim_kinds: dict[str, str]
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
    counts: dict[str, int] = {}
    kinds: dict[str, str] = {}
    gpus: dict[str, int] = {}
    network = False
    for name, account in accounts.items():
        if name not in COMPUTE and (count := account.requests.effective // UNIT) > 0:
            counts[name], kinds[name] = count, (of := kind(name, config))
            if of == "network":
                network = True
            else:
                gpus[name] = count
    claims: dict[str, int | None] = {}
    claim_kinds: dict[str, str] = {}
    busy: dict[str, str] = {}
    for name, which, claim in named:
        given = gives(claim, config)
        if given.gpu:
            claims[name] = given.gpus
            if claim is not None and claim.used_by:
                busy[name] = claim.used_by
            claim_kinds[name] = "shared" if _shared(which, claim, config) else "gpu"
        elif given.network:
            claims[name], claim_kinds[name] = None, "network"
        elif given.mirrored:
            claims[name], claim_kinds[name] = None, "mirrored"
        network = network or given.network
    gpu_claims = tuple([name for name in claims if claim_kinds[name] not in NO_GPU])
    of_gpus = frozenset(
        [*[kinds[name] for name in gpus], *[claim_kinds[name] for name in gpu_claims]]
    )
    annotation = config.device_variables.claim_annotation if claimed and not of_gpus else ""
    return PodDevices(
        counts,
        claims,
        kinds,
        claim_kinds,
        network,
        busy,
        gpus,
        gpu_claims,
        of_gpus | {"gpu"} if annotation else of_gpus,
        annotation,
    )


def gives(claim: DeviceClaim | None, config: Config) -> ClaimDevices:
    """What a claim is taken to give; None is one that does not exist."""
    if claim is not None:
        return gives_of(claim, config)
    known = bool(config.gpu_detection.device_classes)  # else no claim is for GPUs
    return ClaimDevices(gpu=known and config.unresolved_claims != "allow", network=False, gpus=None)


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


def will_test(checks: Sequence[CheckConfig], devices: PodDevices) -> str:
    """What is tested, and what of the pod's GPUs no check can test."""
    few = len(devices.counts) + len(devices.claims) <= _FEW
    return (_will_test if few else _will_test.__wrapped__)(
        tuple(checks),
        (*devices.counts.items(),),
        (*devices.kinds.values(),),
        (*devices.claim_kinds.items(),),
        devices.annotation,
    )


_FEW: Final = 8
"""Devices and claims of a pod about which the sentence is remembered; what has more is rare, and
could be long.
"""


@lru_cache(maxsize=64)
def _will_test(
    checks: tuple[CheckConfig, ...],
    counts: tuple[tuple[str, int], ...],
    kinds: tuple[str, ...],
    claims: tuple[tuple[str, str], ...],
    annotation: str,
) -> str:
    """``kinds``: of the ``counts``; ``claims``: with the kind of each."""
    named = [(kind, f"{count} {name}") for (name, count), kind in zip(counts, kinds, strict=True)]
    named += [(kind, f"claim {name}") for name, kind in claims]
    if annotation:
        named.append(("gpu", f"the GPUs of annotation {annotation}"))
    can = {"gpu", *(kind for check in checks for kind in check.supports)}
    tested = ", ".join(text for kind, text in named if kind in can)
    rest = ", ".join(text for kind, text in named if kind not in can | NO_GPU)
    sentence = (
        f"{', '.join(check.name for check in checks)} will test {tested} before the pod starts"
    )
    return f"{sentence}; {rest} cannot be tested by any of them." if rest else f"{sentence}."
