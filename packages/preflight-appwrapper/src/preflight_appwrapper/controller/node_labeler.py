"""One label of our own on each node, by its conditions; the brake lets a share of them through."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import anyio
from preflight_kube.client.client import Client, Conflict, NotFound, PreconditionFailed
from preflight_kube.logs import get_logger
from preflight_kube.runtime.controller import Controller
from preflight_kube.runtime.event_recorder import EventRecorder
from preflight_kube.runtime.events import Regarding, timestamp
from preflight_kube.runtime.indexes import namespaced_name
from preflight_kube.runtime.reflector import Change, Reflector
from preflight_kube.runtime.workqueue import Key, Queue

from preflight_appwrapper.api.names import COMPONENT
from preflight_appwrapper.api.rules import BrakeRules
from preflight_appwrapper.config import NodeHealthConfig
from preflight_appwrapper.core.brake import Brake, suspicion
from preflight_appwrapper.core.node_labels import HELD, LabeledNode, code, first_bad, patch
from preflight_appwrapper.metrics import Metrics

_WORKERS: Final = 4

log = get_logger(__name__)


class Labeler:
    """One leadership of it. ``client`` is fenced by that."""

    def __init__(
        self, client: Client, health: NodeHealthConfig, metrics: Metrics, rules: BrakeRules
    ) -> None:
        self._client, self._health, self._metrics, self._rules = client, health, metrics, rules
        self._nodes = Reflector(
            client,
            "/api/v1/nodes",
            LabeledNode,
            on_change=self._changed,
            kept=lambda node: node.only(health),
            indexes={"name": namespaced_name},
        )
        self._events = EventRecorder(client, COMPONENT, counted=metrics.event)
        self._queue = Queue("node", clock=client.clock)
        self._brake = Brake(rules, client.clock)

    async def run(self) -> None:
        """Keep the label of every node right until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._nodes.run)
            group.start_soon(self._events.run)
            await self._nodes.synced.wait()  # a share is of all nodes
            labels = Controller(
                "NodeLabel",
                self._queue,
                self._reconcile,
                workers=_WORKERS,
                metrics=self._metrics.runtime,
            )
            group.start_soon(labels.run)

    def _changed(self, change: Change[LabeledNode]) -> None:
        name, before = change.object.metadata.name, change.before
        if change.kind != "deleted":
            marked = self._label(change.object) == self._health.value
            if marked and (before is None or self._label(before) != self._health.value):
                # By us, a release, or an earlier leader.
                self._brake.take(name, change.object.age(datetime.now(UTC)))
            self._queue.add(("", name))
        held = sum(self._label(node) == HELD for node in self._nodes.store.values())
        self._metrics.nodes_held.set(held)

    def _label(self, node: LabeledNode) -> str:
        return node.metadata.labels.get(self._health.key, "")

    async def _reconcile(self, key: Key) -> float | None:
        node = self._nodes.newest("name", key[1])
        if node is None:
            return None
        about = node.metadata
        bad, wait = first_bad(node.status.conditions, self._health), None
        value = self._health.value if bad else ""
        if value and self._label(node) != value:
            wait = self._brake.wait(about.name, len(self._nodes.store))
            value = HELD if wait is not None else value
        operations = patch(about.uid, about.labels, self._health.key, value)
        if not operations:
            return wait
        taken = value == self._health.value and self._brake.take(about.name)
        try:
            await self._client.json_patch(f"/api/v1/nodes/{about.name}", operations)
        except BaseException as error:
            if taken:
                self._brake.give_back(about.name)
            if not isinstance(error, PreconditionFailed | Conflict | NotFound):
                raise
            self._metrics.writes.labels("label", "conflict").inc()
            return 1.0  # another node, or another label by now: the watch brings it
        self._metrics.writes.labels("label", "written").inc()
        what = "node labeled" if value else "label removed from node"
        log.info(what, node=about.name, label=self._health.key, value=value)
        if value == HELD:
            self._tell(node)
        return wait

    def _tell(self, node: LabeledNode) -> None:
        """An Event on the node that waits; what many nodes have in common is said first."""
        codes = {
            each.metadata.name: code(each.status.conditions, self._health)
            for each in self._nodes.store.values()
        }
        suspect = suspicion((name, known) for name, known in codes.items() if known)
        why = (suspect, codes.get(node.metadata.name), self._rules.sentence("the nodes"))
        message = "; ".join(filter(None, why))
        log.warning("node not labeled yet", node=node.metadata.name, why=message)
        self._events.event(
            Regarding("v1", "Node", node.metadata.name, node.metadata.uid),
            about=f"EvacuationHeld/{timestamp(datetime.now(UTC))}",
            reason="EvacuationHeld",
            message=message,
            warning=True,
        )
