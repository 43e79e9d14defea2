"""What is seen of the cluster, kept by key: each change → the domains that must be looked at, and
for each of them all that a reconcile reads. Pure.

A PodClique is kept as a member, or not at all: its pod's template is read once, as it passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeVar

from preflight_mnnvl.api.names import MANAGED, PCS_NAME, PODGANG, label_value
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
from preflight_mnnvl.core.audit import CliqueAudit
from preflight_mnnvl.core.fabric import PodClaim, one_fabric
from preflight_mnnvl.core.reconcile import announcements
from preflight_mnnvl.core.snapshot import (
    DomainMember,
    DomainView,
    Ignored,
    Wanted,
    World,
    member_of,
    view_of,
    wanted,
)

__all__ = ["MnnvlCache", "clique_key", "gang_key", "is_clique", "is_gang"]

T = TypeVar("T")
Seeable = TypeVar("Seeable", PodCliqueSet, PodGang, ComputeDomain)
WRITTEN_FOR: Final = 10.0
"""Seconds for which an answer to a write counts as seen; by then the watch has brought it, or
something newer.
"""
_GANG: Final = "gang/"
_CLIQUE: Final = "podclique/"


def gang_key(namespace: str, name: str) -> Key:
    """The key under which a PodGang waits among domains: no object's name has a slash."""
    return namespace, f"{_GANG}{name}"


def is_gang(key: Key) -> str:
    """The PodGang's name, of such a key; empty for a domain's."""
    return key[1].removeprefix(_GANG) if key[1].startswith(_GANG) else ""


def clique_key(namespace: str, uid: str) -> Key:
    """The key under which a PodClique without its claim waits."""
    return namespace, f"{_CLIQUE}{uid}"


def is_clique(key: Key) -> str:
    """The PodClique's uid, of such a key; empty for any other."""
    return key[1].removeprefix(_CLIQUE) if key[1].startswith(_CLIQUE) else ""


class PodLookup(Protocol):
    """What is known of pods' claims, and of nodes."""

    def claims_of(self, namespace: str, podclique: str) -> Mapping[str, PodClaim]:
        """By pod, the claims of a PodClique's pods."""

    def nvlink_cliques(self, nodes: Iterable[str]) -> Mapping[str, str]:
        """By node, its NVLink clique, as far as it is known."""


class MnnvlCache:
    """``touch`` is called with each key that changed: a domain's, or a PodGang's (see
    :func:`gang_key`).
    """

    def __init__(
        self, config: Config, touch: Callable[[Key], None], clock: Callable[[], float]
    ) -> None:
        self._config, self._touch, self._clock = config, touch, clock
        self.sets: dict[Key, PodCliqueSet] = {}
        self.gangs: dict[Key, PodGang] = {}
        kinds: tuple[Part, ...] = ("domain", "template", "claim")
        self._parts: dict[Part, dict[Key, ComputeDomain]] = {kind: {} for kind in kinds}
        self._written: dict[tuple[Part, Key], tuple[ComputeDomain, float]] = {}
        # A domain that went, and the PodCliques whose pods may have joined it: what is kept ends
        # with them, also on a replica that reconciles nothing.
        self.lost: dict[Key, tuple[str, set[str]]] = {}
        self.unclaimed_since: dict[Key, float] = {}
        self.pods: PodLookup | None = None
        self.audit = CliqueAudit(config, lambda *of: touch(clique_key(*of)), clock)
        self._members: dict[str, DomainMember] = {}
        self._uids: dict[Key, str] = {}
        self._ignored: dict[str, Ignored] = {}
        self._of: dict[Key, dict[str, DomainMember]] = {}
        self._links: dict[tuple[str, str, str], Counter[Key]] = {}
        self._gangs: dict[Key, set[str]] = {}  # by the value of a label that names them

    # --- what changes

    def clique(self, uid: str, clique: PodClique | None) -> Ignored | None:
        """A PodClique as it is now; None where it has gone. Returned is one that begins to be
        ignored.
        """
        member = member_of(clique) if clique is not None else None
        ignored = member if isinstance(member, Ignored) else None
        now = member if isinstance(member, DomainMember) else None
        before = self._members.get(uid)
        self.audit.clique(uid, clique, self.sets)
        if now != before:
            self._left(uid, before, now)
            for one, step in ((before, -1), (now, 1)):
                if one is not None:
                    self._place(uid, one, step)
        if ignored is None:
            self._ignored.pop(uid, None)
            return None
        said = self._ignored.get(uid) != ignored
        self._ignored[uid] = ignored
        return ignored if said else None

    def _left(self, uid: str, before: DomainMember | None, now: DomainMember | None) -> None:
        """Forget a PodClique that no longer needs the domain that was lost."""
        key = (before.namespace, before.decision.cd) if before is not None else ("", "")
        if key in self.lost and (now is None or before is None or now.domain != before.domain):
            self.lost[key][1].discard(uid)
            if not self.lost[key][1]:
                del self.lost[key]

    def _place(self, uid: str, member: DomainMember, step: int) -> None:
        key = (member.namespace, member.decision.cd)
        if step > 0:
            self._members[uid] = member
            self._uids[member.namespace, member.name] = uid
            self._of.setdefault(key, {})[uid] = member
        else:
            del self._members[uid]
            if self._uids.get((member.namespace, member.name)) == uid:
                del self._uids[member.namespace, member.name]
            del self._of[key][uid]
            if not self._of[key]:
                del self._of[key]
        self._link("gang", key, label_value(member.decision.gang), step)
        self._link("set", key, label_value(member.domain.pcs), step)
        self._touch(key)

    def set_(self, found: PodCliqueSet, *, gone: bool = False) -> None:
        """Take in a PodCliqueSet, or (``gone``) that the one of this uid does not
        exist any more.
        """
        meta = found.metadata
        key = (meta.namespace, meta.name)
        if not _kept(self.sets, key, found, gone):
            return
        self.audit.set_(key, self.sets)
        for one in self._linked("set", meta):
            if gone:
                self.lost.pop(one, None)
            self._touch(one)

    def gang(self, found: PodGang, *, gone: bool = False) -> None:
        """The same of a PodGang; it leads to its domains, and to itself."""
        meta = found.metadata
        key = (meta.namespace, meta.name)
        if not _kept(self.gangs, key, found, gone):
            return
        named = (meta.namespace, label_value(meta.name))
        if gone:
            self._gangs.get(named, set()).discard(meta.name)
            if not self._gangs.get(named):
                self._gangs.pop(named, None)
        else:
            self._gangs.setdefault(named, set()).add(meta.name)
        for one in self._linked("gang", meta):
            self._touch(one)
        self._touch(gang_key(*key))

    def part(self, part: Part, found: ComputeDomain, *, gone: bool = False) -> None:
        """A ComputeDomain, a claim template or a claim."""
        meta = found.metadata
        place = (meta.namespace, meta.name)
        store = self._parts[part]
        before = store.get(place)
        if not _kept(store, place, found, gone):
            return
        key = self._key_of(part, place)
        for one, step in ((before, -1), (None if gone else found, 1)):
            if one is not None:
                self._label(key, one.metadata, step)
        if part == "domain":
            self._lose(key, before, None if gone else found)
        self._settle(part, key, found, gone=gone)
        self._touch(key)

    def _lose(self, key: Key, before: ComputeDomain | None, now: ComputeDomain | None) -> None:
        """Who needs a domain when it begins to go may have pods in it; who comes later has none."""
        if now is not None and not now.metadata.going:
            self.lost.pop(key, None)
        elif before is not None and not before.metadata.going:
            wants = wanted(self._of.get(key, {}).values(), {key: before}).get(key)
            of = self._of.get(key, {}).items()
            uids = {uid for uid, one in of if wants is not None and one.domain == wants.domain}
            if uids:
                self.lost[key] = before.metadata.uid, uids

    def only(self, part: Part, there: Iterable[Key]) -> None:
        """All that exist of a part: what else was known has gone while nobody looked."""
        known, there = self._parts[part], set(there)
        for place in [one for one in known if one not in there]:
            self.part(part, known[place], gone=True)

    def wrote(self, part: Part, found: ComputeDomain) -> Key:
        """The answer to a write of ours, which counts until the watch has brought it. Returns the
        domain's key.
        """
        key = self._key_of(part, (found.metadata.namespace, found.metadata.name))
        self._written[part, key] = found, self._clock() + WRITTEN_FOR
        return key

    def _settle(self, part: Part, key: Key, found: ComputeDomain, *, gone: bool) -> None:
        written = self._written.get((part, key))
        if written is None:
            return
        meta = written[0].metadata
        same = meta.uid == found.metadata.uid
        if (gone and same) or (not gone and _version(found.metadata) >= _version(meta)):
            del self._written[part, key]

    def _key_of(self, part: Part, place: Key) -> Key:
        claims = place[0], f"{place[1].removesuffix('-mnnvl-claim')}-cd"
        return place if part == "domain" else claims

    def pods_changed(self, namespace: str, podclique: str) -> None:
        """A claim of a pod, or where it is allocated, has changed; its PodGang may say so."""
        member = self._members.get(self._uids.get((namespace, podclique), ""))
        key = namespace, member.decision.cd if member is not None else ""
        if (want := self.wants(key)) is not None:
            self._touch(gang_key(namespace, want.owner(self._now("domain", key, key))))

    # --- links: which domains a PodGang or a set concerns, by members and by labels

    def _label(self, key: Key, meta: Metadata, step: int) -> None:
        if meta.label(MANAGED) == "true":
            self._link("gang", key, meta.label(PODGANG) or "", step)
            self._link("set", key, meta.label(PCS_NAME[0]) or "", step)

    def _link(self, kind: str, key: Key, value: str, step: int) -> None:
        at = (kind, key[0], value)
        counted = self._links.setdefault(at, Counter())
        counted[key] += step
        if not counted[key]:
            del counted[key]
        if not counted:
            del self._links[at]

    def _linked(self, kind: str, meta: Metadata) -> list[Key]:
        return list(self._links.get((kind, meta.namespace, label_value(meta.name)), ()))

    # --- what a reconcile reads

    def every(self) -> Iterator[Key]:
        """Every domain that is wanted, or of which an object carries our label; every PodGang that
        is named; and every PodClique without its claim.
        """
        found = {key for counted in self._links.values() for key in counted}
        yield from sorted({*found, *self._of})
        yield from sorted(
            gang_key(*key) for key in self.gangs if self._linked("gang", self.gangs[key].metadata)
        )
        yield from sorted(
            clique_key(one.meta.namespace, uid) for uid, one in self.audit.found.items()
        )

    def wants(self, key: Key) -> Wanted | None:
        """What living PodCliques want under this name."""
        there = self._now("domain", key, key)
        return wanted(self._of.get(key, {}).values(), {key: there} if there else {}).get(key)

    def seen(self, key: Key) -> DomainView:
        """All that the domain's reconcile reads."""
        wants = self.wants(key)
        return view_of(self._world(key, wants), key, wants)

    def announced(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The merge patch that says on the PodGang that all its domains are its own; None where it
        says so, or they are not.
        """
        gang = self.gangs.get((namespace, name))
        if gang is None:
            return None
        linked = self._linked("gang", gang.metadata)
        wants = {key: want for key in linked if (want := self.wants(key)) is not None}
        world = World(gangs={(namespace, name): gang})
        for key, one in wants.items():
            part = self._world(key, one)
            world.domains.update(part.domains)
            world.claims.update(part.claims)
        answers = self._fabric if self.pods is not None else None
        return announcements(world, wants, answers).get((namespace, name))

    def _fabric(self, want: Wanted, domain: ComputeDomain | None) -> str:
        """Whether the pods of a domain share one fabric."""
        assert self.pods is not None
        claims: dict[str, PodClaim] = {}
        for one in want.members:
            claims.update(self.pods.claims_of(one.namespace, one.name))
        cliques = self.pods.nvlink_cliques({one.node for one in claims.values()})
        return one_fabric(domain, sum(one.pods for one in want.members), claims, cliques)

    def _world(self, key: Key, wants: Wanted | None) -> World:
        namespace, name = key
        claim_name = wants.domain.claim if wants else f"{name.removesuffix('-cd')}-mnnvl-claim"
        claim_place = (namespace, claim_name)
        mode = wants.decision.mode if wants is not None else self._config.mode
        domain = self._now("domain", key, key)
        claim = self._now("claim" if mode == "literal" else "template", key, claim_place)
        labels = [one.metadata for one in (domain, claim) if one is not None]
        values = {value for meta in labels if (value := meta.label(PODGANG))}
        gangs = {name for value in values for name in self._gangs.get((namespace, value), ())}
        gangs |= {one.decision.gang for one in wants.members} if wants else set()
        pcs = {value for meta in labels if (value := meta.label(PCS_NAME[0]))}
        pcs |= {one.domain.pcs for one in (*wants.members, *wants.losers)} if wants else set()
        return World(
            sets=_some(self.sets, namespace, pcs),
            gangs=_some(self.gangs, namespace, gangs),
            domains={key: domain} if domain is not None else {},
            claims={claim_place: claim} if claim is not None else {},
            lost={key: self.lost[key][0]} if key in self.lost else {},
            unclaimed={key: self.unclaimed_since[key]} if key in self.unclaimed_since else {},
        )

    def _now(self, part: Part, key: Key, place: Key) -> ComputeDomain | None:
        written = self._written.get((part, key))
        if written is not None:
            if self._clock() < written[1]:
                return written[0]
            del self._written[part, key]
        return self._parts[part].get(place)


def _some(store: Mapping[Key, T], namespace: str, names: Iterable[str]) -> dict[Key, T]:
    keys = [(namespace, name) for name in names]
    return {key: store[key] for key in keys if key in store}


def _kept(store: dict[Key, Seeable], key: Key, found: Seeable, gone: bool) -> bool:
    """Whether the store has changed; a new object's predecessor of the same name may be told to
    have gone after it has come.
    """
    before = store.get(key)
    if not gone:
        store[key] = found
        return True
    if before is None or before.metadata.uid != found.metadata.uid:
        return False
    del store[key]
    return True


def _version(meta: Metadata) -> int:
    text = meta.resource_version
    return int(text) if text.isascii() and text.isdecimal() else 0
