"""The Events: one for each fact and object. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from preflight_kube.runtime.events import Regarding

from preflight_mnnvl.api.names import GROVE_GROUP
from preflight_mnnvl.api.types import Metadata, OwnerReference, shown
from preflight_mnnvl.core.snapshot import DomainMember

__all__ = [
    "ADOPTED",
    "ANNOUNCEMENT_REFUSED",
    "BLOCKED",
    "CREATED",
    "ENDING",
    "RECREATED",
    "RELEASED",
    "RESTORED",
    "TEMPLATE_MISSING",
    "UNCLAIMED",
    "UNSUPPORTED",
    "Event",
    "about",
    "refused_announcement",
    "regarding",
    "unclaimed",
]

CREATED = "MnnvlDomainCreated"
ADOPTED = "MnnvlDomainAdopted"
BLOCKED = "MnnvlDomainBlocked"
ENDING = "MnnvlDomainEnding"
RECREATED = "MnnvlDomainRecreated"
RELEASED = "MnnvlDomainReleased"
TEMPLATE_MISSING = "MnnvlClaimTemplateMissing"
UNCLAIMED = "MnnvlUnclaimed"
RESTORED = "MnnvlClaimRestored"
UNSUPPORTED = "MnnvlUnsupported"
ANNOUNCEMENT_REFUSED = "MnnvlAnnouncementRefused"
_WARNINGS = frozenset(
    {
        *(BLOCKED, ENDING, RECREATED, RESTORED, TEMPLATE_MISSING, UNCLAIMED, UNSUPPORTED),
        ANNOUNCEMENT_REFUSED,
    }
)
MOST_SUBJECTS = 16
"""PodCliques that one fact is said on."""


class Event(NamedTuple):
    """``reason``: one of the constants above. ``about``: the fact, by which the recorder tells it
    from others on the object, and writes each once.
    """

    regarding: Regarding
    reason: str
    message: str
    about: str

    @property
    def warning(self) -> bool:
        """Tell whether somebody has to do something."""
        return self.reason in _WARNINGS


def regarding(
    kind: str, namespace: str, subject: Metadata | OwnerReference | DomainMember
) -> Regarding:
    """A PodCliqueSet or PodClique, of grove.io/v1alpha1."""
    return Regarding(f"{GROVE_GROUP}/v1alpha1", kind, subject.name, subject.uid, namespace)


def about(subjects: Iterable[Regarding], reason: str, message: str, fact: str) -> tuple[Event, ...]:
    """The Events that say ``message`` of the first subjects; ``fact`` says what is the same
    however often it is said.
    """
    first = list(subjects)[: MOST_SUBJECTS + 1]
    return tuple(Event(subject, reason, message, f"{reason} {fact}") for subject in first)


def unclaimed(clique: Metadata, set_: Metadata | None, why: str) -> tuple[Event, ...]:
    """The Events about a PodClique whose pods get no claim; ``why``: that the cluster cannot have
    any, a clause; empty where it can.
    """
    sets = [regarding("PodCliqueSet", clique.namespace, set_)] if set_ is not None else []
    subjects = [*sets, regarding("PodClique", clique.namespace, clique)]
    name = shown(clique.name)
    message = (
        f"PodClique {name} asks for multi-node NVLink, and its pods get no claim: {why}."
        if why
        else f"PodClique {name} asks for multi-node NVLink, and its pods get no claim: it was written while no webhook of MNNVL answered, or before it "
        "asked. Delete it, and Grove makes it anew with its claim."
    )
    return about(subjects, UNSUPPORTED if why else UNCLAIMED, message, f"unclaimed {clique.uid}")


def refused_announcement(gang: str, account: str) -> str:
    """The message where a PodGang may not be annotated: Grove's own authorizer refuses whom it does
    not know.
    """
    return (
        f"PodGang {gang}: its objects are adopted, and the annotation that says so was refused; adoption counts without it. Add {account} to "
        "config.authorizer.exemptServiceAccountUserNames of Grove, if it is wanted."
    )
