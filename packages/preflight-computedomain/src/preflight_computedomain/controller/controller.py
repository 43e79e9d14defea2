"""The main loop: what changes in the cluster → which ComputeDomains to look at → decide
(:mod:`~.core.reconcile`) → act (:mod:`.apply`).

Both replicas mirror the cluster; the one that leads acts. Nothing that matters is remembered: all
of it stands in the objects, so whoever leads next goes on from there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import anyio
from preflight_kube.client.client import Client, Conflict, Fenced, KubeError
from preflight_kube.logs import get_logger
from preflight_kube.runtime.events import Regarding, event, timestamp
from preflight_kube.runtime.lease import Leadership
from preflight_kube.runtime.reflector import Change, Reflector
from preflight_kube.runtime.workqueue import Queue
from preflight_kube.text import one_line

from preflight_computedomain.api.names import API_VERSION, DRIVER, KIND, LABEL
from preflight_computedomain.api.types import (
    ClaimTemplate,
    ComputeDomain,
    Metadata,
    Slice,
    UsedClaim,
)
from preflight_computedomain.controller.apply import (
    DOMAINS,
    TEMPLATES,
    Blocked,
    DomainActor,
    LastAnswers,
    Place,
)
from preflight_computedomain.core import template
from preflight_computedomain.core.reconcile import (
    NOT_READY,
    READY,
    DomainEvent,
    shares,
    step,
    sweep,
)
from preflight_computedomain.core.sharing import Sharing
from preflight_computedomain.metrics import ControllerMetrics

__all__ = ["COMPONENT", "Controller"]

COMPONENT: Final = "compute-domain-controller"
WORKERS: Final = 24
"""ComputeDomains looked at at the same time; mostly they wait for answers to their writes."""
AGAIN: Final = 1.0
"""Seconds after which is looked again what stood in the way, though nothing has
been heard of it.
"""
CLAIMS: Final = "/apis/resource.k8s.io/v1/resourceclaims"
SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
SWEEP: Final = 600.0
"""Seconds between two looks for templates whose ComputeDomain has gone."""

log = get_logger(__name__)


class Controller:
    """Mirrors while its ``reflectors`` run; acts while :meth:`lead` does."""

    def __init__(
        self, client: Client, metrics: ControllerMetrics, *, sweep_seconds: float = SWEEP
    ) -> None:
        self._client, self._metrics, self._sweep_seconds = client, metrics, sweep_seconds
        self._known = LastAnswers(client.clock)
        self._domains: dict[Place, ComputeDomain] = {}
        self._by_uid: dict[str, Place] = {}
        self._wanted: dict[Place, set[Place]] = defaultdict(
            set
        )  # by a template's place, who asks for it
        self._templates: dict[Place, ClaimTemplate] = {}
        self._labeled: dict[str, set[Place]] = defaultdict(
            set
        )  # templates, by the uid that label or configuration names
        self._said: set[tuple[str, str, str]] = set()
        self._conflicts: set[Place] = set()
        self._sharing = Sharing()
        self.queue = Queue("computedomain", clock=client.clock)
        self.reflectors: tuple[Reflector[Any], ...] = (
            Reflector(
                client, DOMAINS, ComputeDomain, on_change=self._domain_changed, absent_retry=5.0
            ),
            Reflector(
                client, TEMPLATES, ClaimTemplate, on_change=self._template_changed, absent_retry=5.0
            ),
            Reflector(client, CLAIMS, UsedClaim, on_change=self._claim_changed, kept=_brief),
            Reflector(
                client,
                SLICES,
                Slice,
                on_change=self._slice_changed,
                params={"fieldSelector": f"spec.driver={DRIVER}"},
            ),
        )
        metrics.show(client.requests, client.mirrors, self.statuses)
        metrics.shared.set_function(lambda: len(self._sharing.shared()))

    # --- what changes in the cluster

    def statuses(self) -> Mapping[str, int]:
        """How many ComputeDomains show which status."""
        found = Counter({READY: 0, NOT_READY: 0})
        found.update(
            READY if one.status.status == READY else NOT_READY
            for one in list(self._domains.values())
        )
        return found

    def _domain_changed(self, change: Change[ComputeDomain]) -> None:
        found = change.object
        place = (found.metadata.namespace, found.metadata.name)
        if (before := change.before) is not None:
            self._wanted[place[0], before.template].discard(place)
            if not self._wanted[place[0], before.template]:
                del self._wanted[place[0], before.template]
        if change.kind == "deleted":
            self._known.domains.gone(place, found.metadata.uid, self._known.clock())
            if (
                there := self._domains.get(place)
            ) is not None and there.metadata.uid == found.metadata.uid:
                del self._domains[place]
            self._by_uid.pop(found.metadata.uid, None)
            self._said = {one for one in self._said if one[0] != found.metadata.uid}
            self._conflict(place, False)
            return
        self._domains[place] = found
        self._by_uid[found.metadata.uid] = place
        self._wanted[place[0], found.template].add(place)
        self.queue.add(place)

    def _template_changed(self, change: Change[ClaimTemplate]) -> None:
        found = change.object
        place = (found.metadata.namespace, found.metadata.name)
        for one in filter(None, (change.before, found)):
            for uid in self._uids(one):
                self._labeled[uid].discard(place)
                if not self._labeled[uid]:
                    del self._labeled[uid]
                if uid in self._by_uid:
                    self.queue.add(self._by_uid[uid])
        if change.kind == "deleted":
            self._known.templates.gone(place, found.metadata.uid, self._known.clock())
            if (
                there := self._templates.get(place)
            ) is not None and there.metadata.uid == found.metadata.uid:
                del self._templates[place]
        else:
            self._templates[place] = found
            for uid in self._uids(found):
                self._labeled[uid].add(place)
        for who in self._wanted.get(place, ()):
            self.queue.add(who)

    def _claim_changed(self, change: Change[UsedClaim]) -> None:
        self._poke(self._sharing.claim(change.object, gone=change.kind == "deleted"))

    def _slice_changed(self, change: Change[Slice]) -> None:
        self._poke(self._sharing.slice(change.object, gone=change.kind == "deleted"))

    def _poke(self, domains: set[str]) -> None:
        for place in filter(None, map(self._by_uid.get, domains)):
            self.queue.add(place)

    @staticmethod
    def _uids(found: ClaimTemplate) -> set[str]:
        return {uid for uid in (found.metadata.labels.get(LABEL, ""), template.owner(found)) if uid}

    # --- while it leads

    async def lead(self, leadership: Leadership) -> None:
        """Act until cancelled."""
        for one in self.reflectors:
            await one.synced.wait()
        actor = DomainActor(
            self._client.fenced(leadership.valid),
            self._known,
            lambda what: self._metrics.actions.labels(what).inc(),
        )
        self._said.clear()
        for place in self._domains:
            self.queue.add(place)

        async def look(place: Place) -> float | None:
            return await self._look(place, actor, leadership)

        self._metrics.leader.set(1)
        try:
            async with anyio.create_task_group() as group:
                for _ in range(WORKERS):
                    group.start_soon(self.queue.work, look)
                group.start_soon(self._sweep, actor)
        finally:
            self._metrics.leader.set(0)

    async def _look(self, place: Place, actor: DomainActor, leadership: Leadership) -> float | None:
        domain = self._known.domains.of(place, self._domains.get(place), self._known.clock())
        if domain is None:
            return None
        seen = self._seen(domain)
        said = step(domain, seen)
        self._conflict(
            place, any(one.reason == "ResourceClaimTemplateConflict" for one in said.events)
        )
        again: float | None = None
        try:
            await actor.act(place[0], domain, seen, said.actions)
        except Blocked as why:
            log.info("ComputeDomain waits", **_about(domain), why=str(why))
            again = AGAIN
        else:
            if said.actions:
                names = [type(one).__name__ for one in said.actions]
                log.info(
                    "ComputeDomain reconciled",
                    **_about(domain),
                    actions=names,
                    status=said.status,
                    next=said.next,
                )
        others = self._sharing.others(domain.metadata.uid)
        named = {
            clique: sorted(
                "/".join(place)
                for place in filter(None, map(self._by_uid.get, uids))
                if place[0] == domain.metadata.namespace
            )
            for clique, uids in others.items()
        }
        for one in (*said.events, *shares(domain, named)):
            await self._say(domain, one, leadership)
        return again

    def _seen(self, domain: ComputeDomain) -> list[ClaimTemplate]:
        namespace, uid = domain.metadata.namespace, domain.metadata.uid
        places = {
            (namespace, domain.template),
            *(one for one in self._labeled.get(uid, ()) if one[0] == namespace),
        }
        now = self._known.clock()
        found = (self._known.templates.of(one, self._templates.get(one), now) for one in places)
        return [one for one in found if one is not None]

    def _conflict(self, place: Place, there: bool) -> None:
        (self._conflicts.add if there else self._conflicts.discard)(place)
        self._metrics.conflicts.set(len(self._conflicts))

    async def _say(self, domain: ComputeDomain, one: DomainEvent, leadership: Leadership) -> None:
        """Once for each leadership at most; the Event's name follows from what it is about, so the
        cluster has it once.
        """
        key = (domain.metadata.uid, one.reason, one.about)
        if key in self._said:
            return
        about = domain.metadata
        regarding = Regarding(API_VERSION, KIND, about.name, about.uid, about.namespace)
        body = event(
            COMPONENT,
            regarding,
            about=f"{one.reason}\0{one.about}",
            good=False,
            reason=one.reason,
            message=one.message,
            now=timestamp(datetime.now(UTC)),
        )
        log.warning(one.message, **_about(domain), reason=one.reason)
        try:
            await self._client.fenced(leadership.valid).create(
                f"/api/v1/namespaces/{about.namespace}/events", body
            )
        except Conflict:
            pass  # said before
        except Fenced:
            return
        except KubeError as error:
            log.warning("Event not written", **_about(domain), error=str(error))
            return
        self._said.add(key)

    async def _sweep(self, actor: DomainActor) -> None:
        """Remove templates of ours whose ComputeDomain has gone: its finalizer was
        removed by hand.
        """
        while True:
            self._known.forget()
            for one in list(self._templates.values()):
                about = one.metadata
                uid = template.owner(one)
                if not uid or uid in self._by_uid:
                    continue
                try:
                    await actor.act(about.namespace, None, [one], sweep(one))
                except (Blocked, KubeError) as why:
                    if isinstance(why, Fenced):
                        return  # the next leader does it
                    log.warning(
                        "stale template not deleted",
                        namespace=about.namespace,
                        name=one_line(about.name, 200),
                        error=str(why),
                    )
            await anyio.sleep(self._sweep_seconds)


def _brief(claim: UsedClaim) -> UsedClaim:
    """What the mirror holds of a claim: a cluster has many, of other drivers most."""
    of = claim.metadata
    return UsedClaim(
        metadata=Metadata(name=of.name, uid=of.uid, resource_version=of.resource_version)
    )


def _about(domain: ComputeDomain) -> dict[str, str]:
    about = domain.metadata
    return {"namespace": about.namespace, "computedomain": about.name, "uid": about.uid}
