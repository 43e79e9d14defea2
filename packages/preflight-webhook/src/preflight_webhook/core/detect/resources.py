"""Which devices a pod gets, and what the scheduler reserves for it.

The effective request of a pod, per resource: the larger of (all containers and sidecars together)
and (each init step with the sidecars started before it), plus the pod's overhead; where the pod has
requests of its own for a resource, those. This is the rule of Kubernetes' own resource helpers.
Amounts are in nano-units, see :mod:`preflight_kube.api.quantities`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from preflight_kube.api.quantities import parse_quantity
from preflight_proto.devices import IMPLICIT, may_be_gpus

from preflight_webhook.api.types import ResourceRequirements
from preflight_webhook.config.config import Config

COMPUTE: Final = ("cpu", "memory")


class Demand(NamedTuple):
    """What one container wants of one resource."""

    resource: str
    request: int
    limit: int


class StartStep(NamedTuple):
    """One init container; a ``sidecar`` goes on running beside everything that comes after it."""

    name: str
    sidecar: bool


class Side(msgspec.Struct, gc=False):
    """One side of a resource (what is requested, or the limits) over all containers of a pod,
    without its overhead.
    """

    running: int = 0  # by containers and sidecars together
    peak: int = 0  # during the greediest init step
    # Held by sidecars before the checks' place, which run beside every later init container.
    held: int = 0

    @property
    def effective(self) -> int:
        """What the pod costs."""
        return max(self.running, self.peak)

    @property
    def room(self) -> int:
        """What an init container at the checks' place may use without the pod costing more."""
        return max(self.running, self.peak) - self.held


class ResourceTally(msgspec.Struct, gc=False):
    """One resource of a pod. ``limited``: containers with a limit; ``equal``: those that request
    exactly that; ``largest``: ADR-026's wording, the largest request of any one container."""

    requests: Side = msgspec.field(default_factory=Side)
    limits: Side = msgspec.field(default_factory=Side)
    limited: int = 0
    equal: int = 0
    largest: int = 0


class InjectionPoint(NamedTuple):
    """Where checks stand among the init containers, and what the pod reserves as
    seen from there.
    """

    position: int
    accounts: Mapping[str, ResourceTally]


def matches(name: str, globs: Iterable[str]) -> bool:
    """Say whether ``name`` matches one of ``globs``."""
    return any(fnmatchcase(name, glob) for glob in globs)


@lru_cache(maxsize=1024)
# Names longer than Kubernetes allows do not come so far.
def kind(resource: str, config: Config) -> str:
    """What a resource's name means here: gpu, mig, shared, network, or nothing of these."""
    gpus = config.gpu_detection
    if matches(resource, gpus.shared_resource_names):
        return "shared"
    if matches(resource, gpus.mig_resource_names):
        return "mig"
    network = config.network_detection
    of_class = resource.removeprefix(IMPLICIT) if resource.startswith(IMPLICIT) else ""
    if resource in gpus.resource_names or of_class in gpus.device_classes:
        return "gpu"
    if of_class and matches(of_class, network.device_classes):
        return "network"
    return "network" if matches(resource, network.resource_names) else ""


def unknown(wanted: Iterable[tuple[Demand, ...]], config: Config) -> list[str]:
    """Resources that may be GPUs and that the configuration does not know, by name."""
    others = config.gpu_detection.other_resource_names
    asked = {resource for demands in wanted for resource, request, _ in demands if request > 0}
    return sorted([name for name in asked if may_be_gpus(name, others) and not kind(name, config)])


def demands(resources: ResourceRequirements) -> tuple[Demand, ...]:
    """What a container's ``resources`` say; a limit alone is a request too, as the API server
    defaults it.

    Raises :class:`ValueError` with one sentence for an amount that is not a quantity.
    """
    requests, limits = resources.requests or {}, resources.limits or {}
    most = {resource: parse_quantity(str(amount)) for resource, amount in limits.items()}
    least = most
    if requests and requests != limits:
        own = {resource: parse_quantity(str(amount)) for resource, amount in requests.items()}
        least = {**most, **own}
    return tuple([Demand(name, amount, most.get(name, 0)) for name, amount in least.items()])


def effective_resources(
    init: Sequence[StartStep],
    everyone: Sequence[tuple[Demand, ...]],
    names: Iterable[str],
    place: int,
) -> InjectionPoint:
    """The accounts of the resources ``names``, in one pass, for checks that will stand at ``place``
    among the init containers. ``everyone``: containers, then init containers.
    """
    accounts, number = {name: ResourceTally() for name in names}, len(everyone) - len(init)
    for position, demands in enumerate([*everyone[number:], *everyone[:number]]):
        step = init[position] if position < len(init) else None
        for resource, request, limit in demands:
            if (account := accounts.get(resource)) is None:
                continue
            if limit > 0:
                account.limited += 1
                account.equal += request == limit
            account.largest = max(account.largest, request)
            requests, limits = account.requests, account.limits
            if step is None:
                requests.running += request
                limits.running += limit
                continue
            for side, amount in ((requests, request), (limits, limit)):
                side.peak = max(side.peak, side.running + amount)  # only sidecars run so far
                if step.sidecar:
                    side.running += amount
                    if position < place:
                        side.held += amount
    return InjectionPoint(place, accounts)
