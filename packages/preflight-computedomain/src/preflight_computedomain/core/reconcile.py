"""The plan for one ComputeDomain, from it and the templates that are seen. Pure.

It starts from what is there and remembers nothing, so that whoever leads next goes on. Ready means
that the template exists; it says nothing about IMEX. Pods and their claims are not looked at: they
keep their channel when the ComputeDomain goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from preflight_kube.text import one_line

from preflight_computedomain.api.names import FINALIZER, LABEL, fits_as_name
from preflight_computedomain.api.types import ClaimTemplate, ComputeDomain
from preflight_computedomain.core import template

READY: Final = "Ready"
NOT_READY: Final = "NotReady"
DELETED: Final = "A deleted ComputeDomain whose pods have not ended"
"""Names in a sentence what has no name any more."""


Kind = Literal[
    "AddFinalizer",
    "RemoveFinalizer",
    "WriteStatus",
    "GrantCliques",
    "CreateTemplate",
    "PatchTemplate",
    "DeleteTemplate",
    "ReleaseTemplate",
    "ConfirmGone",
    "ConfirmNoDomain",
]


class DomainAction(NamedTuple):
    """One request. ``kind``: what it does, of the ComputeDomain its finalizer, its cliques or
    ``status``; of a template, which is ``name``:

    - create it of ``body``; where the name is taken, the plan ends;
    - a merge patch ``body`` of labels and finalizers;
    - delete it, with ``uid`` as precondition; one that is gone already is as it should be;
    - release it: take our finalizer away, by finalizers and version of the last answer about
      ``uid``;
    - confirm by a GET that none has this name, or what has it is none of the ComputeDomain ``uid``;
    - confirm by a LIST that no ComputeDomain has the uid. What is not confirmed ends the plan.
    """

    kind: Kind
    name: str = ""
    uid: str = ""
    body: Mapping[str, Any] = {}
    status: str = ""


@dataclass(frozen=True, slots=True)
class DomainEvent:
    """A Warning Event; ``about``: what tells it from others of the same reason."""

    reason: str
    message: str
    about: str


@dataclass(frozen=True, slots=True)
class TemplatePlan:
    """``actions``: in order, until one fails. ``status``: what the ComputeDomain shows after them.
    ``next``: what is waited for, in words; empty for nothing.
    """

    actions: tuple[DomainAction, ...] = ()
    status: str = READY
    events: tuple[DomainEvent, ...] = ()
    next: str = ""


def reconcile(domain: ComputeDomain, seen: Iterable[ClaimTemplate]) -> TemplatePlan:
    """What to do, by the templates ``seen`` that have its template's name, or its uid as label."""
    templates = sorted(seen, key=lambda item: item.metadata.name)
    if domain.metadata.deletion_timestamp:
        return _deleting(domain, templates)
    uid, name = domain.metadata.uid, domain.template
    events = _unsupported(domain)
    status, waits = READY, ""
    before: list[DomainAction] = []
    after: list[DomainAction] = []
    there = next((item for item in templates if item.metadata.name == name), None)
    if not fits_as_name(name):
        status = NOT_READY
        events.append(_no_name(domain))
    elif there is None:
        before.append(DomainAction("CreateTemplate", domain.template, body=template.body(domain)))
    elif template.owner(there) != uid:
        status, waits = NOT_READY, f"ResourceClaimTemplate {name} to change or to go"
        events.append(_conflict(there))
    elif there.metadata.deletion_timestamp:
        status, waits = NOT_READY, f"the deleted ResourceClaimTemplate {name} to be gone"
        after += _removal(there)
    elif (patch := template.repair_patch(there, uid)) is not None:
        before.append(DomainAction("PatchTemplate", name, body=patch))
    if FINALIZER not in domain.metadata.finalizers:
        before.insert(0, DomainAction("AddFinalizer"))
    if domain.status.status != status:
        before.append(DomainAction("WriteStatus", status=status))
    return TemplatePlan((*before, *after), status, tuple(events), waits)


def _deleting(domain: ComputeDomain, templates: list[ClaimTemplate]) -> TemplatePlan:
    uid = domain.metadata.uid
    ours = [item for item in templates if template.owner(item) == uid]
    actions = [action for item in ours for action in _removal(item)]
    names = dict.fromkeys((domain.template, *(item.metadata.name for item in ours)))
    confirmed = [DomainAction("ConfirmGone", name, uid) for name in names if fits_as_name(name)]
    if FINALIZER in domain.metadata.finalizers:
        waits = "its ResourceClaimTemplate to be gone"
        return TemplatePlan(
            (*actions, *confirmed, DomainAction("RemoveFinalizer")), NOT_READY, (), waits
        )
    return TemplatePlan((*actions, *confirmed) if actions else (), NOT_READY)


def _removal(item: ClaimTemplate) -> list[DomainAction]:
    about = item.metadata
    actions = []
    if not about.deletion_timestamp:
        actions.append(DomainAction("DeleteTemplate", about.name, about.uid))
    if FINALIZER in about.finalizers:
        actions.append(DomainAction("ReleaseTemplate", about.name, about.uid))
    return actions


def sweep(item: ClaimTemplate) -> tuple[DomainAction, ...]:
    """Actions that remove a template of ours without a ComputeDomain; none where it is nobody's."""
    about, uid = item.metadata, template.owner(item)
    if not uid or about.labels.get(LABEL) != uid:
        return ()
    none = DomainAction("ConfirmNoDomain", uid=uid)
    return (none, *_removal(item), DomainAction("ConfirmGone", about.name, uid))


def shares(named: Mapping[str, Sequence[str]]) -> list[DomainEvent]:
    """Events about cliques in which others are active; ``named``: those that it may name."""
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


def _unsupported(domain: ComputeDomain) -> list[DomainEvent]:
    mode = domain.spec.channel.allocation_mode
    if mode == "Single":
        return []
    message = (
        f"spec.channel.allocationMode is {one_line(mode, 40)}: pods with this claim will not start, as host-managed IMEX gives channel 0 "
        "alone; make this ComputeDomain anew and set Single"
    )
    return [DomainEvent("UnsupportedAllocationMode", message, domain.metadata.uid)]
