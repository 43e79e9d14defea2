"""Which devices a pod gets, and what the scheduler reserves for it.

The effective request of a pod, per resource: the larger of (all containers and sidecars together) and (each init step with the
sidecars started before it), plus the pod's overhead; where the pod has requests of its own for a resource, those. This is
the rule of Kubernetes' own resource helpers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Final, Literal

from .objects import Amount, Amounts, Container, Spec
from .quantities import parse_quantity

__all__ = ["Kind", "devices", "effective", "is_sidecar", "largest", "limit_of", "request_of", "sidecars"]

Kind = Literal["requests", "limits"]
ZERO: Final = Fraction(0)


def request_of(container: Container, resource: str) -> Fraction:
    """A container's request; a limit alone is a request too, as the API server defaults it."""
    resources = container.resources
    if resources is None:
        return ZERO
    value = _amount(resources.requests, resource)
    return value if value is not None else _amount(resources.limits, resource) or ZERO


def limit_of(container: Container, resource: str) -> Fraction:
    value = _amount(container.resources.limits, resource) if container.resources else None
    return value if value is not None else ZERO


def effective(spec: Spec, resource: str, of: Callable[[Container, str], Fraction] = request_of) -> Fraction:
    """What the pod costs in ``resource`` without its overhead, from its containers."""
    started, step = ZERO, ZERO
    for container in spec.init_containers or ():
        amount = of(container, resource)
        if is_sidecar(container):
            started += amount
            step = max(step, started)
        else:
            step = max(step, started + amount)
    together = started + sum((of(c, resource) for c in spec.containers), ZERO)
    return max(together, step)


def sidecars(
    containers: Iterable[Container], resource: str, of: Callable[[Container, str], Fraction] = request_of
) -> Fraction:
    """What the sidecars among ``containers`` hold together: they run beside every later init container."""
    return sum((of(c, resource) for c in containers if is_sidecar(c)), ZERO)


def largest(spec: Spec, resource: str) -> Fraction:
    """ADR-026's wording: the largest request of any one container."""
    return max((request_of(c, resource) for c in [*(spec.init_containers or ()), *spec.containers]), default=ZERO)


def devices(spec: Spec, names: Iterable[str]) -> dict[str, int]:
    """How many devices of each of these extended resources the scheduler reserves, zeros left out."""
    found = {}
    for name in names:
        count = int(effective(spec, name))
        if count > 0:
            found[name] = count
    return found


def is_sidecar(container: Container) -> bool:
    """Whether an init container goes on running beside the pod's containers."""
    return container.restart_policy == "Always"


def _amount(amounts: Amounts | None, resource: str) -> Fraction | None:
    if not amounts:
        return None
    value: Amount | None = amounts.get(resource)
    return None if value is None else parse_quantity(str(value))
