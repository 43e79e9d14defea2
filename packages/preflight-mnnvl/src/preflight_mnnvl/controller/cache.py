"""The cluster as the controller sees it: each change → what to reconcile, and what that reads.

A PodClique is kept as a member, or as one without its claim: its pod's template is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
from preflight_kube.client.client import Client
from preflight_kube.logs import get_logger
from preflight_kube.runtime.cache import Cache
from preflight_kube.runtime.indexes import namespaced_name
from preflight_kube.runtime.reflector import Change

from preflight_mnnvl.api import names, types
from preflight_mnnvl.api.identity import set_of
from preflight_mnnvl.api.types import ComputeDomain, Key, Metadata, Part, PodClique, PodCliqueSet
from preflight_mnnvl.config import Config
from preflight_mnnvl.controller.informers import (
    ABSENT_RETRY,
    PLURALS,
    MnnvlInformers,
    ServedKind,
    asked,
)
from preflight_mnnvl.core import fabric, snapshot
from preflight_mnnvl.core.reconcile import announced
from preflight_mnnvl.core.snapshot import DomainMember, DomainView, Ignored, Wanted
from preflight_mnnvl.core.support import ClusterFacts

T = TypeVar("T")

log = get_logger(__name__)


def gang_key(namespace: str, name: str) -> Key:
    """The key under which a PodGang waits among domains: no object's name has a slash."""
    return namespace, f"gang/{name}"


def clique_key(namespace: str, uid: str) -> Key:
    """The key under which a PodClique without its claim waits."""
    return namespace, f"podclique/{uid}"


def waiting(key: Key) -> tuple[str, str]:
    """The kind of what waits under a key, empty for a domain, and its name, or uid."""
    kind, _, name = key[1].rpartition("/")
    return kind, name


class CliqueState(msgspec.Struct, gc=False):
    """The part of a PodClique that is kept. ``lacking``: its pods have GPUs, and not the claim."""

    metadata: Metadata
    of: DomainMember | Ignored | None
    lacking: bool

    @property
    def member(self) -> DomainMember | None:
        """The member of a domain that it is."""
        return self.of if isinstance(self.of, DomainMember) else None


class MnnvlCache(MnnvlInformers):
    """``touch`` is called with each key that changed: of a domain, a PodGang or a PodClique."""

    def __init__(self, client: Client, config: Config, touch: Callable[[Key], None]) -> None:
        super().__init__(client, config)
        self._touch = touch
        # A domain that went, and the PodCliques whose pods may have joined it: what is kept ends
        # with them, also on a replica that reconciles nothing.
        self.lost: dict[Key, tuple[str, set[str]]] = {}
        self.unclaimed_since: dict[Key, float] = {}
        self.cliques: Cache[CliqueState] = Cache(
            client,
            f"/apis/{names.GROVE_GROUP}/v1alpha1/podcliques",
            PodClique,
            decode=self._state,
            on_change=self._clique,
            indexes={
                "name": namespaced_name,
                "domain": lambda it: ["/".join(_domain_of(it.member))] if it.member else (),
                "gang": lambda it: (
                    _labeled(it.member, it.member.decision.gang) if it.member else ()
                ),
                "set": lambda it: _labeled(it.member, it.member.domain.pcs) if it.member else (),
                "lacking": _lacking,
            },
            absent_retry=ABSENT_RETRY,
        )
        self.reflectors.append(self.cliques)
        self.sets = self._grove("podcliquesets", PodCliqueSet, self._set, kept=asked)
        self.gangs = self._grove(
            "podgangs",
            types.PodGang,
            self._gang,
            kept=_announced,
            label=lambda it: (_label(it.metadata),),
        )
        self._driver = config.mode == "driver"  # who has rights to other kinds than in literal mode
        self._domains = self._part("domain")
        self.parts: dict[Part, ServedKind[ComputeDomain]] = {
            "domain": self._domains,
            "template": self._part("template"),
        }
        if not self._driver:
            self.parts["claim"] = self._part("claim")
            return
        self._pod_claims: ServedKind[fabric.PodClaim] = self._resource(
            "resourceclaims",
            fabric.ResourceClaim,
            on_change=self._claim,
            decode=fabric.pod_claim,
            indexes={"podclique": _podclique, "node": lambda it: (it.node,)},
        )
        self._slices: ServedKind[fabric.OfferedSlice] = self._resource(
            "resourceslices",
            fabric.OfferedSlice,
            on_change=lambda change: self._node(change.object.spec.node_name),
            params={"fieldSelector": f"spec.driver={fabric.DRIVER}"},
            indexes={"node": lambda it: (it.spec.node_name,)},
        )

    @property
    def facts(self) -> ClusterFacts:
        """The facts of now."""
        facts = super().facts
        return facts if self._driver else facts._replace(claim=self.parts["claim"].version)

    def _part(self, part: Part) -> ServedKind[ComputeDomain]:
        def changed(change: Change[ComputeDomain]) -> None:
            meta = change.object.metadata
            key = _key_of(part, meta.namespace, meta.name)
            if part == "domain":
                self._lose(key, change.before, None if change.kind == "deleted" else meta)
            self._touch(key)

        return self._resource(
            PLURALS[part],
            ComputeDomain,
            on_change=changed,
            kept=_brief,
            indexes={
                "name": namespaced_name,
                "gang": lambda it: _named(it, names.PODGANG),
                "set": lambda it: _named(it, names.PCS_NAME[0]),
            },
        )

    # --- what changes

    def _state(self, clique: PodClique) -> CliqueState:
        meta, lacking = clique.metadata, snapshot.lacks_claim(clique, self._config)
        kept = Metadata(name=meta.name, namespace=meta.namespace, uid=meta.uid)
        if lacking:
            kept = meta.only(snapshot.AUDITED_LABELS, snapshot.AUDITED_ANNOTATIONS)
            kept.resource_version = ""  # what stays as it was is no change
        return CliqueState(kept, snapshot.member_of(clique), lacking)

    def _clique(self, change: Change[CliqueState]) -> None:
        before, now = change.before, None if change.kind == "deleted" else change.object
        was, member = (state.member if state is not None else None for state in (before, now))
        if was != member:
            self._left(change.key, was, member)
            for of in filter(None, (was, member)):
                self._touch(_domain_of(of))
        if any(state.lacking for state in (before, now) if state is not None):
            self._touch(clique_key(change.object.metadata.namespace, change.key))
        ignored = now.of if now is not None else None
        if isinstance(ignored, Ignored) and (before is None or before.of != ignored):
            about = f"{ignored.namespace}/{ignored.name}"
            log.warning("a decision is not followed", podclique=about, why=ignored.why)

    def _left(self, uid: str, before: DomainMember | None, now: DomainMember | None) -> None:
        """Forget a PodClique that no longer needs the domain that was lost."""
        key = _domain_of(before) if before is not None else ("", "")
        if key in self.lost and (now is None or before is None or now.domain != before.domain):
            self.lost[key][1].discard(uid)
            if not self.lost[key][1]:
                del self.lost[key]

    def _set(self, change: Change[PodCliqueSet]) -> None:
        meta = change.object.metadata
        gone = change.kind == "deleted" and self.set_(meta.namespace, meta.name) is None
        for state in self.cliques.by_index("lacking", f"{meta.namespace}/{meta.name}"):
            self._touch(clique_key(meta.namespace, state.metadata.uid))
        for key in self._linked("set", meta):
            if gone:
                self.lost.pop(key, None)
            self._touch(key)

    def _gang(self, change: Change[types.PodGang]) -> None:
        meta = change.object.metadata
        for key in self._linked("gang", meta):
            self._touch(key)
        self._touch(gang_key(meta.namespace, meta.name))

    def _lose(self, key: Key, before: ComputeDomain | None, now: Metadata | None) -> None:
        """Remember who needs a domain as it begins to go: who comes later has no pods in it."""
        if now is not None and not now.going:
            self.lost.pop(key, None)
        elif before is not None and not before.metadata.going:
            there = self.part("domain", key)
            if there is not None and there.metadata.uid != before.metadata.uid:
                return  # another one of the same name is there instead
            states = self.cliques.by_index("domain", "/".join(key))
            if uids := {state.metadata.uid for state in states}:
                self.lost[key] = before.metadata.uid, uids

    def wrote(self, part: Part, stored: ComputeDomain) -> None:
        """Take in the answer to a write of ours, which counts until the watch has brought it."""
        if (cache := self.parts[part].cache) is not None:
            cache.wrote(stored)

    # --- claims of pods, and the NVLink cliques of nodes

    def _claim(self, change: Change[fabric.PodClaim]) -> None:
        for claim in filter(None, (change.before, change.object)):
            for at in _podclique(claim):
                for state in self.cliques.by_index("name", at):
                    if state.member and (want := self.wants(key := _domain_of(state.member))):
                        owner = want.owner(self.part("domain", key))
                        self._touch(gang_key(key[0], owner))

    def _node(self, name: str) -> None:
        for claim in self._pod_claims.by_index("node", name) if self._driver else ():
            self._claim(Change("modified", "", claim, None))

    def _fabric(self, want: Wanted, domain: ComputeDomain | None) -> str:
        """Tell whether the pods of a domain share one fabric."""
        claims = {
            claim.pod: claim
            for member in want.members
            for claim in self._pod_claims.by_index("podclique", f"{member.namespace}/{member.name}")
        }
        cliques: dict[str, str] = {}
        for node in {claim.node for claim in claims.values()}:
            for labeled in self._nodes.by_index("name", node):
                if clique := labeled.metadata.label(names.FABRIC_LABEL):  # none that is empty
                    cliques[node] = clique
            cliques |= fabric.cliques_of(self._slices.by_index("node", node))
        return fabric.one_fabric(
            domain, sum(member.pods for member in want.members), claims, cliques
        )

    # --- what a reconcile reads

    @property
    def cliques_are_level(self) -> bool:
        """Tell whether the PodCliques are followed now: what is not seen may be there."""
        return self.cliques.problem is None

    def _linked(self, kind: str, meta: Metadata) -> list[Key]:
        """The domains that a PodGang or a set concerns, by members and by labels."""
        value = _label(meta)
        states = self.cliques.by_index(kind, value)
        keys = {_domain_of(state.member): None for state in states if state.member}
        for part, of in self.parts.items():
            for item in of.by_index(kind, value):
                keys[_key_of(part, item.metadata.namespace, item.metadata.name)] = None
        return list(keys)

    def every(self) -> Iterator[Key]:
        """Every domain that is wanted or ours, PodGang, and PodClique without its claim."""
        keys = {_domain_of(it.member) for it in self.cliques.store.values() if it.member}
        for part, of in self.parts.items():
            for item in of.cache.store.values() if of.cache is not None else ():
                if _named(item, names.MANAGED):
                    keys.add(_key_of(part, item.metadata.namespace, item.metadata.name))
        yield from sorted(keys)
        gangs = (gang.metadata for gang in self.gangs.store.values())
        yield from sorted(gang_key(it.namespace, it.name) for it in gangs)
        lacking = (state.metadata for state in self.unclaimed())
        yield from sorted(clique_key(it.namespace, it.uid) for it in lacking)

    def unclaimed(self) -> list[CliqueState]:
        """PodCliques that ask for the fabric, and whose pods do not get the claim."""
        return [state for state in self.cliques.by_index("lacking", "") if self._asks(state)]

    def unclaimed_one(self, uid: str) -> tuple[Metadata, Metadata | None] | None:
        """Such a PodClique and its set; None where this one is none."""
        state = self.cliques.get(uid)
        if state is None or not state.lacking or not self._asks(state):
            return None
        set_ = self.set_(state.metadata.namespace, set_of(state.metadata))
        return state.metadata, set_.metadata if set_ else None

    def _asks(self, state: CliqueState) -> bool:
        meta = state.metadata
        return snapshot.asks(meta, self.set_(meta.namespace, set_of(meta)), self._config)

    def set_(self, namespace: str, name: str) -> PodCliqueSet | None:
        """The PodCliqueSet of this name."""
        return self.sets.newest("name", f"{namespace}/{name}")

    def gang(self, namespace: str, name: str) -> types.PodGang | None:
        """The PodGang of this name."""
        return self.gangs.newest("name", f"{namespace}/{name}")

    def gangs_called(self, namespace: str, label: str) -> list[types.PodGang]:
        """The PodGangs whose name is this one as a label's value."""
        return self.gangs.by_index("label", f"{namespace}/{label}")

    def part(self, part: Part, key: Key) -> ComputeDomain | None:
        """The ComputeDomain, claim template or claim of this namespace and name."""
        objects = self.parts[part].by_index("name", "/".join(key)) if part in self.parts else ()
        return next(reversed(objects), None)

    def wants(self, key: Key) -> Wanted | None:
        """The domain that living PodCliques want under this name."""
        states = self.cliques.by_index("domain", "/".join(key))
        return snapshot.wanted(state.member for state in states if state.member).get(key)

    def view(self, key: Key) -> DomainView:
        """All that the domain's reconcile reads."""
        view = snapshot.view_of(self, key, self.wants(key), self._config.mode)
        lost, _ = self.lost.get(key, ("", None))
        return view._replace(lost=lost, unclaimed_since=self.unclaimed_since.get(key))

    def announced(self, gang: Metadata) -> dict[str, Any] | None:
        """The merge patch of a PodGang (:func:`~.reconcile.announced`)."""
        linked = self._linked("gang", gang)
        wants = {key: want for key in linked if (want := self.wants(key)) is not None}
        return announced(gang, wants, self, self._fabric if self._driver else None)


def _key_of(part: Part, namespace: str, name: str) -> Key:
    """The domain to which an object belongs by its name."""
    return namespace, name if part == "domain" else names.domain_of_claim(name)


def _domain_of(member: DomainMember) -> Key:
    return member.namespace, member.decision.cd


def _label(meta: Metadata) -> str:
    """The namespace, and the name as it stands in labels."""
    return f"{meta.namespace}/{names.label_value(meta.name)}"


def _labeled(member: DomainMember, name: str) -> tuple[str, ...]:
    return (f"{member.namespace}/{names.label_value(name)}",)


def _lacking(state: CliqueState) -> tuple[str, ...]:
    meta = state.metadata
    return ("", f"{meta.namespace}/{set_of(meta)}") if state.lacking else ()


def _named(part: ComputeDomain, label: str) -> tuple[str, ...]:
    """The namespace, and what a label of an object of ours names."""
    meta = part.metadata
    managed = meta.label(names.MANAGED) == "true"
    return (f"{meta.namespace}/{meta.label(label) or ''}",) if managed else ()


def _brief(domain: ComputeDomain) -> ComputeDomain:
    meta = domain.metadata.only(names.READ_LABELS, (names.RECREATED,))
    return ComputeDomain(metadata=meta, status=domain.status)


def _announced(gang: types.PodGang) -> types.PodGang:
    """The annotations by which a PodGang speaks of its domains."""
    return types.PodGang(metadata=gang.metadata.only(annotations=(names.ADOPTED, names.ONE_FABRIC)))


def _podclique(claim: fabric.PodClaim) -> tuple[str, ...]:
    """``namespace/name`` of the PodClique whose pod's claim it is."""
    pod = claim.pod
    return (f"{claim.metadata.namespace}/{pod.rpartition('-')[0]}",) if pod else ()
