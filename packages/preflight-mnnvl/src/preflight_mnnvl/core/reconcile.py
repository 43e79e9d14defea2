"""One turn of the controller about one domain: what is seen, and the time → what is to be done,
said in Events, and looked at again. Pure.

Nothing is remembered that a restart would miss: each turn begins from the objects, and ends where
it ended the last time if nothing has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from preflight_mnnvl.api.names import (
    CLAIM,
    INSTANCE,
    MANAGED,
    MANAGED_BY,
    MANAGED_BY_US,
    PODGANG,
    RECREATED,
    TEMPLATE_OF,
    label_value,
)
from preflight_mnnvl.api.types import ComputeDomain, Metadata, shown
from preflight_mnnvl.config import Config
from preflight_mnnvl.core import reasons as events
from preflight_mnnvl.core.builders import (
    Head,
    compute_domain,
    gang_owner,
    resource_claim,
    set_owner,
)
from preflight_mnnvl.core.desired import DomainMember, Wanted
from preflight_mnnvl.core.domain import labels_of, other_identity, owned_by
from preflight_mnnvl.core.ownership import abandoned, adopted, adoption, alive, owned_by_set
from preflight_mnnvl.core.reasons import Event, EventSubject
from preflight_mnnvl.core.support import Support

__all__ = ["ClusterWrite", "DomainTurn", "DomainView", "decide"]

TEMPLATE_PATIENCE = 30.0
"""Seconds after which an Event says that a ComputeDomain has no claim template."""
BLOCKED_AGAIN = 60.0
"""Seconds after which a foreign object is looked at again, if nothing has changed."""
ENDING_PATIENCE = 60.0
"""Seconds after which an Event says what keeps a domain that is being deleted."""
RELEASE_PATIENCE = 5.0
"""Seconds for which nobody must want a domain: mirrors of different kinds are not read at the same
moment.
"""
TOLD_FOR = 3600.0
"""Seconds that the API server keeps an Event: of older objects nothing is said again."""

MOST_NAMED = 5
"""PodCliques that one Event calls by name; it has room for 1,024 characters."""

Kind = Literal["ComputeDomain", "ResourceClaim"]
State = Literal[
    "wanted", "owned-by-set", "adopted", "blocked", "ending", "unsupported", "unclaimed", "gone"
]


class DomainView(NamedTuple):
    """``wanted`` is None where no living PodClique needs the domain. ``claim``: the claim template,
    in `literal` mode the claim.

    ``gangs``: the PodGangs by name that exist, of those that the domain's members and label name.
    ``lost``: the uid of a domain of this name that was seen and is gone, and that living members
    needed then. ``unclaimed_since``: when it was first seen that nobody needs it, in seconds of the
    epoch. ``others``: other sets that want the name, or whose object has it.
    """

    name: str
    namespace: str
    wanted: Wanted | None = None
    domain: ComputeDomain | None = None
    claim: ComputeDomain | None = None
    gangs: Mapping[str, Metadata] = {}
    set_: Metadata | None = None
    lost: str = ""
    unclaimed_since: float | None = None
    others: tuple[Metadata, ...] = ()


class ClusterWrite(NamedTuple):
    """One write. ``verb``: `create` with the object, or `patch` with a JSONPatch of the object
    called ``name``.
    """

    verb: Literal["create", "patch"]
    kind: Kind
    namespace: str
    name: str
    body: Any
    why: Literal["make", "adopt", "release"]


class DomainTurn(NamedTuple):
    """``again``: when to look again even if nothing changes, in seconds of the epoch. ``why``: one
    sentence for people. ``unclaimed_since``: to be kept until the next turn.
    """

    state: State
    why: str
    actions: tuple[ClusterWrite, ...] = ()
    events: tuple[Event, ...] = ()
    again: float | None = None
    unclaimed_since: float | None = None

    @property
    def releases(self) -> bool:
        """Whether it lets go of something."""
        return any(one.why == "release" for one in self.actions)


def decide(seen: DomainView, config: Config, support: Support, now: float) -> DomainTurn:
    """What is to be done about the domain. The actions are in order; each turn after one of them
    failed begins anew.
    """
    if seen.wanted is None:
        return _unwanted(seen, config, now)
    turn = _needed(seen, seen.wanted, config, support, now=now)
    if not seen.wanted.losers:
        return turn
    return turn._replace(events=(*turn.events, *_contested(seen, seen.wanted)))


def _needed(
    seen: DomainView, wanted: Wanted, config: Config, support: Support, *, now: float
) -> DomainTurn:
    if not support.ok:
        told = (
            _tell(seen, events.UNSUPPORTED, f"{support.why}.", support.state)
            if support.state != "unknown"
            else ()
        )
        return DomainTurn("unsupported", f"{support.why}.", events=told)
    found = seen.domain
    if found is None:
        return _missing(seen, wanted, config, support)
    if whose := other_identity(found.metadata.labels, wanted.domain, config.instance):
        return _blocked(seen, "ComputeDomain", found.metadata, whose, now)
    if found.metadata.going:
        return _ending(seen, found.metadata, now)
    return _there(seen, wanted, found.metadata, config, support=support, now=now)


def _missing(seen: DomainView, wanted: Wanted, config: Config, support: Support) -> DomainTurn:
    """It must exist, and does not."""
    gang = seen.gangs.get(wanted.gang)
    owner = _owner(seen, gang)
    if owner is None:
        return DomainTurn(
            "wanted",
            "the ComputeDomain waits for its PodCliqueSet, which is not there or is being deleted.",
        )
    lost = seen.lost or ("unknown" if any(one.placed for one in wanted.members) else "")
    head = Head(seen.namespace, labels_of(wanted.domain, wanted.gang, config.instance), owner)
    actions = [_create("ComputeDomain", seen, compute_domain(wanted.domain, head, support, lost))]
    if wanted.decision.mode == "literal" and seen.claim is None:
        actions.append(_claim(seen, wanted, head, support))
    return DomainTurn(
        "wanted",
        f"the ComputeDomain {seen.name} is made{' again' if lost else ''}.",
        tuple(actions),
    )


def _ending(seen: DomainView, meta: Metadata, now: float) -> DomainTurn:
    """It is waited for; what keeps it is said once that takes long."""
    why = f"the ComputeDomain {shown(seen.name)} is being deleted, and is made again at its end."
    late = (_when(meta.deletion_timestamp) or now) + ENDING_PATIENCE
    if now < late:
        return DomainTurn("ending", why, again=late)
    held = ", ".join(shown(one) for one in meta.finalizers or ()) or "none that is known"
    why = (
        f"{why[:-1]}, for more than {ENDING_PATIENCE:.0f} s; its finalizers are {held}: is the DRA driver's "
        "controller running, and have the pods of the old domain ended?"
    )
    return DomainTurn(
        "ending", why, events=_tell(seen, events.ENDING, why[0].upper() + why[1:], meta.uid)
    )


def _there(
    seen: DomainView,
    wanted: Wanted,
    meta: Metadata,
    config: Config,
    *,
    support: Support,
    now: float,
) -> DomainTurn:
    """It exists and is ours: whose is it, and has it its claim?"""
    gang = _gang(seen, meta, wanted)
    actions, told = [], list(_made(seen, meta, now))
    mine = gang is not None and adopted(meta, gang)
    if gang is not None and not mine:
        actions.append(_patch(seen, "ComputeDomain", meta, adoption(meta, gang), "adopt"))
    if mine and gang is not None and (_young(gang, now) or _young(meta, now)):
        told += _tell(
            seen,
            events.ADOPTED,
            f"The ComputeDomain {seen.name} belongs to the PodGang {gang.name}.",
            f"{meta.uid} {gang.uid}",
        )
    told += _restored(seen, wanted, now)
    state: State = "adopted" if mine else "owned-by-set"
    why = f"the ComputeDomain {seen.name} belongs to the {f'PodGang {gang.name}' if mine and gang else 'PodCliqueSet'}."
    again = None
    if wanted.decision.mode == "literal":
        claim = _literal_claim(seen, wanted, gang, config, support=support, now=now)
        if isinstance(claim, DomainTurn):
            return claim._replace(actions=tuple(actions), events=(*told, *claim.events))
        actions += claim
    else:
        template = _template(seen, meta, now)
        if template.state == "blocked":
            return template._replace(actions=tuple(actions), events=(*told, *template.events))
        told += template.events
        again, why = template.again, template.why or why
    return DomainTurn(state, why, tuple(actions), tuple(told), again)


def _gang(seen: DomainView, meta: Metadata, wanted: Wanted) -> Metadata | None:
    """The PodGang to which it is to belong: the recorded one as long as members name it, and it
    lives.
    """
    recorded = meta.label(PODGANG)
    named = {one.decision.gang for one in wanted.members}
    order = sorted(named, key=lambda one: (label_value(one) != recorded, one != wanted.gang, one))
    return next((found for name in order if alive(found := seen.gangs.get(name))), None)


def _literal_claim(
    seen: DomainView,
    wanted: Wanted,
    gang: Metadata | None,
    config: Config,
    *,
    support: Support,
    now: float,
) -> list[ClusterWrite] | DomainTurn:
    if seen.claim is None:
        owner = gang_owner(gang.name, gang.uid) if gang is not None else _owner(seen, None)
        labels = labels_of(
            wanted.domain, gang.name if gang is not None else wanted.gang, config.instance
        )
        return [_claim(seen, wanted, Head(seen.namespace, labels, owner), support)] if owner else []
    meta = seen.claim.metadata
    if whose := other_identity(meta.labels, wanted.domain, config.instance):
        return _blocked(seen, "ResourceClaim", meta, whose, now)
    if gang is None or meta.going or adopted(meta, gang):
        return []
    return [_patch(seen, "ResourceClaim", meta, adoption(meta, gang), "adopt")]


def _template(seen: DomainView, meta: Metadata, now: float) -> DomainTurn:
    """The driver makes the claim template; one that is not of this domain is never replaced by it,
    and it does not say so.
    """
    late = (_when(meta.creation_timestamp) or now) + TEMPLATE_PATIENCE
    template = seen.claim
    if template is None:
        if now < late:
            return DomainTurn("wanted", "", again=late)
        why = f"the ComputeDomain {seen.name} has no ResourceClaimTemplate after {TEMPLATE_PATIENCE:.0f} s: is the DRA driver's controller running?"
        return DomainTurn(
            "wanted",
            why,
            events=_tell(seen, events.TEMPLATE_MISSING, why[0].upper() + why[1:], meta.uid),
        )
    of = template.metadata.label(TEMPLATE_OF)
    if of == meta.uid:
        return DomainTurn("wanted", "")
    if of is not None and (now < late or template.metadata.going):
        return DomainTurn(
            "wanted", "", again=late if now < late else None
        )  # of the domain before this one: the driver removes it
    whose = (
        "does not carry the uid of the ComputeDomain"
        if of is None
        else "carries the uid of another ComputeDomain"
    )
    return _blocked(seen, "ResourceClaimTemplate", template.metadata, whose, now)


def _unwanted(seen: DomainView, config: Config, now: float) -> DomainTurn:
    """Nobody needs it. What a living PodGang owns stays with it; what only the set owns would stay
    for ever, and is let go.
    """
    parts = [
        (kind, found.metadata)
        for kind, found in _parts(seen, config)
        if found is not None and not found.metadata.going and _ours(found.metadata, config)
    ]
    if not parts:
        return DomainTurn("gone", "no PodClique needs it.")
    recorded = parts[0][1].label(PODGANG)
    gang = next(
        (
            found
            for name, found in sorted(seen.gangs.items())
            if label_value(name) == recorded and alive(found)
        ),
        None,
    )
    if gang is not None:
        actions = [
            _patch(seen, kind, meta, adoption(meta, gang), "adopt")
            for kind, meta in parts
            if not adopted(meta, gang)
        ]
        why = f"it belongs to the PodGang {gang.name}; no PodClique needs it now."
        return DomainTurn("owned-by-set" if actions else "adopted", why, tuple(actions))
    left = [
        (kind, meta)
        for kind, meta in parts
        if owned_by_set(meta) and (not meta.owner_references or alive(seen.set_))
    ]
    if not left:
        return DomainTurn("gone", "its owner is gone, and the garbage collector removes it.")
    since = now if seen.unclaimed_since is None else seen.unclaimed_since
    if now < since + RELEASE_PATIENCE:
        return DomainTurn(
            "unclaimed",
            "no PodClique needs it.",
            again=since + RELEASE_PATIENCE,
            unclaimed_since=since,
        )
    actions = [_patch(seen, kind, meta, abandoned(meta), "release") for kind, meta in left]
    message = f"The {left[0][0]} {left[0][1].name} is removed: no PodClique needs it, and no PodGang owns it."
    told = _tell(seen, events.RELEASED, message, left[0][1].uid)
    why = "no PodClique needs it, and it is handed to the garbage collector."
    return DomainTurn("unclaimed", why, tuple(actions), told, unclaimed_since=since)


def _parts(seen: DomainView, config: Config) -> tuple[tuple[Kind, ComputeDomain | None], ...]:
    """The domain, and its claim; a claim template is the driver's, whatever its labels say."""
    claim = seen.claim if config.mode == "literal" else None
    return ("ComputeDomain", seen.domain), ("ResourceClaim", claim)


def _patch(
    seen: DomainView,
    kind: Kind,
    meta: Metadata,
    body: list[dict[str, Any]],
    why: Literal["adopt", "release"],
) -> ClusterWrite:
    return ClusterWrite("patch", kind, seen.namespace, meta.name, body, why)


def _ours(meta: Metadata, config: Config) -> bool:
    wanted = {MANAGED: "true", MANAGED_BY: MANAGED_BY_US, INSTANCE: label_value(config.instance)}
    return all(meta.label(key) == value for key, value in wanted.items())


def _owner(seen: DomainView, gang: Metadata | None) -> dict[str, Any] | None:
    if gang is not None and alive(gang):
        return gang_owner(gang.name, gang.uid)
    if seen.set_ is not None and alive(seen.set_):
        return set_owner(seen.set_.name, seen.set_.uid)
    return None


def _made(seen: DomainView, meta: Metadata, now: float) -> tuple[Event, ...]:
    """Told from the object itself, so that a controller that dies after the creation has not
    swallowed it.
    """
    if not _young(meta, now):
        return ()
    before = meta.annotation(RECREATED)
    if before is None:
        return _tell(seen, events.CREATED, f"The ComputeDomain {seen.name} was made.", meta.uid)
    message = f"The ComputeDomain {seen.name} was lost and is made again: pods that joined the old domain must be restarted{_of(seen.wanted.members if seen.wanted else ())}."
    return _tell(seen, events.RECREATED, message, meta.uid)


def _restored(seen: DomainView, wanted: Wanted, now: float) -> tuple[Event, ...]:
    back = [one for one in wanted.members if now - one.decision.restored < TOLD_FOR]
    if not back:
        return ()
    message = (
        f"The claim of the ComputeDomain {seen.name} had been written away and is back: pods that were made without it must be restarted{_of(back)}; "
        f"they are those without a claim {CLAIM}."
    )
    return _tell(
        seen._replace(wanted=wanted._replace(members=tuple(back))), events.RESTORED, message, ""
    )


def _of(members: Sequence[DomainMember]) -> str:
    """Whose pods they are: the PodCliques by name, as many as a line holds."""
    if not members:
        return ""
    names = [shown(one.name) for one in members[:MOST_NAMED]]
    if more := len(members) - len(names):
        names.append(f"{more} more")
    several = "" if len(members) == 1 else "s"
    return f", those of the PodClique{several} {' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))}"


def _blocked(seen: DomainView, kind: str, meta: Metadata, whose: str, now: float) -> DomainTurn:
    then = "the domain is made"
    if kind == "ResourceClaimTemplate":
        then = "the driver makes its own; pods that run with claims of this one must be restarted"
    why = f"the {kind} {shown(meta.name or seen.name)} {whose}{owned_by(meta)}; delete or rename it, and {then}."
    told = _tell(seen, events.BLOCKED, why[0].upper() + why[1:], f"{kind} {meta.uid} {whose}")
    return DomainTurn("blocked", why, events=told, again=now + BLOCKED_AGAIN)


def _contested(seen: DomainView, wanted: Wanted) -> tuple[Event, ...]:
    """PodCliques of several domains were given one name, and so one claim: both sides are told."""
    rival = wanted.losers[0].domain
    message = (
        f"The ComputeDomain {seen.name} is that of {wanted.domain}, and pods of {rival} have the same claim{_of(wanted.losers)}; "
        "delete or rename one of the two, as their pods must not share a domain."
    )
    return _tell(seen, events.BLOCKED, message, f"contested {rival}")


def _create(kind: Kind, seen: DomainView, body: dict[str, Any]) -> ClusterWrite:
    return ClusterWrite("create", kind, seen.namespace, body["metadata"]["name"], body, "make")


def _claim(seen: DomainView, wanted: Wanted, head: Head, support: Support) -> ClusterWrite:
    return _create(
        "ResourceClaim",
        seen,
        resource_claim(wanted.domain, head, support, wanted.decision.device_class),
    )


def _tell(seen: DomainView, reason: str, message: str, fact: str) -> tuple[Event, ...]:
    everybody = reason == events.BLOCKED  # also whose name or object it is
    sets = [seen.set_, *(seen.others if everybody else ())]
    subjects = [
        EventSubject("PodCliqueSet", seen.namespace, one.name, one.uid) for one in sets if one
    ]
    if (wanted := seen.wanted) is not None:
        subjects += [
            EventSubject("PodClique", seen.namespace, one.name, one.uid)
            for one in (*(wanted.losers if everybody else ()), *wanted.members)
        ]
    return events.about(subjects, reason, message, f"{seen.name} {fact}")


def _young(meta: Metadata, now: float) -> bool:
    made = _when(meta.creation_timestamp)
    return made is None or now - made < TOLD_FOR


def _when(text: str | None) -> float | None:
    """Seconds of the epoch; None for what is not a time."""
    try:
        return datetime.fromisoformat((text or "").replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None
