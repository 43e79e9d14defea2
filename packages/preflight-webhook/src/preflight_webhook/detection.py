"""Which devices a pod gets, and what the scheduler reserves for it.

The effective request of a pod, per resource: the larger of (all containers and sidecars together) and (each init step with the
sidecars started before it), plus the pod's overhead; where the pod has requests of its own for a resource, those. This is
the rule of Kubernetes' own resource helpers. Amounts are in nano-units, see :mod:`.quantities`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from .objects import Amount, Load, Sized
from .quantities import UNIT, parse_quantity

__all__ = ["COMPUTE", "Account", "Side", "devices", "reckon"]

COMPUTE: Final = ("cpu", "memory")


class Side:
    """One side of a resource (what is requested, or the limits) over all containers of a pod, without its overhead."""

    __slots__ = ("held", "peak", "running", "started")

    def __init__(self) -> None:
        self.running = 0  # by the pod's containers
        self.started = 0  # by the sidecars
        self.peak = 0  # during the greediest init step
        self.held = 0  # by the sidecars before the checks' place: they run beside every later init container

    @property
    def effective(self) -> int:
        """What the pod costs."""
        return max(self.running + self.started, self.peak)

    @property
    def room(self) -> int:
        """What an init container at the checks' place may use without the pod costing more."""
        return self.effective - self.held

    def add_init(self, amount: int, *, sidecar: bool, before: bool) -> None:
        self.peak = max(self.peak, self.started + amount)
        if sidecar:
            self.started += amount
            if before:
                self.held += amount


class Account:
    """One resource of a pod. ``limited``: containers with a limit; ``equal``: those that request exactly that;
    ``largest``: ADR-026's wording, the largest request of any one container."""

    __slots__ = ("equal", "largest", "limited", "limits", "requests")

    def __init__(self) -> None:
        self.requests, self.limits = Side(), Side()
        self.limited = self.equal = self.largest = 0


def reckon(load: Load, names: Iterable[str], place: int) -> dict[str, Account]:
    """The accounts of these resources, in one pass. The checks will stand at ``place`` among the init containers.

    Raises :class:`ValueError` with one sentence for an amount that is no quantity.
    """
    accounts = {name: Account() for name in names}
    for position, container in enumerate(load.init_containers):
        sidecar, before = container.restart_policy == "Always", position < place
        for account, request, limit in _amounts(container, accounts):
            account.requests.add_init(request, sidecar=sidecar, before=before)
            account.limits.add_init(limit, sidecar=sidecar, before=before)
    for container in load.containers:
        for account, request, limit in _amounts(container, accounts):
            account.requests.running += request
            account.limits.running += limit
    return accounts


def devices(accounts: Mapping[str, Account], names: Iterable[str]) -> dict[str, int]:
    """How many devices of each of these extended resources the scheduler reserves, zeros left out."""
    counts = ((name, accounts[name].requests.effective // UNIT) for name in names)
    return {name: count for name, count in counts if count > 0}


def _amounts(container: Sized, accounts: Mapping[str, Account]) -> Iterable[tuple[Account, int, int]]:
    """(account, request, limit) for what the container names; a limit alone is a request too, as the API server defaults it."""
    if (resources := container.resources) is None:
        return
    requests, limits = resources.requests or {}, resources.limits or {}
    for name in {**requests, **limits}:
        if (account := accounts.get(name)) is None:
            continue
        limit = _nanos(limits[name]) if name in limits else 0
        request = _nanos(requests[name]) if name in requests else limit
        if limit > 0:
            account.limited += 1
            account.equal += request == limit
        account.largest = max(account.largest, request)
        yield account, request, limit


def _nanos(value: Amount) -> int:
    return parse_quantity(value if isinstance(value, str) else str(value))
