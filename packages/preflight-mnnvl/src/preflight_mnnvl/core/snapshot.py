"""The snapshot: living PodCliques, the domains that they need, and what a reconcile reads. Pure.

What a PodClique says it was given is compared with what its labels say it is: an annotation that
somebody else wrote makes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final, NamedTuple, Protocol

import msgspec

from preflight_mnnvl.api import names, types
from preflight_mnnvl.api.annotations import (
    MnnvlDecision,
    Mode,
    Newer,
    fabric_request,
    pod_claim,
    read_decision,
)
from preflight_mnnvl.api.identity import CliqueRefused, identify, of_another
from preflight_mnnvl.api.types import (
    ComputeDomain,
    Key,
    Metadata,
    Part,
    PodClique,
    PodCliqueSet,
    PodGang,
)
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.claims import places
from preflight_mnnvl.core.domain import Domain, domain_of


class DomainMember(NamedTuple):
    """A living PodClique that carries a decision. ``placed``: pods of it were scheduled, so that
    a domain has been there. ``pods``: how many it is to have.
    """

    namespace: str
    name: str
    uid: str
    decision: MnnvlDecision
    domain: Domain
    placed: bool
    pods: int = 1


class Ignored(NamedTuple):
    """A PodClique whose decision is not followed, and why: one clause."""

    namespace: str
    name: str
    why: str


class Wanted(NamedTuple):
    """One domain that living PodCliques need."""

    members: tuple[DomainMember, ...]

    @property
    def domain(self) -> Domain:
        """The domain of the first member: that of all."""
        return self.members[0].domain

    @property
    def decision(self) -> MnnvlDecision:
        """The decision of the first member: mode, names and class are alike in all."""
        return self.members[0].decision

    @property
    def gang(self) -> str:
        """The PodGang of the shortest name: those that build upon it begin with its name."""
        gangs = (member.decision.gang for member in self.members)
        return min(gangs, key=lambda gang: (len(gang), gang))

    def owner(self, there: ComputeDomain | None) -> str:
        """The PodGang that owns it: the one that is recorded on it, as long as members name it."""
        recorded = there.metadata.label(names.PODGANG) if there is not None else None
        gangs = (member.decision.gang for member in self.members)
        return next((gang for gang in gangs if names.label_value(gang) == recorded), self.gang)


def member_of(clique: PodClique) -> DomainMember | Ignored | None:
    """The member that a PodClique is; None without a decision, and while it is being deleted."""
    meta = clique.metadata
    text = meta.annotation(names.DECISION)
    if text is None or meta.going:
        return None
    try:
        decision = read_decision(text)
        if decision is None:
            raise CliqueRefused(f"the annotation {names.DECISION} is none that the webhook wrote")
        domain = domain_of(identify(meta, decision.scope), decision.scope)
        given, current = (decision.cd, decision.claim), domain.name
        if (domain.name, domain.claim) != given:
            domain = domain._replace(earlier=True)  # a name once given holds for life
        if (domain.name, domain.claim) != given:
            raise CliqueRefused(
                f"the annotation {names.DECISION} names {decision.cd}, and its labels {current}"
            )
    except (Newer, CliqueRefused) as error:
        return Ignored(meta.namespace, meta.name, str(error))
    status, pods = clique.status, clique.spec.replicas
    placed = status is not None and bool(status.scheduled_replicas or status.ready_replicas)
    pods = 1 if pods is None else pods
    return DomainMember(meta.namespace, meta.name, meta.uid, decision, domain, placed, pods)


# --- PodCliques that ask for the fabric, and whose pods do not get the claim: written while no
# webhook answered, or older than the wish, which is resolved from all three layers.

AUDITED_LABELS: Final = (*names.PCS_NAME, *names.PCS_INDEX, *names.PCSG_NAME)
AUDITED_ANNOTATIONS: Final = (*names.KEYS, names.DECISION, names.GROVE_MNNVL_GROUP)
"""The annotations that :func:`asks` reads of a PodClique."""


def lacks_claim(clique: PodClique, config: Config) -> bool:
    """Tell whether its pods have GPUs, and no decision or not its claim."""
    meta = clique.metadata
    if meta.going:
        return False
    try:
        decision = read_decision(meta.annotation(names.DECISION))
        pod = types.decode_pod(clique.spec.pod_spec)
        if decision is not None and pod_claim(decision) in (pod.resource_claims or []):
            return False
        return bool(places(pod, config, decision.gpu_claims if decision else ()))
    except (types.BadObject, CliqueRefused, Newer):
        return meta.annotation(names.DECISION) is not None


def asks(meta: Metadata, set_: PodCliqueSet | None, config: Config) -> bool:
    """Tell whether a PodClique that lacks its claim is to have one."""
    if meta.annotation(names.DECISION) is not None:
        return True
    if set_ is not None and (set_.metadata.going or of_another(meta, set_.metadata)):
        return False
    wish = fabric_request(meta, set_, config.mode)
    return wish.enabled and wish.group is None


# --- domains


def wanted(members: Iterable[DomainMember]) -> dict[Key, Wanted]:
    """The domains by namespace and name, of which no two have one."""
    by_domain: dict[Key, list[DomainMember]] = {}
    for member in sorted(members):
        by_domain.setdefault((member.namespace, member.decision.cd), []).append(member)
    return {key: Wanted(tuple(of)) for key, of in by_domain.items()}


class DomainView(NamedTuple):
    """``wanted`` is None where no living PodClique needs the domain. ``claim``: the claim template,
    in `literal` mode the claim. ``gangs``: by name, those that members and label name.
    ``replicas``: of the set, None where it is not there. ``lost``: the uid of a domain of this name
    that is gone, and that living members needed then. ``unclaimed_since``: when it was first seen
    that nobody needs it, in seconds of the epoch.
    """

    name: str
    namespace: str
    wanted: Wanted | None = None
    domain: ComputeDomain | None = None
    claim: ComputeDomain | None = None
    gangs: Mapping[str, Metadata] = {}
    set_: Metadata | None = None
    replicas: int | None = None
    lost: str = ""
    unclaimed_since: float | None = None


class Objects(Protocol):
    """What there is, as the controller's cache has it, or as it was listed once."""

    def part(self, part: Part, key: Key) -> ComputeDomain | None:
        """The ComputeDomain, claim template or claim of this namespace and name."""

    def gangs_called(self, namespace: str, label: str) -> Iterable[PodGang]:
        """The PodGangs whose name is this one as a label's value."""

    def set_(self, namespace: str, name: str) -> PodCliqueSet | None:
        """The PodCliqueSet of this name."""


class World(msgspec.Struct, kw_only=True):
    """Objects that were listed once; ``claims``: claim templates, in `literal` mode claims."""

    cliques: dict[Key, PodClique] = {}
    sets: dict[Key, PodCliqueSet] = {}
    gangs: dict[Key, PodGang] = {}
    domains: dict[Key, ComputeDomain] = {}
    claims: dict[Key, ComputeDomain] = {}

    def part(self, part: Part, key: Key) -> ComputeDomain | None:
        """See :class:`Objects`."""
        return (self.domains if part == "domain" else self.claims).get(key)

    def gangs_called(self, namespace: str, label: str) -> Iterable[PodGang]:
        """See :class:`Objects`."""
        here = (gang for (space, _), gang in self.gangs.items() if space == namespace)
        return [gang for gang in here if names.label_value(gang.metadata.name) == label]

    def set_(self, namespace: str, name: str) -> PodCliqueSet | None:
        """See :class:`Objects`."""
        return self.sets.get((namespace, name))

    def members(self) -> tuple[list[DomainMember], list[Ignored]]:
        """Living PodCliques that carry a decision, and those whose decision is not followed."""
        states = [member_of(clique) for clique in self.cliques.values()]
        return [state for state in states if isinstance(state, DomainMember)], [
            state for state in states if isinstance(state, Ignored)
        ]

    def wanted(self) -> dict[Key, Wanted]:
        """The domains that living PodCliques want."""
        return wanted(self.members()[0])


def view_of(objects: Objects, key: Key, wants: Wanted | None, mode: Mode) -> DomainView:
    """All that one reconcile reads; ``mode``: of what nobody wants."""
    namespace, name = key
    claim_name = names.claim_of(name)
    if wants is not None:
        mode, claim_name = wants.decision.mode, wants.domain.claim
    domain = objects.part("domain", key)
    claim = objects.part("claim" if mode == "literal" else "template", (namespace, claim_name))
    labels = [part.metadata.labels for part in (domain, claim) if part is not None]
    recorded = next(filter(None, labels), {})
    called, pcs = {recorded.get(names.PODGANG)}, recorded.get(names.PCS_NAME[0], "")
    if wants is not None:
        called |= {names.label_value(member.decision.gang) for member in wants.members}
        pcs = wants.domain.pcs
    gangs = [objects.gangs_called(namespace, label) for label in filter(None, called)]
    by_name = {gang.metadata.name: gang.metadata for gang in chain.from_iterable(gangs)}
    set_ = objects.set_(namespace, pcs)
    whole, replicas = (set_.metadata, set_.spec.replicas) if set_ is not None else (None, None)
    return DomainView(name, namespace, wants, domain, claim, by_name, whole, replicas)
