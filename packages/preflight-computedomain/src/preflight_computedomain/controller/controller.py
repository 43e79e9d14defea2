"""The main loop: what changes → which ComputeDomains to reconcile → decide → act.

Both replicas mirror the cluster; the one that leads acts. Nothing that matters is remembered: all
of it stands in the objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final

import anyio
from preflight_kube.client.client import Client, Fenced, KubeError
from preflight_kube.logs import get_logger
from preflight_kube.runtime.cache import Cache
from preflight_kube.runtime.controller import Controller as Reconciler
from preflight_kube.runtime.event_recorder import EventRecorder
from preflight_kube.runtime.events import Regarding
from preflight_kube.runtime.indexes import namespaced_name
from preflight_kube.runtime.lease import Leadership
from preflight_kube.runtime.reflector import Change, Reflector
from preflight_kube.runtime.retry import cause_of, for_good, terminating
from preflight_kube.runtime.workqueue import Queue
from preflight_kube.text import one_line

from preflight_computedomain.api import names, types
from preflight_computedomain.api.types import ClaimTemplate, ComputeDomain, Place, Slice, UsedClaim
from preflight_computedomain.controller.apply import Applier, Blocked
from preflight_computedomain.core import template
from preflight_computedomain.core.reconcile import (
    DELETED,
    NOT_READY,
    READY,
    DomainAction,
    DomainEvent,
    reconcile,
    shares,
    sweep,
)
from preflight_computedomain.core.sharing import Sharing
from preflight_computedomain.metrics import ControllerMetrics

WORKERS: Final = 24
"""ComputeDomains reconciled at the same time; mostly they wait for answers to their writes."""
AGAIN: Final = 1.0
"""Seconds after which a ComputeDomain that waits is decided anew, though nothing has changed."""
SWEEP: Final = 600.0
"""Seconds between two looks for templates whose ComputeDomain has gone."""

log = get_logger(__name__)


class Controller:
    """Acts while :meth:`lead` runs. ``exclusive``: it says of each clique whose it is."""

    def __init__(
        self,
        client: Client,
        metrics: ControllerMetrics,
        *,
        sweep_seconds: float = SWEEP,
        exclusive: bool = False,
    ) -> None:
        self._client, self._metrics, self._sweep_seconds = client, metrics, sweep_seconds
        self._exclusive, self._grants = exclusive, anyio.Lock()
        self._conflicts: set[Place] = set()
        self._sharing = Sharing(self._home)
        self.queue = Queue("computedomain", clock=client.clock, everything=self._everything)
        self._domains: Cache[ComputeDomain] = Cache(
            client,
            names.DOMAINS,
            ComputeDomain,
            on_change=self._domain_changed,
            indexes={"place": namespaced_name, "template": _template_place},
            absent_retry=5.0,
        )
        self._templates: Cache[ClaimTemplate] = Cache(
            client,
            names.TEMPLATES,
            ClaimTemplate,
            on_change=self._template_changed,
            indexes={"place": namespaced_name, "uid": _uids},
            absent_retry=5.0,
        )
        ours = {"fieldSelector": f"spec.driver={names.DRIVER}"}
        self.reflectors: tuple[Reflector[Any], ...] = (
            self._domains,
            self._templates,
            Reflector(client, names.CLAIMS, UsedClaim, on_change=self._claim_changed, kept=_brief),
            Reflector(
                client,
                names.SLICES,
                Slice,
                on_change=self._slice_changed,
                kept=_place_of,
                params=ours,
            ),
        )
        metrics.show(client, self.statuses)
        metrics.shared.set_function(lambda: len(self._sharing.shared()))
        metrics.conflicts.set_function(lambda: len(self._conflicts))

    # --- what changes in the cluster

    def statuses(self) -> Mapping[str, int]:
        """How many ComputeDomains show which status."""
        shown = [domain.status.status == READY for domain in list(self._domains.store.values())]
        return {READY: sum(shown), NOT_READY: len(shown) - sum(shown)}

    def _domain_changed(self, change: Change[ComputeDomain]) -> None:
        about = change.object.metadata
        if change.kind == "deleted":
            self._conflicts.discard(about.place)
        else:
            self.queue.add(about.place)

    def _template_changed(self, change: Change[ClaimTemplate]) -> None:
        items = filter(None, (change.before, change.object))
        self._enqueue(chain.from_iterable(map(_uids, items)))
        wanted = "/".join(change.object.metadata.place)
        for domain in self._domains.by_index("template", wanted):
            self.queue.add(domain.metadata.place)

    def _claim_changed(self, change: Change[UsedClaim]) -> None:
        self._enqueue(self._sharing.claim(change.object, gone=change.kind == "deleted"))

    def _slice_changed(self, change: Change[Slice]) -> None:
        self._enqueue(self._sharing.slice(change.object, gone=change.kind == "deleted"))

    def _everything(self) -> Iterable[Place]:
        return (domain.metadata.place for domain in self._domains.store.values())

    def _enqueue(self, uids: Iterable[str]) -> None:
        for domain in filter(None, map(self._domains.get, uids)):
            self.queue.add(domain.metadata.place)

    def _home(self, uid: str) -> str:
        domain = self._domains.get(uid)
        return domain.metadata.namespace if domain is not None else ""

    # --- while it leads

    async def lead(self, leadership: Leadership) -> None:
        """Act until cancelled."""
        for mirror in self.reflectors:
            await mirror.synced.wait()
        client = self._client.fenced(leadership.valid)
        events = EventRecorder(client, names.CONTROLLER)

        async def work(place: Place) -> float | None:
            return await self._reconcile(place, client, events)

        reconciler = Reconciler(
            names.KIND, self.queue, work, workers=WORKERS, metrics=self._metrics.runtime
        )
        with self._metrics.runtime.leading(names.CONTROLLER, self._metrics.leader):
            async with anyio.create_task_group() as group:
                group.start_soon(reconciler.run)
                group.start_soon(events.run)
                group.start_soon(self._sweep, client)

    async def _reconcile(self, place: Place, client: Client, events: EventRecorder) -> float | None:
        domain = self._domains.newest("place", "/".join(place))
        if domain is None:
            return None
        plan = reconcile(domain, self._seen(domain))
        self._conflicts.discard(place)
        if "ResourceClaimTemplateConflict" in {item.reason for item in plan.events}:
            self._conflicts.add(place)
        again: float | None = None
        try:
            await self._apply(client, place[0], plan.actions, domain.metadata.uid)
        except Blocked as why:
            log.info("ComputeDomain waits", **_about(domain), why=str(why))
            again = AGAIN
        except KubeError as error:
            if for_good(error) and not terminating(error):
                message = (
                    f"the API server refuses what this ComputeDomain needs: {cause_of(error)}; make "
                    "room in the quota, or change what refuses: it is tried again each minute"
                )
                refused = DomainEvent("ComputeDomainRefused", message, str(error.status))
                self._record(events, domain, [refused])
            raise
        else:
            if plan.actions:
                log.info(
                    "ComputeDomain reconciled",
                    **_about(domain),
                    actions=[action.kind for action in plan.actions],
                    status=plan.status,
                    next=plan.next,
                )
        if self._exclusive and again is None and not await self._grant(client, place):
            again = AGAIN
        self._record(events, domain, (*plan.events, *shares(self._neighbors(domain))))
        return again

    @staticmethod
    def _record(events: EventRecorder, domain: ComputeDomain, what: Iterable[DomainEvent]) -> None:
        about = domain.metadata
        regarding = Regarding(names.API_VERSION, names.KIND, about.name, about.uid, about.namespace)
        for item in what:
            if events.event(
                regarding,
                about=f"{item.reason}\0{item.about}",
                reason=item.reason,
                message=item.message,
                warning=True,
            ):
                log.warning(item.message, **_about(domain), reason=item.reason)

    async def _grant(self, client: Client, place: Place) -> bool:
        """Say on a ComputeDomain which cliques it has; False where it is active in others, too."""
        async with self._grants:
            domain = self._domains.newest("place", "/".join(place))
            if domain is None:
                return True
            wanted = self._sharing.granted(domain, self._domains.store.values())
            if wanted != domain.metadata.cliques:
                action = DomainAction("GrantCliques", status=",".join(sorted(wanted)))
                await self._apply(client, place[0], [action], domain.metadata.uid)
                log.info("NVLink cliques granted", **_about(domain), cliques=sorted(wanted))
            return self._sharing.cliques(domain.metadata.uid) <= wanted

    async def _apply(
        self, client: Client, namespace: str, actions: Iterable[DomainAction], uid: str = ""
    ) -> None:
        applier = Applier(client, (self._domains, self._templates), namespace, uid)
        for action in actions:
            await applier.apply(action)
            self._metrics.actions.labels(action.kind).inc()

    def _seen(self, domain: ComputeDomain) -> list[ClaimTemplate]:
        namespace, uid = domain.metadata.namespace, domain.metadata.uid
        named = self._templates.by_index("place", f"{namespace}/{domain.template}")[-1:]
        ours = self._templates.by_index("uid", uid)
        seen = {item.metadata.uid: item for item in (*ours, *named)}
        return [item for item in seen.values() if item.metadata.namespace == namespace]

    def _neighbors(self, domain: ComputeDomain) -> dict[str, list[str]]:
        """By NVLink clique, who else is active in it, as far as the ComputeDomain's namespace may
        know it.
        """
        namespace = domain.metadata.namespace

        def named(uid: str) -> str:
            if (other := self._domains.get(uid)) is None:
                return DELETED
            return str(other.metadata) if other.metadata.namespace == namespace else ""

        others = self._sharing.others(domain.metadata.uid).items()
        return {clique: sorted({*map(named, uids)} - {""}) for clique, uids in others}

    async def _sweep(self, client: Client) -> None:
        """Remove templates of ours whose ComputeDomain has gone without its finalizer."""
        while True:
            for item in list(self._templates.store.values()):
                about = item.metadata
                uid = template.owner(item)
                if not uid or self._domains.get(uid) is not None:
                    continue
                try:
                    await self._apply(client, about.namespace, sweep(item))
                except Fenced:
                    return  # the next leader does it
                except (Blocked, KubeError) as why:
                    log.warning(
                        "stale template not deleted",
                        namespace=about.namespace,
                        name=one_line(about.name, 200),
                        error=str(why),
                    )
            await anyio.sleep(self._sweep_seconds)


def _template_place(domain: ComputeDomain) -> list[str]:
    return [f"{domain.metadata.namespace}/{domain.template}"]


def _uids(item: ClaimTemplate) -> set[str]:
    """The uids of ComputeDomains that the template names, by label or configuration."""
    return {uid for uid in (item.metadata.labels.get(names.LABEL, ""), template.owner(item)) if uid}


def _brief(claim: UsedClaim) -> UsedClaim:
    """The part of a claim that is kept: a cluster has many, of other drivers most."""
    return UsedClaim(metadata=_version(claim.metadata))


def _place_of(item: Slice) -> Slice:
    """The part of a slice that is kept: what it offers has been read."""
    return Slice(
        metadata=_version(item.metadata), spec=types.SliceSpec(node_name=item.spec.node_name)
    )


def _version(of: types.Metadata) -> types.Metadata:
    return types.Metadata(name=of.name, uid=of.uid, resource_version=of.resource_version)


def _about(domain: ComputeDomain) -> dict[str, str]:
    about = domain.metadata
    return {"namespace": about.namespace, "computedomain": about.name, "uid": about.uid}
