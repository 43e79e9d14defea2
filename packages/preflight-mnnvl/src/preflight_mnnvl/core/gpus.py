"""Which containers of a pod use GPUs: by the resources they ask for, or by a claim. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final, NamedTuple

from preflight_kube.api.quantities import parse_quantity

from preflight_mnnvl.api.identity import CliqueRefused
from preflight_mnnvl.api.types import Container, PodSpec, shown

__all__ = ["ClaimRef", "ContainerPlace", "claim_refs", "gpu_claims", "matches", "places"]


LONGEST_NAME: Final = 317
"""Characters of a resource's name: a domain of 253, a slash, and 63."""


class ContainerPlace(NamedTuple):
    """A container that uses GPUs: the list it stands in (`containers`, `initContainers`) and where
    in it.
    """

    list: str
    position: int
    container: Container


class ClaimRef(NamedTuple):
    """A claim or a claim template that a pod's template names."""

    kind: str
    name: str


def claim_refs(pod: PodSpec) -> dict[str, ClaimRef]:
    """What the pod's own claims refer to, by the name of the entry; entries that are not whole are
    left to the API server.
    """
    found: dict[str, ClaimRef] = {}
    for entry in pod.resource_claims or ():
        name = entry.get("name")
        for key, kind in (
            ("resourceClaimName", "ResourceClaim"),
            ("resourceClaimTemplateName", "ResourceClaimTemplate"),
        ):
            if isinstance(name, str) and isinstance(entry.get(key), str) and entry[key]:
                found[name] = ClaimRef(kind, entry[key])
    return found


def gpu_claims(
    pod: PodSpec, classes: Mapping[ClaimRef, Collection[str]], of_gpus: Collection[str]
) -> tuple[str, ...]:
    """Names of the pod's claims that give GPUs; ``classes`` are the device
    classes each asks for.
    """
    return tuple(
        sorted(name for name, ref in claim_refs(pod).items() if _any(classes.get(ref, ()), of_gpus))
    )


def places(
    pod: PodSpec, resources: Collection[str], claims: Collection[str]
) -> list[ContainerPlace]:
    """The containers and init containers, sidecars among them, that use GPUs: by a resource that a
    glob of ``resources`` matches, or a claim of ``claims``.

    Raises :class:`~.identity.CliqueRefused` for an amount that is none.
    """
    found = []
    for where, containers in (
        ("containers", pod.containers),
        ("initContainers", pod.init_containers),
    ):
        for i, container in enumerate(containers or ()):
            if _uses(container, f"spec.podSpec.{where}[{i}].resources", tuple(resources), claims):
                found.append(ContainerPlace(where, i, container))
    return found


def _uses(
    container: Container, path: str, resources: tuple[str, ...], claims: Collection[str]
) -> bool:
    wanted = container.resources
    if wanted is None:
        return False
    for part, amounts in (("limits", wanted.limits), ("requests", wanted.requests)):
        for name, amount in (amounts or {}).items():
            if matches(name, resources) and _asks(amount, f"{path}.{part}[{shown(name)}]"):
                return True
    return bool(claims) and any(name in claims for name in _names(wanted.claims or ()))


def _names(claims: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for one in claims:
        if isinstance(name := one.get("name"), str):
            yield name


def _any(found: Iterable[str], globs: Collection[str]) -> bool:
    return any(matches(one, tuple(globs)) for one in found)


def matches(name: str, globs: tuple[str, ...]) -> bool:
    """Whether one of ``globs`` matches the whole of ``name``; what is too long to be a name matches
    none, and is remembered nowhere.
    """
    return len(name) <= LONGEST_NAME and _matches(name, globs)


@lru_cache(maxsize=1024)
def _matches(name: str, globs: tuple[str, ...]) -> bool:
    return any(name == glob or fnmatchcase(name, glob) for glob in globs)


def _asks(amount: Any, path: str) -> bool:
    """Whether an amount is more than nothing. Kubernetes writes it as a text or a number."""
    if isinstance(amount, str | int | float) and not isinstance(amount, bool):
        with suppress(ValueError):
            return parse_quantity(str(amount)) != 0
    found = f'"{shown(amount, 40)}"' if isinstance(amount, str) else shown(str(amount), 40)
    raise CliqueRefused(f"{path} is {found}, which is not an amount; write e.g. 8")
