"""NodeHealth: what conditions and results say of each node, written down by the one that leads.

Both replicas mirror the objects. What has been written is all that is remembered of a run whose pod
has gone, so the next leader goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import anyio
import msgspec
from preflight_kube.api.node_health import (
    GROUP,
    KIND,
    VERSION,
    EndedRun,
    NodeHealth,
    NodeHealthStatus,
    judge,
    moment,
    noted,
    path,
)
from preflight_kube.client.client import Client, NotFound
from preflight_kube.logs import get_logger
from preflight_kube.runtime.cache import Cache
from preflight_kube.runtime.controller import Controller
from preflight_kube.runtime.event_recorder import EventRecorder
from preflight_kube.runtime.events import Regarding, timestamp
from preflight_kube.runtime.reflector import Reflector
from preflight_kube.runtime.workqueue import Key, Queue
from preflight_kube.runtime.writes import Create, Exists, ReplaceStatus, Stored, apply

from preflight_gang.api.types import Node
from preflight_gang.config import Config
from preflight_gang.metrics import Metrics

MIN_INTERVAL: Final = 5.0
"""Seconds between two looks at a node, so between two writes, however much changes."""
LOOK_AGAIN: Final = 10.0
"""Seconds until it is seen whether the record of an earlier node of this name was collected."""
MOST_WAITING: Final = 20_000
"""Nodes with runs that are not written: twice as many as clusters have. A pod may name any."""
WORKERS: Final = 8
BAD: Final = frozenset({"Sick", "Suspect"})

log = get_logger(__name__)


class NodeHealthController:
    """Mirrors while ``cache`` runs; acts while :meth:`lead` does. ``nodes``: by name."""

    def __init__(
        self, client: Client, config: Config, metrics: Metrics, nodes: Reflector[Node]
    ) -> None:
        self._config, self._metrics, self._nodes = config, metrics, nodes
        self.queue = Queue(
            "node",
            lambda _: MIN_INTERVAL,
            client.clock,
            lambda: (("", name) for name in nodes.store),
        )
        self._runs: dict[str, dict[tuple[str, bool, bool], EndedRun]] = {}
        """By node, the last run of each check that passed, that blames the node, and that does
        neither, until it is written."""
        self.cache: Cache[NodeHealth] = Cache(
            client,
            path(),
            NodeHealth,
            on_change=lambda change: self.queue.add(("", change.key)),
            key=lambda health: health.metadata.name,
        )

    def node_changed(self, node: str, *, gone: bool) -> None:
        """A node's conditions are others, or it is no more."""
        if gone:
            self._runs.pop(node, None)
        self.queue.add(("", node))

    def ended(self, node: str, run: EndedRun) -> None:
        """A run has ended on a node."""
        runs = self._runs.setdefault(node, {})
        known = runs.get(kind := (run.check, run.passed, run.end.blames))
        if known is None or known.end.time < run.end.time:
            runs[kind] = run
        if len(self._runs) > MOST_WAITING:
            self._runs.pop(next(iter(self._runs)))
        self.queue.add(("", node))

    def records(self) -> Iterator[tuple[str, NodeHealthStatus]]:
        """What is written of the nodes that there are, by name."""
        for name, health in list(self.cache.store.items()):
            if self._is_of(health, self._nodes.get(name)):
                yield name, health.status

    @staticmethod
    def _is_of(health: NodeHealth, node: Node | None) -> bool:
        return node is not None and health.spec.node_uid == node.metadata.uid

    async def lead(self, client: Client) -> None:
        """Keep the records of all nodes current, until cancelled. ``client``: fenced."""
        await self._nodes.wait_synced()
        await self.cache.wait_synced()
        events = EventRecorder(client, "preflight-gang")
        reconciler = Controller(
            "nodehealth",
            self.queue,
            lambda key: self._reconcile(client, events, key),
            workers=WORKERS,
            metrics=self._metrics.runtime,
        )
        self._metrics.fleet = self.records
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(events.run)
                group.start_soon(reconciler.run)
        finally:
            self._metrics.fleet = tuple  # the next leader shows it

    async def _reconcile(self, client: Client, events: EventRecorder, key: Key) -> float | None:
        name = key[1]
        node, health = self._nodes.get(name), self.cache.get(name)
        if node is None or isinstance(self.cache.problem, NotFound):
            return None  # not known yet, or an invented one; or the kind is not installed
        if health is not None and not self._is_of(health, node):
            return LOOK_AGAIN
        runs = self._runs.get(name, {})
        if health is None:
            if not (runs or node.status.capacity or node.status.conditions):
                return None  # without GPUs there is nothing to say of it
            answer = await apply(client, Create(path(), _new(node)))
            if isinstance(answer, Exists):  # the watch brings it
                return LOOK_AGAIN
            if not isinstance(answer, Stored):
                raise _error(answer)
            self.cache.wrote(health := answer.object(NodeHealth))
        written = dict(runs)
        status = self._judged(health.status, node, written)
        if status != health.status:
            body = _body(name, status, resourceVersion=health.metadata.resource_version)
            answer = await apply(client, ReplaceStatus(path(name), body))
            if not isinstance(answer, Stored):  # another version by now: the watch brings it
                raise _error(answer)
            self.cache.wrote(answer.object(NodeHealth))
            if status.state != health.status.state and BAD & {status.state, health.status.state}:
                self._record_event(events, node, status)
        runs = self._runs.get(name, {})  # what has ended during the write is there, too
        for kind, run in written.items():
            if runs.get(kind) is run:
                del runs[kind]
        if not runs:
            self._runs.pop(name, None)
        return None

    def _judged(
        self, status: NodeHealthStatus, node: Node, runs: Mapping[Any, EndedRun]
    ) -> NodeHealthStatus:
        created = node.metadata.creation_timestamp
        for run in runs.values():
            # One from before it, of a pod from before it, is of an earlier node of the name.
            if created is None or max(run.pod_created, moment(run.end.time)) >= created.timestamp():
                status = noted(status, run)
        checks = tuple(check for check in status.checks if check.name in self._config.checks)
        status = msgspec.structs.replace(status, checks=checks)
        now = timestamp(datetime.now(UTC))
        return judge(status, node.status.conditions, now, self._config.node_conditions)

    def _record_event(self, events: EventRecorder, node: Node, status: NodeHealthStatus) -> None:
        why = f"{status.code} of {status.found_by}" if status.found_by else "nothing is against it"
        gpu = f", {status.gpu}" if status.gpu else ""
        log.info("node health changed", node=node.metadata.name, state=status.state, why=why)
        events.event(
            Regarding("v1", "Node", node.metadata.name, node.metadata.uid),
            about=f"{status.state}/{status.since}",
            reason=f"Node{status.state}",
            message=f"{status.state} since {status.since}: {why}{gpu}; preflight node {node.metadata.name} says more",
            warning=status.state in BAD,
        )


def _error(answer: Any) -> Exception:
    """What the API server said; a KubeError, by which the queue tries again ever later."""
    error: Exception = getattr(answer, "error", None) or NotFound("the NodeHealth has gone", 404)
    return error


def _body(name: str, status: NodeHealthStatus, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": name, **metadata},
        "status": msgspec.to_builtins(status),
    }


def _new(node: Node) -> dict[str, Any]:
    """The garbage collector deletes it with its node."""
    name, uid = node.metadata.name, node.metadata.uid
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
    body = _body(name, NodeHealthStatus(), ownerReferences=[owner])
    return {**body, "spec": {"nodeUID": uid}}
