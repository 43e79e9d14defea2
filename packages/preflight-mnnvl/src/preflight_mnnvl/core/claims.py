"""Which containers of a pod's template use GPUs, and what cannot stand beside our claim. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final, NamedTuple

from preflight_kube.api.quantities import parse_quantity
from preflight_proto.devices import IMPLICIT

from preflight_mnnvl.api.identity import CliqueRefused
from preflight_mnnvl.api.names import (
    CLAIM,
    DEVICE_CLASS,
    ENABLED,
    GROVE_CLAIM,
    GROVE_MNNVL_GROUP,
    is_name,
)
from preflight_mnnvl.api.types import Container, ContainerPlace, PodSpec, shown
from preflight_mnnvl.config import Config

_REFERS: Final = {
    "resourceClaimName": "ResourceClaim",
    "resourceClaimTemplateName": "ResourceClaimTemplate",
}
LONGEST_NAME: Final = 317
"""Characters of a resource's name: a domain of 253, a slash, and 63."""


class ClaimRef(NamedTuple):
    """A claim or a claim template that a pod's template names."""

    kind: str
    name: str


def claim_refs(pod: PodSpec) -> dict[str, ClaimRef]:
    """By the name of a pod's entry, what it refers to; what is not whole the API server refuses."""
    refs: dict[str, ClaimRef] = {}
    for entry in pod.resource_claims or ():
        name = entry.get("name")
        for key, kind in _REFERS.items():
            named = entry.get(key)
            if isinstance(name, str) and isinstance(named, str) and named:
                refs[name] = ClaimRef(kind, named)
    return refs


def gpu_claims(
    pod: PodSpec, classes: Mapping[ClaimRef, Collection[str]], of_gpus: tuple[str, ...]
) -> tuple[str, ...]:
    """Names of the pod's claims that give GPUs, by the device ``classes`` that each asks for."""
    refs = claim_refs(pod).items()
    gives = (name for name, ref in refs if any(matches(it, of_gpus) for it in classes.get(ref, ())))
    return tuple(sorted(gives))


def updated_gpu_claims(
    pod: PodSpec,
    before: PodSpec,
    gave: Collection[str],
    classes: Mapping[ClaimRef, Collection[str]],
    of_gpus: tuple[str, ...],
) -> tuple[str, ...]:
    """As :func:`gpu_claims`, of a pod's template that was ``before``: what ``gave`` GPUs then does
    so under any name, and a name that did so where nobody knows what it refers to now.
    """
    refs, old = claim_refs(pod), claim_refs(before)
    known = {*old.values(), *classes}
    given = {old.get(name) for name in gave}
    given |= {ref for name in gave if (ref := refs.get(name)) not in known}
    kept = {name for name, ref in refs.items() if ref in given}
    return tuple(sorted(kept.union(gpu_claims(pod, classes, of_gpus))))


@lru_cache(maxsize=16)
def gpu_resources(config: Config) -> tuple[str, ...]:
    """Globs of the resources that are GPUs, those that stand for a device class among them."""
    return (*config.gpu_resources, *(IMPLICIT + glob for glob in config.gpu_device_classes))


def places(pod: PodSpec, config: Config, claims: Collection[str]) -> list[ContainerPlace]:
    """The containers that use GPUs, by a resource that is configured, or by one of ``claims``.

    Raises :class:`CliqueRefused` for an amount that is none.
    """
    resources = gpu_resources(config)
    return [place for place in pod.everyone() if _uses(place, resources, claims)]


def _uses(place: ContainerPlace, resources: tuple[str, ...], claims: Collection[str]) -> bool:
    if (wanted := place.container.resources) is None:
        return False
    path = f"spec.podSpec.{place.list}[{place.position}].resources"
    for part, amounts in (("limits", wanted.limits), ("requests", wanted.requests)):
        for name, amount in (amounts or {}).items():
            if matches(name, resources) and _asks(amount, f"{path}.{part}[{shown(name)}]"):
                return True
    return bool(claims) and not claims_of(place.container).isdisjoint(claims)


def claims_of(container: Container) -> set[str]:
    """Names of the pod's claims that a container uses."""
    uses = (container.resources and container.resources.claims) or ()
    return {name for use in uses if isinstance(name := use.get("name"), str)}


def matches(name: str, globs: tuple[str, ...]) -> bool:
    """Tell whether one of ``globs`` matches ``name``; none does what is too long for one."""
    return len(name) <= LONGEST_NAME and any(fnmatchcase(name, glob) for glob in globs)


def _asks(amount: Any, path: str) -> bool:
    """Tell whether an amount is more than nothing. Kubernetes writes it as a text or a number."""
    if isinstance(amount, str | int | float) and not isinstance(amount, bool):
        with suppress(ValueError):
            return parse_quantity(str(amount)) != 0
    shown_amount = f'"{shown(amount, 40)}"' if isinstance(amount, str) else shown(str(amount), 40)
    raise CliqueRefused(f"{path} is {shown_amount}, which is not an amount; write e.g. 8")


_CHANNELS = ("compute-domain-*", "compute-domain.*")


def without_gpus(config: Config) -> str:
    """The warning about who asks for a claim and for no GPUs: a clause."""
    resources = ", ".join(config.gpu_resources)
    return f"no container asks for GPUs ({resources}), so its pods get no claim"


def refuse_group(group: tuple[str, str] | None) -> None:
    """Refuse Grove's own feature beside ours; ``group``: its value in force, and where it stands.

    The two would put two claims into a pod. Raises :class:`CliqueRefused`.
    """
    if group is not None:
        raise CliqueRefused(
            f'{GROVE_MNNVL_GROUP} is "{shown(group[0], 63)}" at {group[1]} while {ENABLED} is "true", and only one of the two can be had; remove one'
        )


def refuse_class(name: str, config: Config) -> None:
    """Refuse what can be no device class where claims get it. Raises :class:`CliqueRefused`."""
    if config.mode == "literal" and not is_name(name):
        raise CliqueRefused(
            f'{DEVICE_CLASS} is "{shown(name)}", which cannot be the name of a DeviceClass; use lower-case letters, digits, "-" and "."'
        )


def refuse_claims(
    pod: PodSpec,
    ours: Mapping[str, str] | None,
    classes: Mapping[ClaimRef, Collection[str]],
    path: str = "spec.podSpec",
) -> None:
    """Refuse claims that cannot stand beside ours, which is ``ours`` where it is known.

    Raises :class:`CliqueRefused`.
    """
    refs = claim_refs(pod)
    for i, entry in enumerate(pod.resource_claims or ()):
        where, name = f"{path}.resourceClaims[{i}]", entry.get("name")
        if name == CLAIM:
            if ours is None or dict(ours) != entry:
                raise CliqueRefused(
                    f'{where} is called "{CLAIM}", which is the name of the claim that is added here; rename it'
                )
            continue
        if name == GROVE_CLAIM:
            raise CliqueRefused(
                f'{where} is "{GROVE_CLAIM}" of Grove\'s own feature, and a node has one channel for a pod; remove it, or {ENABLED}'
            )
        ref = refs.get(name) if isinstance(name, str) else None
        for device_class in classes.get(ref, ()) if ref else ():
            if matches(device_class, _CHANNELS):
                raise CliqueRefused(
                    f'{where} ("{shown(str(name), 63)}") asks for a device of class "{shown(device_class)}", and a pod cannot have two channels of a node; '
                    f"remove it, or {ENABLED}"
                )


def refuse_unknown(pod: PodSpec, known: Collection[ClaimRef]) -> None:
    """Refuse a claim that does not exist, as it may be the one that gives the GPUs.

    Raises :class:`CliqueRefused`.
    """
    used = {name for place in pod.everyone() for name in claims_of(place.container)}
    for name, ref in claim_refs(pod).items():
        if name in used and ref not in known:
            raise CliqueRefused(
                f'its claim "{shown(name, 63)}" names the {ref.kind} {shown(ref.name)}, which does not exist, and may be the one that gives it GPUs; '
                "create that first"
            )
