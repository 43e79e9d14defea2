"""The loop: what changes → domains to reconcile → a plan for each → writes → adoption → Events.

All replicas follow the cluster; the one that leads writes. Each reconcile begins from the objects,
so whoever leads next goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

import anyio
import msgspec
from preflight_kube.client.client import Client, KubeError
from preflight_kube.logs import get_logger
from preflight_kube.runtime import writes
from preflight_kube.runtime.cache import OVERLAY_TTL
from preflight_kube.runtime.controller import Controller as Reconciler
from preflight_kube.runtime.event_recorder import EventRecorder
from preflight_kube.runtime.lease import Leadership
from preflight_kube.runtime.retry import cause_of, for_good, terminating
from preflight_kube.runtime.workqueue import Queue

from preflight_mnnvl.api import names
from preflight_mnnvl.api.types import ComputeDomain, Key, Part, PodGang
from preflight_mnnvl.config import Config
from preflight_mnnvl.controller.cache import MnnvlCache, gang_key, waiting
from preflight_mnnvl.controller.informers import PLURALS
from preflight_mnnvl.core import reasons
from preflight_mnnvl.core.reconcile import (
    UNSUPPORTED_AGAIN,
    ClusterWrite,
    DomainPlan,
    reconcile,
    refused,
)
from preflight_mnnvl.core.snapshot import DomainView
from preflight_mnnvl.core.support import Support, judge
from preflight_mnnvl.metrics import Metrics

WORKERS: Final = 48
"""Domains looked at at the same time; mostly they wait for answers to their writes."""
BEHIND_AGAIN: Final = 0.2
"""Seconds after which a domain is reconciled again of which the cache was behind."""
UNCLAIMED_PATIENCE: Final = 10.0
"""Seconds for which a PodClique must be without its claim."""
REFUSED_AGAIN: Final = 600.0
"""Seconds after which a PodGang is annotated again that was not to be."""

_DONE: Final[dict[str, str]] = {"make": "created", "adopt": "adopted", "release": "released"}

log = get_logger(__name__)


class Unwritten(Exception):
    """The cache is behind, or the namespace goes; ``again``: seconds until the next reconcile."""

    def __init__(self, again: float | None) -> None:
        super().__init__()
        self.again = again


class Controller:
    """Writes while :meth:`lead` runs. ``account``: who writes, for people."""

    def __init__(self, client: Client, config: Config, metrics: Metrics, account: str = "") -> None:
        # What nodes say is judged at admission: what was admitted gets its domain, also where nodes
        # come only because pods wait.
        self._admission = config
        self._config = msgspec.structs.replace(config, require_fabric_nodes=False)
        self._client, self._metrics = client, metrics
        self._account = account or "the account of this controller"
        self._events: EventRecorder | None = None  # while it leads
        self._gangs: dict[Key, tuple[str, float]] = {}  # a PodGang's uid, and when it was seen
        self._announced: dict[str, float] = {}  # uid of a PodGang → when it may be annotated again
        self._lacking: dict[str, float] = {}  # uid of a PodClique → when it was seen without claim
        self.cache = MnnvlCache(client, self._config, self._changed)
        self.domains = Queue("domain", clock=client.clock, everything=self.cache.every)
        metrics.supports(lambda: self.cache.support.ok, lambda: self.cache.support.fabric_nodes)
        metrics.controller(lambda: float(len(self.cache.unclaimed())), client)

    # --- what changes in the cluster

    def _changed(self, key: Key) -> None:
        kind, name = waiting(key)
        if kind == "gang":
            gang = self.cache.gang(key[0], name)
            at = (key[0], name)
            if gang is None:
                uid, _ = self._gangs.pop(at, ("", 0.0))
                self._announced.pop(uid, None)
            elif self._gangs.get(at, ("", 0.0))[0] != gang.metadata.uid:
                self._gangs[at] = gang.metadata.uid, self._client.clock()
        self.domains.add(key)

    # --- what the leader does

    async def lead(self, leadership: Leadership) -> None:
        """Reconcile every domain, and again whenever something of it changes, until cancelled."""
        client = self._client.fenced(leadership.valid)
        self._events = events = EventRecorder(
            client, names.MANAGED_BY_US, counted=self._metrics.event
        )
        reconciler = Reconciler(
            "ComputeDomain",
            self.domains,
            lambda key: self._reconcile(client, key),
            workers=WORKERS,
            metrics=self._metrics.runtime,
        )
        self.cache.unclaimed_since.clear()
        self._lacking.clear()
        try:
            with self._metrics.runtime.leading(names.MANAGED_BY_US, self._metrics.leader):
                async with anyio.create_task_group() as group:
                    group.start_soon(reconciler.run)
                    group.start_soon(events.run)
        finally:
            self._metrics.forget_domains()

    async def _reconcile(self, client: Client, key: Key) -> float | None:
        """Reconcile what waits under a key; the seconds until the next time."""
        try:
            kind, name = waiting(key)
            if kind == "gang":
                return await self._announce(client, key[0], name)
            if kind == "podclique":
                return self._audit(name)
            return await self._reconcile_domain(client, key)
        except Unwritten as unwritten:
            return unwritten.again

    async def _reconcile_domain(self, client: Client, key: Key) -> float | None:
        support, now = self.cache.support, time.time()
        view = self.cache.view(key)
        plan = reconcile(view, self._config, support, now)
        self._note(key, view, plan)
        releases = any(action.why == "release" for action in plan.actions)
        if releases and not self.cache.cliques_are_level:
            return OVERLAY_TTL  # who needs it may be there, and not seen
        for action in plan.actions:
            # Else decided when the mode was another; there is no right to claims now.
            if action.kind == "ComputeDomain" or self._config.mode == "literal":
                try:
                    await self._act(client, action, support)
                except KubeError as error:
                    if for_good(error):
                        self._record(refused(view, action, cause_of(error)))
                    raise
                self.domains.add_after(key, OVERLAY_TTL)
        self._adopted(key, view, plan)
        self._record(plan.events)
        return None if plan.again is None else max(0.0, plan.again - now)

    def _audit(self, uid: str) -> float | None:
        """Tell of a PodClique without its claim; the seconds until that is to be done."""
        if (lacking := self.cache.unclaimed_one(uid)) is None:
            self._lacking.pop(uid, None)
            return None
        # Mirrors of different kinds are not read at the same moment.
        now = self._client.clock()
        if (wait := self._lacking.setdefault(uid, now) + UNCLAIMED_PATIENCE - now) > 0:
            return wait
        support = judge(self.cache.facts, self._admission)
        self._record(reasons.unclaimed(*lacking, "" if support.ok else support.why))
        return None if support.ok else UNSUPPORTED_AGAIN

    def _note(self, key: Key, view: DomainView, plan: DomainPlan) -> None:
        if plan.unclaimed_since is None:
            self.cache.unclaimed_since.pop(key, None)
        else:
            self.cache.unclaimed_since[key] = plan.unclaimed_since
        self._metrics.domain(
            key, plan.state, wanted=view.wanted is not None, exists=view.domain is not None
        )

    def _adopted(self, key: Key, view: DomainView, plan: DomainPlan) -> None:
        """Count an adoption, and reconcile PodGangs that may own the domain now, or no longer."""
        adopts = ("ComputeDomain", "adopt") in {(it.kind, it.why) for it in plan.actions}
        announced = any(gang.annotation(names.ADOPTED) for gang in view.gangs.values())
        if not adopts and not announced and plan.state != "adopted":
            return
        for gang in view.gangs.values():
            _, since = self._gangs.get((key[0], gang.name), ("", self._client.clock()))
            if adopts:
                self._metrics.adoption.observe(self._client.clock() - since)
            self.domains.add(gang_key(key[0], gang.name))

    # --- writes: each is sent once, and what became of it is seen at the next reconcile

    async def _act(self, client: Client, action: ClusterWrite, support: Support) -> None:
        """Send one write of a plan; its answer counts as seen. Raises :class:`Unwritten`."""
        part: Part = "domain" if action.kind == "ComputeDomain" else "claim"
        group, version = names.COMPUTE_DOMAIN_GROUP, support.domain_version
        if part == "claim":
            group, version = names.RESOURCE_GROUP, support.claim_version
        path = f"/apis/{group}/{version}/namespaces/{action.namespace}/{PLURALS[part]}"
        new = action.why == "make"
        write = (
            writes.Create(path, action.body)
            if new
            else writes.Patch(f"{path}/{action.name}", action.body)
        )
        about = {"kind": action.kind, "namespace": action.namespace, "name": action.name}
        stored = self._stored(about, _DONE[action.why], await writes.apply(client, write))
        log.info(_DONE[action.why], **about)
        self.cache.wrote(part, stored.object(ComputeDomain))

    def _stored(self, about: dict[str, str], done: str, answer: writes.Answer) -> writes.Stored:
        """Count what became of a write of the object ``about``: its kind, namespace and name."""
        kind = about["kind"]
        match answer:
            case writes.Stored():
                self._metrics.writes.labels(kind, done).inc()
                return answer
            case writes.Exists() | writes.Missing():
                self._metrics.writes.labels(kind, "conflict").inc()
                raise Unwritten(BEHIND_AGAIN)
        error, stale = answer.error, isinstance(answer, writes.Refused) and answer.stale
        result = "conflict" if stale else "refused" if for_good(error) else "failed"
        self._metrics.writes.labels(kind, result).inc()
        if terminating(error):
            log.info("the namespace is being deleted, nothing is made in it", **about)
            raise Unwritten(None)
        raise error

    async def _announce(self, client: Client, namespace: str, name: str) -> float | None:
        """Say on a PodGang that its domains are its own, or not; adoption counts without it."""
        gang = self.cache.gang(namespace, name)
        if gang is None or (patch := self.cache.announced(gang.metadata)) is None:
            return None
        uid = gang.metadata.uid
        if (wait := self._announced.get(uid, 0.0) - self._client.clock()) > 0:
            return wait
        path = f"/apis/{names.SCHEDULER_GROUP}/v1alpha1/namespaces/{namespace}/podgangs/{name}"
        try:
            about = {"kind": "PodGang", "namespace": namespace, "name": name}
            self._stored(
                about, "announced", await writes.apply(client, writes.Patch(path, patch, "merge"))
            )
        except KubeError as error:
            if not for_good(error):
                raise
            self._refused(gang, error)
            self._announced[uid] = self._client.clock() + REFUSED_AGAIN
            return REFUSED_AGAIN
        self._announced[uid] = self._client.clock() + OVERLAY_TTL
        return None

    def _refused(self, gang: PodGang, error: KubeError) -> None:
        meta = gang.metadata
        message = reasons.refused_announcement(meta.name, self._account)
        gang_name = f"{meta.namespace}/{meta.name}"
        fields = {"podgang": gang_name, "error": str(error), "advice": message}
        log.warning("a PodGang may not be annotated", **fields)
        owners = [it for it in meta.owner_references or () if it.kind == "PodCliqueSet"]
        subjects = [reasons.regarding(owner.kind, meta.namespace, owner) for owner in owners]
        self._record(reasons.about(subjects, reasons.ANNOUNCEMENT_REFUSED, message, meta.uid))

    def _record(self, events: Iterable[reasons.Event]) -> None:
        if (recorder := self._events) is None:
            return
        for event in events:
            recorder.event(**event._asdict())
