"""Which devices a pod gets, and what the scheduler reserves for it.

The effective request of a pod, per resource: the larger of (all containers and sidecars together) and (each init step with the
sidecars started before it), plus the pod's overhead; where the pod has requests of its own for a resource, those. This is
the rule of Kubernetes' own resource helpers. Amounts are in nano-units, see :mod:`.quantities`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .objects import Amount, Amounts, Load, Sized
from .quantities import UNIT, parse_quantity

__all__ = ["devices", "effective", "is_sidecar", "largest", "limit_of", "request_of", "sidecars"]


def request_of(container: Sized, resource: str) -> int:
    """A container's request; a limit alone is a request too, as the API server defaults it."""
    resources = container.resources
    if resources is None:
        return 0
    value = _amount(resources.requests, resource)
    return value if value is not None else _amount(resources.limits, resource) or 0


def limit_of(container: Sized, resource: str) -> int:
    value = _amount(container.resources.limits, resource) if container.resources else None
    return value if value is not None else 0


def effective(load: Load, resource: str, of: Callable[[Sized, str], int] = request_of) -> int:
    """What the pod costs in ``resource`` without its overhead, from its containers."""
    started, step = 0, 0
    for container in load.init_containers:
        amount = of(container, resource)
        if is_sidecar(container):
            started += amount
            step = max(step, started)
        else:
            step = max(step, started + amount)
    together = started + sum(of(c, resource) for c in load.containers)
    return max(together, step)


def sidecars(containers: Iterable[Sized], resource: str, of: Callable[[Sized, str], int] = request_of) -> int:
    """What the sidecars among ``containers`` hold together: they run beside every later init container."""
    return sum(of(c, resource) for c in containers if is_sidecar(c))


def largest(load: Load, resource: str) -> int:
    """ADR-026's wording: the largest request of any one container."""
    return max((request_of(c, resource) for c in [*load.init_containers, *load.containers]), default=0)


def devices(load: Load, names: Iterable[str]) -> dict[str, int]:
    """How many devices of each of these extended resources the scheduler reserves, zeros left out."""
    found = {}
    for name in names:
        count = effective(load, name) // UNIT
        if count > 0:
            found[name] = count
    return found


def is_sidecar(container: Sized) -> bool:
    """Whether an init container goes on running beside the pod's containers."""
    return container.restart_policy == "Always"


def _amount(amounts: Amounts | None, resource: str) -> int | None:
    if not amounts:
        return None
    value: Amount | None = amounts.get(resource)
    return None if value is None else parse_quantity(str(value))
