"""The Events: one for each fact and object. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from preflight_kube.runtime.events import Regarding

from preflight_mnnvl.api.names import GROVE_GROUP
from preflight_mnnvl.api.types import Metadata, OwnerReference, shown
from preflight_mnnvl.core.snapshot import DomainMember

CREATED = "MnnvlDomainCreated"
ADOPTED = "MnnvlDomainAdopted"
BLOCKED = "MnnvlDomainBlocked"
ENDING = "MnnvlDomainEnding"
RECREATED = "MnnvlDomainRecreated"
REFUSED = "MnnvlDomainRefused"
RELEASED = "MnnvlDomainReleased"
TEMPLATE_MISSING = "MnnvlClaimTemplateMissing"
UNCLAIMED = "MnnvlUnclaimed"
RESTORED = "MnnvlClaimRestored"
UNSUPPORTED = "MnnvlUnsupported"
ANNOUNCEMENT_REFUSED = "MnnvlAnnouncementRefused"
_GOOD = frozenset({CREATED, ADOPTED, RELEASED})
MOST_SUBJECTS = 16
"""PodCliques that one fact is said on."""


class Event(NamedTuple):
    """``about``: the fact, by which the recorder tells it from others on the object. ``warning``:
    somebody has to do something.
    """

    regarding: Regarding
    reason: str
    message: str
    about: str
    warning: bool


def regarding(
    kind: str, namespace: str, subject: Metadata | OwnerReference | DomainMember
) -> Regarding:
    """A PodCliqueSet or PodClique, of grove.io/v1alpha1."""
    return Regarding(f"{GROVE_GROUP}/v1alpha1", kind, subject.name, subject.uid, namespace)


def about(subjects: Iterable[Regarding], reason: str, message: str, fact: str) -> tuple[Event, ...]:
    """The Events that say ``message`` of the first subjects; ``fact``: what is said once."""
    first, warning = islice(subjects, MOST_SUBJECTS + 1), reason not in _GOOD
    return tuple(Event(subject, reason, message, f"{reason} {fact}", warning) for subject in first)


def unclaimed(clique: Metadata, set_: Metadata | None, why: str) -> tuple[Event, ...]:
    """The Events about a PodClique whose pods get no claim; ``why``: a clause, where none can."""
    sets = [regarding("PodCliqueSet", clique.namespace, set_)] if set_ is not None else []
    subjects = [*sets, regarding("PodClique", clique.namespace, clique)]
    late = "it was written before it asked, or while no webhook of MNNVL answered for its namespace. Delete it, and Grove makes it anew with its claim, if one answers now"
    message = f"PodClique {shown(clique.name)} asks for multi-node NVLink, and its pods get no claim: {why or late}."
    return about(subjects, UNSUPPORTED if why else UNCLAIMED, message, f"unclaimed {clique.uid}")


def refused_announcement(gang: str, account: str) -> str:
    """The message where Grove's own authorizer, which does not know us, refuses an annotation."""
    return (
        f"PodGang {gang}: its objects are adopted, and the annotation that says so was refused; adoption counts without it. Add {account} to "
        "config.authorizer.exemptServiceAccountUserNames of Grove, if it is wanted."
    )
