"""One reconcile of one domain: objects and time → writes, Events, and the next time. Pure.

Nothing is remembered that a restart would miss: each begins from the objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from preflight_kube.api.node_health import moment

from preflight_mnnvl.api import names
from preflight_mnnvl.api.types import ComputeDomain, Key, Metadata, shown
from preflight_mnnvl.config import Config
from preflight_mnnvl.core import reasons
from preflight_mnnvl.core.domain import (
    Body,
    abandoned,
    adopted,
    adoption,
    alive,
    announcement,
    compute_domain,
    gang_owner,
    head,
    labels_of,
    other_identity,
    other_release,
    owned_by,
    owned_by_set,
    resource_claim,
    set_owner,
)
from preflight_mnnvl.core.fabric import of_gang, some_of
from preflight_mnnvl.core.reasons import Event, regarding
from preflight_mnnvl.core.snapshot import DomainMember, DomainView, Objects, Wanted, World, view_of
from preflight_mnnvl.core.support import Support

TEMPLATE_PATIENCE = 30.0
"""Seconds after which an Event says that a ComputeDomain has no claim template."""
BLOCKED_AGAIN = 60.0
"""Seconds after which a foreign object is looked at again, if nothing has changed."""
ENDING_PATIENCE = 60.0
"""Seconds after which an Event says what keeps a domain that is being deleted."""
UNSUPPORTED_AGAIN = 10.0
"""Seconds after which is seen whether a domain can be had by now; nobody is asked for it."""
RELEASE_PATIENCE = 5.0
"""Seconds for which nobody must want a domain: kinds are not listed at the same moment."""
TOLD_FOR = 3600.0
"""Seconds that the API server keeps an Event: of older objects nothing is said again."""

Kind = Literal["ComputeDomain", "ResourceClaim"]
State = Literal[
    "wanted", "owned-by-set", "adopted", "blocked", "ending", "unsupported", "unclaimed", "gone"
]


class ClusterWrite(NamedTuple):
    """One write. ``body``: to `make` it, the object; else a JSONPatch of it."""

    kind: Kind
    namespace: str
    name: str
    body: Any
    why: Literal["make", "adopt", "release"]


class DomainPlan(NamedTuple):
    """``why``: for people. ``again``: when to reconcile even if nothing changes, in seconds of the
    epoch. ``unclaimed_since``: to be kept until then.
    """

    state: State
    why: str
    actions: tuple[ClusterWrite, ...] = ()
    events: tuple[Event, ...] = ()
    again: float | None = None
    unclaimed_since: float | None = None


def reconcile(view: DomainView, config: Config, support: Support, now: float) -> DomainPlan:
    """Plan what is to be done about the domain, in order."""
    if (wanted := view.wanted) is None:
        return _unwanted(view, config, now)
    return _Needed(view, wanted, config, support, now).plan()


class _Needed(NamedTuple):
    """A domain that living PodCliques need."""

    view: DomainView
    wanted: Wanted
    config: Config
    support: Support
    now: float

    def plan(self) -> DomainPlan:
        """Begin with what stands in the way."""
        view, support = self.view, self.support
        if not support.ok:
            why = f"{support.why}."
            known = support.state != "unknown"
            events = _events(view, reasons.UNSUPPORTED, why, support.state) if known else ()
            again = self.now + UNSUPPORTED_AGAIN
            return DomainPlan("unsupported", why, events=events, again=again)
        if view.domain is None:
            return self._missing()
        meta = view.domain.metadata
        if whose := other_identity(meta.labels, self.wanted.domain, self.config.instance):
            return _blocked(view, "ComputeDomain", meta, whose, self.now)
        return self._ending(meta) if meta.going else self._there(meta)

    def _missing(self) -> DomainPlan:
        """It must exist, and does not."""
        view, wanted, support = self.view, self.wanted, self.support
        replica = wanted.domain.replica
        if view.replicas is not None and int(replica) >= view.replicas:
            # Grove deletes the PodGang beside the scaling groups, and with these their PodCliques.
            return DomainPlan(
                "wanted",
                f"its PodCliqueSet has no replica {replica} any more; its PodCliques are about to go.",
            )
        shared = self._head(view.gangs.get(wanted.gang), wanted.gang)
        if "ownerReferences" not in shared:
            return DomainPlan(
                "wanted",
                "the ComputeDomain waits for its PodCliqueSet, which is not there or is being deleted.",
            )
        lost = view.lost or ("unknown" if any(member.placed for member in wanted.members) else "")
        actions = [_create("ComputeDomain", compute_domain(wanted.domain, shared, support, lost))]
        if wanted.decision.mode == "literal" and view.claim is None:
            actions.append(self._new_claim(shared))
        why = f"the ComputeDomain {view.name} is made{' again' if lost else ''}."
        return DomainPlan("wanted", why, tuple(actions))

    def _ending(self, meta: Metadata) -> DomainPlan:
        """It is waited for; what keeps it is said once that takes long."""
        view = self.view
        why = (
            f"the ComputeDomain {shown(view.name)} is being deleted, and is made again at its end."
        )
        late = (moment(meta.deletion_timestamp) or self.now) + ENDING_PATIENCE
        if self.now < late:
            return DomainPlan("ending", why, again=late)
        held = ", ".join(map(shown, meta.finalizers or ())) or "none that is known"
        why = (
            f"the ComputeDomain {shown(view.name)} has been terminating for more than {ENDING_PATIENCE:.0f} s, and is made again at its end; "
            f"its finalizers are {held}: is the DRA driver's controller running, and have the pods of the old domain ended?"
        )
        return DomainPlan("ending", why, events=_events(view, reasons.ENDING, why, meta.uid))

    def _there(self, meta: Metadata) -> DomainPlan:
        """It exists and is ours: whose is it, and has it its claim?"""
        view, now = self.view, self.now
        gang = self._gang(meta)
        mine = gang if gang is not None and adopted(meta, gang) else None
        actions = [] if gang is None or mine else [_adopt(view, "ComputeDomain", meta, gang)]
        events = list(_made(view, meta, now))
        if mine and (_young(mine, now) or _young(meta, now)):
            message = f"The ComputeDomain {view.name} belongs to the PodGang {mine.name}."
            events += _events(view, reasons.ADOPTED, message, f"{meta.uid} {mine.uid}")
        events += _restored(view, self.wanted, now)
        literal = self.wanted.decision.mode == "literal"
        plan = self._literal_claim(gang) if literal else self._template(meta)
        actions += plan.actions
        events += plan.events
        plan = plan._replace(actions=tuple(actions), events=tuple(events))
        if plan.state == "blocked":
            return plan
        owner = "the PodCliqueSet" if owned_by_set(meta) else "a PodGang that is gone"
        owner = f"the PodGang {mine.name}" if mine else owner
        why = plan.why or f"the ComputeDomain {view.name} belongs to {owner}."
        return plan._replace(state="adopted" if mine else "owned-by-set", why=why)

    def _gang(self, meta: Metadata) -> Metadata | None:
        """The PodGang that is to own it: the recorded one while members name it, and it lives."""
        recorded, first = meta.label(names.PODGANG), self.wanted.gang
        named = {member.decision.gang for member in self.wanted.members}
        order = sorted(
            named, key=lambda name: (names.label_value(name) != recorded, name != first, name)
        )
        return next((gang for name in order if alive(gang := self.view.gangs.get(name))), None)

    def _literal_claim(self, gang: Metadata | None) -> DomainPlan:
        view, wanted = self.view, self.wanted
        if view.claim is None:
            shared = self._head(gang, gang.name if gang is not None else wanted.gang)
            return DomainPlan(
                "wanted", "", (self._new_claim(shared),) if "ownerReferences" in shared else ()
            )
        meta = view.claim.metadata
        if whose := other_identity(meta.labels, wanted.domain, self.config.instance):
            return _blocked(view, "ResourceClaim", meta, whose, self.now)
        if gang is None or meta.going or adopted(meta, gang):
            return DomainPlan("wanted", "")
        return DomainPlan("wanted", "", (_adopt(view, "ResourceClaim", meta, gang),))

    def _template(self, meta: Metadata) -> DomainPlan:
        """The driver makes the claim template, and never replaces one of another domain."""
        view, now, template = self.view, self.now, self.view.claim
        late = (moment(meta.creation_timestamp) or now) + TEMPLATE_PATIENCE
        if template is None:
            if now < late:
                return DomainPlan("wanted", "", again=late)
            why = f"the ComputeDomain {view.name} has no ResourceClaimTemplate after {TEMPLATE_PATIENCE:.0f} s: is the DRA driver's controller running?"
            events = _events(view, reasons.TEMPLATE_MISSING, why, meta.uid)
            return DomainPlan("wanted", why, events=events)
        of = template.metadata.label(names.TEMPLATE_OF)
        if of == meta.uid:
            return DomainPlan("wanted", "")
        if of is None:
            whose = "does not carry the uid of the ComputeDomain"
        elif now < late or template.metadata.going:
            # Of the domain before this one: the driver removes it.
            return DomainPlan("wanted", "", again=late if now < late else None)
        else:
            whose = "carries the uid of another ComputeDomain"
        return _blocked(view, "ResourceClaimTemplate", template.metadata, whose, now)

    def _head(self, gang: Metadata | None, name: str) -> Body:
        """The head of objects that ``gang`` owns where it lives, and the set before."""
        set_, owner = self.view.set_, None
        if gang is not None and alive(gang):
            owner = gang_owner(gang)
        elif set_ is not None and alive(set_):
            owner = set_owner(set_)
        labels = labels_of(self.wanted.domain, name, self.config.instance)
        return head(self.view.namespace, labels, owner)

    def _new_claim(self, shared: Body) -> ClusterWrite:
        wanted = self.wanted
        claim = resource_claim(wanted.domain, shared, self.support, wanted.decision.device_class)
        return _create("ResourceClaim", claim)


def _unwanted(view: DomainView, config: Config, now: float) -> DomainPlan:
    """What a living PodGang owns stays with it; what only the set owns is let go."""
    # A claim template is the driver's, whatever its labels say.
    claim = view.claim if config.mode == "literal" else None
    there: dict[Kind, ComputeDomain | None] = {"ComputeDomain": view.domain, "ResourceClaim": claim}
    parts = [
        (kind, part.metadata)
        for kind, part in there.items()
        if part is not None
        and not part.metadata.going
        and not other_release(part.metadata.labels, config.instance)
    ]
    if not parts:
        return DomainPlan("gone", "no PodClique needs it.")
    recorded = parts[0][1].label(names.PODGANG)
    gangs = (
        gang for name, gang in sorted(view.gangs.items()) if names.label_value(name) == recorded
    )
    if (gang := next(filter(alive, gangs), None)) is not None:
        actions = [
            _adopt(view, kind, meta, gang) for kind, meta in parts if not adopted(meta, gang)
        ]
        why = f"it belongs to the PodGang {gang.name}; no PodClique needs it now."
        return DomainPlan("owned-by-set" if actions else "adopted", why, tuple(actions))
    left = [
        (kind, meta)
        for kind, meta in parts
        if owned_by_set(meta) and (not meta.owner_references or alive(view.set_))
    ]
    if not left:
        return DomainPlan("gone", "its owner is gone, and the garbage collector removes it.")
    since = now if view.unclaimed_since is None else view.unclaimed_since
    if now < (late := since + RELEASE_PATIENCE):
        why = "no PodClique needs it."
        return DomainPlan("unclaimed", why, again=late, unclaimed_since=since)
    actions = [
        ClusterWrite(kind, view.namespace, meta.name, abandoned(meta), "release")
        for kind, meta in left
    ]
    kind, meta = left[0]
    message = f"The {kind} {meta.name} is removed: no PodClique needs it, and no PodGang owns it."
    events = _events(view, reasons.RELEASED, message, meta.uid)
    why = "no PodClique needs it, and it is handed to the garbage collector."
    return DomainPlan("unclaimed", why, tuple(actions), events, unclaimed_since=since)


def _adopt(view: DomainView, kind: Kind, meta: Metadata, gang: Metadata) -> ClusterWrite:
    return ClusterWrite(kind, view.namespace, meta.name, adoption(meta, gang), "adopt")


def _made(view: DomainView, meta: Metadata, now: float) -> tuple[Event, ...]:
    """By the object itself: a controller that dies after the creation has not swallowed it."""
    if not _young(meta, now):
        return ()
    before = meta.annotation(names.RECREATED)
    if before is None:
        return _events(view, reasons.CREATED, f"The ComputeDomain {view.name} was made.", meta.uid)
    message = f"The ComputeDomain {view.name} was lost and is made again: pods that joined the old domain must be restarted{_of(view.wanted.members if view.wanted else ())}."
    return _events(view, reasons.RECREATED, message, meta.uid)


def _restored(view: DomainView, wanted: Wanted, now: float) -> tuple[Event, ...]:
    back = [member for member in wanted.members if now - member.decision.restored < TOLD_FOR]
    if not back:
        return ()
    message = (
        f"The claim of the ComputeDomain {view.name} had been written away and is back: pods that were made without it must be restarted{_of(back)}; "
        f"they are those without a claim {names.CLAIM}."
    )
    return _events(
        view._replace(wanted=wanted._replace(members=tuple(back))), reasons.RESTORED, message, ""
    )


def _of(members: Sequence[DomainMember]) -> str:
    """Names of the PodCliques whose pods they are."""
    if not members:
        return ""
    several = "" if len(members) == 1 else "s"
    return f", those of the PodClique{several} {some_of(member.name for member in members)}"


def _blocked(view: DomainView, kind: str, meta: Metadata, whose: str, now: float) -> DomainPlan:
    then = "the domain is made"
    if kind == "ResourceClaimTemplate":
        then = "the driver makes its own; pods that run with claims of this one must be restarted"
    why = f"the {kind} {shown(meta.name or view.name)} {whose}{owned_by(meta)}; delete or rename it, and {then}."
    events = _events(view, reasons.BLOCKED, why, f"{kind} {meta.uid} {whose}")
    return DomainPlan("blocked", why, events=events, again=now + BLOCKED_AGAIN)


def refused(view: DomainView, action: ClusterWrite, cause: str) -> tuple[Event, ...]:
    """The Events that say why the API server takes a write of the plan not, and will not later."""
    done = {"make": "made", "adopt": "given to its PodGang", "release": "removed"}[action.why]
    message = (
        f"the {action.kind} {action.name} cannot be {done}: {cause}; "
        "make room for it in the quota, or change what refuses it: it is tried again each minute."
    )
    return _events(view, reasons.REFUSED, message, f"{action.kind} {action.why}")


def _create(kind: Kind, body: dict[str, Any]) -> ClusterWrite:
    meta = body["metadata"]
    return ClusterWrite(kind, meta["namespace"], meta["name"], body, "make")


def _events(view: DomainView, reason: str, message: str, fact: str) -> tuple[Event, ...]:
    subjects = [regarding("PodCliqueSet", view.namespace, view.set_)] if view.set_ else []
    members = view.wanted.members if view.wanted else ()
    subjects += [regarding("PodClique", view.namespace, member) for member in members]
    return reasons.about(subjects, reason, message[0].upper() + message[1:], f"{view.name} {fact}")


def _young(meta: Metadata, now: float) -> bool:
    created = moment(meta.creation_timestamp)
    return not created or now - created < TOLD_FOR


def plans(world: World, config: Config, support: Support, now: float) -> dict[Key, DomainPlan]:
    """A plan for each domain that is wanted, or of which an object carries our label."""
    wants = world.wanted()
    managed = {
        (namespace, name if domains else names.domain_of_claim(name))
        for domains, parts in ((True, world.domains), (False, world.claims))
        for (namespace, name), part in parts.items()
        if part.metadata.label(names.MANAGED) == "true"
    }
    return {
        key: reconcile(view_of(world, key, wants.get(key), config.mode), config, support, now)
        for key in sorted({*wants, *managed})
    }


def announced(
    gang: Metadata,
    wants: Mapping[Key, Wanted],
    objects: Objects,
    fabric: Callable[[Wanted, ComputeDomain | None], str] | None = None,
) -> dict[str, Any] | None:
    """The merge patch that says on a PodGang whether it owns its domains among ``wants``, and
    whether its pods share one fabric, as ``fabric`` says of each. None where nothing changes.
    """
    parts: list[ComputeDomain | None] = []
    answers: dict[str, str] = {}
    for key, want in wants.items():
        domain = objects.part("domain", key)
        if (key[0], want.owner(domain)) != (gang.namespace, gang.name):
            continue
        parts.append(domain)
        if want.decision.mode == "literal":
            parts.append(objects.part("claim", (key[0], want.domain.claim)))
        if fabric is not None:
            answers[key[1]] = fabric(want, domain)
    if not parts or not alive(gang):
        return None
    whole = all(part is not None and adopted(part.metadata, gang) for part in parts)
    return announcement(gang, whole=whole, fabric=of_gang(answers) if whole else "")
