"""What concerns one injected pod alone: its checks' results are counted and become Events, and
facts about its node are written to it.

Both replicas keep up, the one that leads writes. What has been counted follows from the Events in
the cluster, what has been written from the pod itself. Only pods of opted-in namespaces are
counted: in any other one anybody may write what looks like a check.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio
import msgspec
from preflight_kube.client.client import Client
from preflight_kube.logs import get_logger
from preflight_kube.runtime.controller import Controller
from preflight_kube.runtime.events import timestamp
from preflight_kube.runtime.reflector import Change, Reflector
from preflight_kube.runtime.workqueue import Key, Queue
from preflight_proto import names

from preflight_gang.api.error_codes import OTHER
from preflight_gang.api.types import Node, Pod, node_with
from preflight_gang.config import Config
from preflight_gang.controller.apply import Writer
from preflight_gang.controller.node_health import NodeHealthController
from preflight_gang.core.membership import code_word
from preflight_gang.core.node_facts import facts_patch, goes_with_roster, missing_annotations
from preflight_gang.core.plan import RosterWrite
from preflight_gang.core.results import (
    PATIENCE,
    EndedCheck,
    check_run,
    ended_checks,
    event_of,
    not_started,
    stuck_checks,
)
from preflight_gang.core.unchecked import Namespace, opted_in
from preflight_gang.metrics import Metrics

log = get_logger(__name__)

WORKERS: Final = 24
NEWS: Final = timedelta(minutes=50)
"""What ended longer ago is not counted: its Event, by which a new leader knows what has been
counted, may have expired (the API server keeps Events for an hour).
"""
NODES_LATEST: Final = 5.0
"""Seconds that a new leader waits for the nodes, at most: a roster written before goes without."""


class Namespaces(Reflector[Namespace]):
    """Which namespaces are opted in, by the lists that injector and controller are given alike.
    ``changed`` gets the name of one that is new or other.
    """

    def __init__(self, client: Client, config: Config, changed: Callable[[str], None]) -> None:
        super().__init__(
            client,
            "/api/v1/namespaces",
            Namespace,
            on_change=lambda change: changed(change.key),
            key=lambda namespace: namespace.metadata.name,
        )
        self._config = config

    def opted_in(self, name: str) -> bool:
        """Tell whether the pods of a namespace are checked; not those of an unknown one."""
        found, config = self.get(name), self._config
        return found is not None and opted_in(found, config.namespaces, config.exclude_namespaces)

    def all_opted_in(self) -> list[str]:
        """The names of those whose pods are checked, sorted."""
        return sorted(filter(self.opted_in, self.store))


class Reports:
    """Follows the pods that :meth:`seen` gets; acts while :meth:`lead` runs."""

    def __init__(self, client: Client, config: Config, metrics: Metrics) -> None:
        self._config, self._metrics, self._clock = config, metrics, client.clock
        self.namespaces = Namespaces(client, config, self._namespace_changed)
        self._left_out: set[str] = set()
        """Namespaces whose results are not counted, logged once each."""
        self.queue = Queue(
            "uid", clock=client.clock, everything=lambda: map(_key, self._pods.values())
        )
        self._pods: dict[str, Pod] = {}
        self._counted: dict[str, set[str]] = {}
        self._stuck: dict[str, dict[str, float]] = {}
        """By uid and check, since when it is not started."""
        self._facts_written: set[str] = set()  # about their nodes; the watch says so a moment later
        self._waiting_for_node: defaultdict[str, set[str]] = defaultdict(set)
        """Pods by the node that is not known yet."""
        labels = {config.instance_type_label, *config.topology_labels}
        self._nodes: Reflector[Node] = Reflector(
            client,
            "/api/v1/nodes",
            node_with(labels, config.gpu_resource_names, config.node_conditions),
            on_change=self._node_changed,
            key=lambda node: node.metadata.name,
        )
        self.health = NodeHealthController(client, config, metrics, self._nodes)

    # --- what changes

    async def mirror(self) -> None:
        """Keep up with the namespaces, with the nodes and what is written of their health."""
        async with anyio.create_task_group() as group:
            for run in (self.namespaces.run, self._nodes.run, self.health.cache.run):
                group.start_soon(run)

    def seen(self, pod: Pod) -> None:
        """An injected pod as it is now."""
        uid, now = pod.metadata.uid, self._clock()
        self._pods[uid] = pod
        known, stuck = self._stuck.pop(uid, {}), stuck_checks(pod, self._config.checks)
        if since := {check: known.get(check, now) for check, _ in stuck}:
            self._stuck[uid] = since
        self.queue.add(_key(pod))

    def gone(self, uid: str) -> None:
        """The pod has been deleted: forget what is known of it."""
        pod = self._pods.pop(uid, None)
        if pod is not None and pod.spec.node_name in self._waiting_for_node:
            self._waiting_for_node[pod.spec.node_name].discard(uid)
        self._counted.pop(uid, None)
        self._facts_written.discard(uid)
        self._stuck.pop(uid, None)

    def _node_changed(self, change: Change[Node]) -> None:
        self.health.node_changed(change.key, gone=change.kind == "deleted")
        if change.kind != "deleted":
            for uid in self._waiting_for_node.pop(change.key, ()):
                if (pod := self._pods.get(uid)) is not None:
                    self.queue.add(_key(pod))

    def static(self) -> list[str]:
        """The namespace of each checked pod that is a kubelet's own: none of its checks run."""
        pods = (pod.metadata for pod in self._pods.values())
        owned = ((pod, owner) for pod in pods for owner in pod.owner_references)
        return [pod.namespace for pod, by in owned if (by.api_version, by.kind) == ("v1", "Node")]

    def doubtful(self) -> set[str]:
        """Namespaces of pods labeled as checked whose claims admission wrote down, or without any
        container of a check."""
        return {
            pod.metadata.namespace
            for pod in self._pods.values()
            if names.CLAIMS_ANNOTATION in pod.metadata.annotations
            or not any(c.name.startswith(names.CONTAINER_PREFIX) for c in pod.spec.init_containers)
        }

    def _namespace_changed(self, name: str) -> None:
        self._left_out.discard(name)
        if self.namespaces.opted_in(name):
            for pod in self._pods.values():
                if pod.metadata.namespace == name:
                    self.queue.add(_key(pod))

    # --- what the leader does

    async def lead(self, writer: Writer) -> None:
        """Report on every pod, until cancelled."""
        await self.namespaces.synced.wait()
        await Controller(
            "pod",
            self.queue,
            lambda key: self._reconcile(writer, key[1]),
            workers=WORKERS,
            metrics=self._metrics.runtime,
        ).run()

    async def wait_nodes(self) -> None:
        """Until the nodes are known; not for long, for gangs can do without."""
        with anyio.move_on_after(NODES_LATEST):
            await self._nodes.synced.wait()

    def completed(self, write: RosterWrite) -> RosterWrite:
        """The write of a roster with what its pod is to know of its node."""
        pod = self._pods.get(write.member.uid)
        if pod is None or not goes_with_roster(pod):
            return write
        return msgspec.structs.replace(write, annotations=self._facts(pod))

    def _facts(self, pod: Pod) -> dict[str, str]:
        name = pod.spec.node_name
        if not pod.spec.volumes or not name:
            return {}
        node, config = self._nodes.store.get(name), self._config
        if node is None:
            self._waiting_for_node[name].add(pod.metadata.uid)
        return missing_annotations(pod, node, config.instance_type_label, config.topology_labels)

    async def _reconcile(self, writer: Writer, uid: str) -> float | None:
        """Write facts about its node to the pod; count each run of its checks once."""
        pod = self._pods.get(uid)
        if pod is None:
            return None
        if uid not in self._facts_written and not goes_with_roster(pod):
            facts = self._facts(pod)
            if facts and await writer.annotate(pod.metadata, facts_patch(pod, facts)):
                self._facts_written.add(uid)
        if not self._counts(pod):
            return writer.left(uid) or None
        again, late = self._late(pod)
        counted = self._counted.setdefault(uid, set())
        for ended in [*ended_checks(pod, self._config.checks), *late]:
            if ended.run in counted:
                continue
            now = datetime.now(UTC)
            at = timestamp(min(ended.finished or now, now))
            new = await writer.event(event_of(pod, ended, at))
            if new is None:
                break
            counted.add(ended.run)
            if ended.finished is not None and ended.result.outcome in {"passed", "failed"}:
                self.health.ended(pod.spec.node_name, check_run(pod, ended, now))
            old = ended.finished is not None and now - ended.finished > NEWS
            if new and not old:
                self._count(pod, ended)
        return min(filter(None, (again, writer.left(uid))), default=None)

    def _counts(self, pod: Pod) -> bool:
        """Whether what a pod says of itself is counted."""
        name = pod.metadata.namespace
        if self.namespaces.opted_in(name):
            return True
        if name not in self._left_out and any(ended_checks(pod, self._config.checks)):
            self._left_out.add(name)
            self._metrics.config_errors.labels("namespace").inc()
            advice = "label it, or list it under `namespaces`, if its results are to be counted"
            log.warning("results ignored: namespace is not opted in", namespace=name, advice=advice)
        return False

    def _late(self, pod: Pod) -> tuple[float | None, list[EndedCheck]]:
        """Checks that have not been started for too long; the seconds until there is one more."""
        now, waits, late = self._clock(), [], []
        since = self._stuck.get(pod.metadata.uid, {})
        for check, status in stuck_checks(pod, self._config.checks):
            left = since.get(check, now) + PATIENCE - now
            if left > 0:
                waits.append(left)
            else:
                late.append(not_started(status, check))
        return min(waits, default=None), late

    def _count(self, pod: Pod, ended: EndedCheck) -> None:
        """In one step: whoever is cut off or read meanwhile has counted all of a run or nothing."""
        result, namespace, node = ended.result, pod.metadata.namespace, self._node_label(pod)
        self._metrics.checks.labels(ended.check, result.outcome).inc()
        if ended.ran:
            self._metrics.duration.labels(ended.check).observe(ended.seconds)
        if result.outcome in {"failed", "inconclusive", "misconfigured"}:
            self._metrics.failures.inc(namespace, ended.check, node, result.code)
        if result.outcome == "failed" and (code := code_word(result.blames or "")):
            self._metrics.blamed.inc(namespace, ended.check, node, code)

    def _node_label(self, pod: Pod) -> str:
        """Where a pod runs, if the cluster has such a node: who creates a pod may name any."""
        name = pod.spec.node_name
        known = not name or name in self._nodes.store or not self._nodes.synced.is_set()
        return name if known else OTHER


def _key(pod: Pod) -> Key:
    return pod.metadata.namespace, pod.metadata.uid
