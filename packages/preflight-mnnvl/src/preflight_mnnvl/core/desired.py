"""Living PodCliques → the domains that must exist. Pure.

What a PodClique says it was given is compared with what its labels say it is: an annotation that
somebody else wrote makes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from preflight_mnnvl.api import decision as stored
from preflight_mnnvl.api.decision import MnnvlDecision, Newer
from preflight_mnnvl.api.identity import CliqueRefused, identify
from preflight_mnnvl.api.names import DECISION
from preflight_mnnvl.api.types import ComputeDomain, Key, PodClique
from preflight_mnnvl.core.domain import Domain, domain_of, identity_labels

__all__ = ["DomainMember", "Ignored", "Wanted", "member_of", "wanted"]


class DomainMember(NamedTuple):
    """A living PodClique that carries a decision. ``placed``: pods of it were scheduled, so that
    their claims, and a domain, have been there.
    """

    namespace: str
    name: str
    uid: str
    decision: MnnvlDecision
    domain: Domain
    placed: bool


class Ignored(NamedTuple):
    """A PodClique whose decision is not followed, and why: one clause."""

    namespace: str
    name: str
    why: str


class Wanted(NamedTuple):
    """One domain that living PodCliques need; ``gang`` is the PodGang that most of its labels name
    (see :func:`wanted`). ``losers``: PodCliques of other domains that have this name.
    """

    namespace: str
    domain: Domain
    members: tuple[DomainMember, ...]
    gang: str
    losers: tuple[DomainMember, ...] = ()

    @property
    def decision(self) -> MnnvlDecision:
        """That of the first member: mode, names and class are alike in all."""
        return self.members[0].decision


def member_of(clique: PodClique) -> DomainMember | Ignored | None:
    """The member that a PodClique is; None for one without a decision, and for one that is being
    deleted.
    """
    meta = clique.metadata
    text = meta.annotation(DECISION)
    if text is None or meta.going:
        return None
    try:
        made = stored.read(text)
        if made is None:
            return Ignored(
                meta.namespace,
                meta.name,
                f"the annotation {DECISION} is none that the webhook wrote",
            )
        domain = domain_of(identify(meta, made.scope), made.scope)
    except (Newer, CliqueRefused) as error:
        return Ignored(meta.namespace, meta.name, str(error))
    if (domain.name, domain.claim) != (made.cd, made.claim):
        domain = domain._replace(plain=True)  # a name once given holds for life
    if (domain.name, domain.claim) != (made.cd, made.claim):
        return Ignored(
            meta.namespace,
            meta.name,
            f"the annotation {DECISION} names {made.cd}, and its labels {domain.name}",
        )
    status = clique.status
    placed = status is not None and bool(status.scheduled_replicas or status.ready_replicas)
    return DomainMember(meta.namespace, meta.name, meta.uid, made, domain, placed)


def wanted(
    members: Iterable[DomainMember], there: Mapping[Key, ComputeDomain] = {}
) -> dict[Key, Wanted]:
    """The domains by namespace and name; ``there``: the ComputeDomains that exist.

    Where members name several PodGangs (one domain for a whole replica, with the operator's
    `base-podgang` label missing), it is the one with the shortest name: the others build upon it,
    and their names begin with its. Of two domains of one name the one that exists is wanted, else
    that of the PodClique that comes first by name; the members of the other are its losers.
    """
    found: dict[Key, dict[Domain, list[DomainMember]]] = {}
    for member in sorted(members):
        alike = found.setdefault((member.namespace, member.decision.cd), {})
        alike.setdefault(member.domain, []).append(member)
    return {key: _wanted(key, alike, there.get(key)) for key, alike in found.items()}


def _wanted(
    key: Key, alike: Mapping[Domain, list[DomainMember]], there: ComputeDomain | None
) -> Wanted:
    labels = (there.metadata.labels if there is not None else None) or {}
    own = (one for one in alike if identity_labels(one).items() <= labels.items())
    domain = next(own, next(iter(alike)))
    gangs = [one.decision.gang for one in alike[domain]]
    losers = [one for other, members in alike.items() if other != domain for one in members]
    first = min(gangs, key=lambda gang: (len(gang), gang))
    return Wanted(key[0], domain, tuple(alike[domain]), first, tuple(losers))
