"""The Events: one for each fact and object, under a name that is made of the
fact, so that it is said once. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from preflight_mnnvl.api.names import bounded, hashed
from preflight_mnnvl.api.types import Metadata, shown

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
    "EventSubject",
    "about",
    "refused_announcement",
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


class EventSubject(NamedTuple):
    """What an Event is about; ``kind`` is PodCliqueSet or PodClique, of grove.io/v1alpha1."""

    kind: str
    namespace: str
    name: str
    uid: str


class Event(NamedTuple):
    """``name`` is made of the fact and the subject: the API server takes each once. ``reason``: one
    of the constants above.
    """

    name: str
    subject: EventSubject
    reason: str
    message: str

    @property
    def type(self) -> Literal["Normal", "Warning"]:
        """`Warning` where somebody has to do something."""
        return "Warning" if self.reason in _WARNINGS else "Normal"


def about(
    subjects: Iterable[EventSubject], reason: str, message: str, fact: str
) -> tuple[Event, ...]:
    """The Events that say ``message`` of the first subjects; ``fact`` says what is the same
    however often it is said.
    """
    return tuple(
        Event(
            f"{bounded(one.name, 200)}.{hashed(f'{reason} {one.uid} {fact}')}", one, reason, message
        )
        for one in list(subjects)[: MOST_SUBJECTS + 1]
    )


def unclaimed(clique: Metadata, set_: Metadata | None, why: str) -> tuple[Event, ...]:
    """What to say of a PodClique whose pods get no claim; ``why``: that the cluster cannot have
    any, a clause; empty where it can.
    """
    of = [("PodCliqueSet", set_)] if set_ is not None else []
    subjects = [
        EventSubject(kind, clique.namespace, one.name, one.uid)
        for kind, one in [*of, ("PodClique", clique)]
    ]
    name = shown(clique.name)
    message = (
        f"PodClique {name} asks for multi-node NVLink, and its pods get no claim: {why}."
        if why
        else f"PodClique {name} asks for multi-node NVLink, and its pods get no claim: it was written while no webhook of MNNVL answered, or before it "
        "asked. Delete it, and Grove makes it anew with its claim."
    )
    return about(subjects, UNSUPPORTED if why else UNCLAIMED, message, f"unclaimed {clique.uid}")


def refused_announcement(gang: str, account: str) -> str:
    """What to say where a PodGang may not be annotated: Grove's own authorizer refuses whom it does
    not know.
    """
    return (
        f"PodGang {gang}: its objects are adopted, and the annotation that says so was refused; adoption counts without it. Add {account} to "
        "config.authorizer.exemptServiceAccountUserNames of Grove, if it is wanted."
    )
