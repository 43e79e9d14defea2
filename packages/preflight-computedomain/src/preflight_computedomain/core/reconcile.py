"""What to do about one ComputeDomain, from it and the templates that are seen: the controller's
decision as one function.

Pure. It starts from what is there and remembers nothing, so that whoever leads next goes on where
the last one stopped. Ready means that the template exists; it says nothing about IMEX. Pods and
their claims are not looked at: they keep their channel when the ComputeDomain goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from preflight_kube.text import one_line

from preflight_computedomain.api.names import FINALIZER, LABEL, fits_as_name
from preflight_computedomain.api.types import ClaimTemplate, ComputeDomain
from preflight_computedomain.core import template

__all__ = [
    "NOT_READY",
    "READY",
    "Action",
    "AddFinalizer",
    "ConfirmGone",
    "ConfirmNoDomain",
    "CreateTemplate",
    "DeleteTemplate",
    "DomainEvent",
    "DomainStep",
    "MendTemplate",
    "ReleaseTemplate",
    "RemoveFinalizer",
    "WriteStatus",
    "shares",
    "step",
    "sweep",
]

READY: Final = "Ready"
NOT_READY: Final = "NotReady"


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Put our finalizer on the ComputeDomain."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Take our finalizer from the ComputeDomain, which lets it go."""


@dataclass(frozen=True, slots=True)
class CreateTemplate:
    """Create it; where the name is taken, stop and look again."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MendTemplate:
    """A merge patch of labels and finalizers."""

    name: str
    patch: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteTemplate:
    """With ``uid`` as precondition; one that is gone already is as wished."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ReleaseTemplate:
    """Take our finalizer away by ``template.released``, with finalizers and version of the last
    answer about this uid.
    """

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ConfirmGone:
    """A GET: none has this name, or what has it is none of the ComputeDomain ``owner``'s. Else
    stop, and look again when it goes.
    """

    name: str
    owner: str


@dataclass(frozen=True, slots=True)
class ConfirmNoDomain:
    """A LIST of the namespace: no ComputeDomain has this uid. Else stop."""

    namespace: str
    uid: str


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write ``status.status``."""

    status: str


Action = (
    AddFinalizer
    | RemoveFinalizer
    | CreateTemplate
    | MendTemplate
    | DeleteTemplate
    | ReleaseTemplate
    | ConfirmGone
    | ConfirmNoDomain
    | WriteStatus
)


@dataclass(frozen=True, slots=True)
class DomainEvent:
    """A Warning Event of the ComputeDomain. ``about``: what tells this one from others with the
    same reason; said once for each.
    """

    reason: str
    message: str
    about: str


@dataclass(frozen=True, slots=True)
class DomainStep:
    """``actions``: in this order, each only when the one before it has succeeded; one that has not
    ends the step.

    ``status``: what the ComputeDomain is to show once they are done. ``next``: what is waited for,
    in words; empty for nothing.
    """

    actions: tuple[Action, ...] = ()
    status: str = READY
    events: tuple[DomainEvent, ...] = ()
    next: str = ""


def step(domain: ComputeDomain, seen: Iterable[ClaimTemplate]) -> DomainStep:
    """``seen``: the templates of the ComputeDomain's namespace that have its template's name, or
    its uid as label.
    """
    templates = sorted(seen, key=lambda one: one.metadata.name)
    if domain.metadata.deletion_timestamp:
        return _deleting(domain, templates)
    uid = domain.metadata.uid
    first: tuple[Action, ...] = () if FINALIZER in domain.metadata.finalizers else (AddFinalizer(),)
    events = _unsupported(domain)
    if not fits_as_name(domain.template):
        said = (*events, _no_name(domain))
        return DomainStep((*first, *_status(domain, NOT_READY)), NOT_READY, said)
    there = next((one for one in templates if one.metadata.name == domain.template), None)
    if there is None:
        create = CreateTemplate(template.body(domain))
        return DomainStep((*first, create, *_status(domain, READY)), READY, events)
    name = there.metadata.name
    if template.owner(there) != uid:
        said = (*events, _conflict(there))
        return DomainStep(
            (*first, *_status(domain, NOT_READY)),
            NOT_READY,
            said,
            f"ResourceClaimTemplate {name} to change or to go",
        )
    if there.metadata.deletion_timestamp:
        release = (
            (ReleaseTemplate(name, there.metadata.uid),)
            if FINALIZER in there.metadata.finalizers
            else ()
        )
        waits = f"the deleted ResourceClaimTemplate {name} to be gone"
        return DomainStep((*first, *_status(domain, NOT_READY), *release), NOT_READY, events, waits)
    patch = template.mended(there, uid)
    mend = () if patch is None else (MendTemplate(name, patch),)
    return DomainStep((*first, *mend, *_status(domain, READY)), READY, events)


def _deleting(domain: ComputeDomain, templates: list[ClaimTemplate]) -> DomainStep:
    uid = domain.metadata.uid
    actions: list[Action] = []
    names = {domain.template: None}
    for one in templates:
        if template.owner(one) == uid:
            names[one.metadata.name] = None
            actions += _removal(one)
    actions += [ConfirmGone(name, uid) for name in names if fits_as_name(name)]
    if FINALIZER not in domain.metadata.finalizers:
        return DomainStep(tuple(actions) if len(actions) > len(names) else (), NOT_READY)
    return DomainStep(
        (*actions, RemoveFinalizer()), NOT_READY, (), "its ResourceClaimTemplate to be gone"
    )


def _removal(one: ClaimTemplate) -> list[Action]:
    actions: list[Action] = []
    if not one.metadata.deletion_timestamp:
        actions.append(DeleteTemplate(one.metadata.name, one.metadata.uid))
    if FINALIZER in one.metadata.finalizers:
        actions.append(ReleaseTemplate(one.metadata.name, one.metadata.uid))
    return actions


def sweep(one: ClaimTemplate) -> tuple[Action, ...]:
    """What removes a template of ours whose ComputeDomain is not seen: none where it is nobody's,
    or has lost its label.
    """
    uid = template.owner(one)
    if not uid or one.metadata.labels.get(LABEL) != uid:
        return ()
    return (
        ConfirmNoDomain(one.metadata.namespace, uid),
        *_removal(one),
        ConfirmGone(one.metadata.name, uid),
    )


def _status(domain: ComputeDomain, status: str) -> tuple[Action, ...]:
    return () if domain.status.status == status else (WriteStatus(status),)


def shares(domain: ComputeDomain, named: Mapping[str, Sequence[str]]) -> list[DomainEvent]:
    """``named``: by NVLink clique in which others are active, too, those that people of the
    ComputeDomain's namespace may know.
    """
    return [
        DomainEvent(
            "SharedIMEXDomain",
            f"{', '.join(others[:5]) or 'A ComputeDomain of another namespace'} is active in the NVLink clique {one_line(clique, 64)} as "
            "well, and all use channel 0: their jobs can reach each other's memory; run one ComputeDomain at a time in a clique",
            clique,
        )
        for clique, others in named.items()
    ]


def _conflict(there: ClaimTemplate) -> DomainEvent:
    name = one_line(there.metadata.name, 253)
    anew = "make this ComputeDomain anew with another spec.channel.resourceClaimTemplate.name"
    message = f"ResourceClaimTemplate {name} exists and belongs to something else, and is left alone; delete or rename it, or {anew}"
    if owner := template.owner(there):
        message = f"ResourceClaimTemplate {name} is that of the ComputeDomain with the uid {one_line(owner, 80)}, and is left alone; {anew}"
    return DomainEvent("ResourceClaimTemplateConflict", message, there.metadata.uid)


def _no_name(domain: ComputeDomain) -> DomainEvent:
    message = (
        f"spec.channel.resourceClaimTemplate.name is {one_line(domain.template, 100)!r}, which cannot be an object's name; make this ComputeDomain "
        "anew with lower-case letters, digits, '-' and '.', 253 at most"
    )
    return DomainEvent("InvalidResourceClaimTemplateName", message, domain.metadata.uid)


def _unsupported(domain: ComputeDomain) -> tuple[DomainEvent, ...]:
    mode = domain.spec.channel.allocation_mode
    if mode == "Single":
        return ()
    message = (
        f"spec.channel.allocationMode is {one_line(mode, 40)}: pods with this claim will not start, as host-managed IMEX gives channel 0 "
        "alone; make this ComputeDomain anew and set Single"
    )
    return (DomainEvent("UnsupportedAllocationMode", message, domain.metadata.uid),)
