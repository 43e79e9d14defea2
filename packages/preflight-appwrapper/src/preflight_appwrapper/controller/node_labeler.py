"""One label of our own on each node, made from its conditions, and nothing else of it: what a check
has found stands in a condition until a check that finds nothing takes it back, so the label stays
through any restart. Of many nodes at once the brake lets a share through."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import anyio
from preflight_kube.client.client import Client, Conflict, NotFound, PreconditionFailed
from preflight_kube.logs import get_logger
from preflight_kube.runtime.controller import Controller
from preflight_kube.runtime.event_recorder import EventRecorder
from preflight_kube.runtime.events import Regarding, timestamp
from preflight_kube.runtime.lease import Leadership
from preflight_kube.runtime.reflector import Change, Reflector
from preflight_kube.runtime.workqueue import Key, Queue

from preflight_appwrapper.api.names import COMPONENT
from preflight_appwrapper.api.rules import BrakeRules
from preflight_appwrapper.config import NodeHealthConfig
from preflight_appwrapper.core.brake import Brake, suspicion
from preflight_appwrapper.core.node_labels import HELD, LabeledNode, code, patch, wanted
from preflight_appwrapper.metrics import Metrics

__all__ = [
    "Labeler",
]

_WORKERS: Final = 4

log = get_logger(__name__)


class Labeler:
    """``lead`` is all that it does."""

    def __init__(
        self, client: Client, health: NodeHealthConfig, metrics: Metrics, brake: BrakeRules
    ) -> None:
        self._client, self._health, self._metrics, self._brake = client, health, metrics, brake

    async def lead(self, leadership: Leadership) -> None:
        """Keep the label of every node right until cancelled."""
        with self._metrics.runtime.leading(f"{COMPONENT}-labeler", self._metrics.leader):
            await _Leading(
                self._client.fenced(leadership.valid), self._health, self._metrics, self._brake
            ).run()


class _Leading:
    """What one leadership needs."""

    def __init__(
        self, client: Client, health: NodeHealthConfig, metrics: Metrics, rules: BrakeRules
    ) -> None:
        self._client, self._health, self._metrics, self._rules = client, health, metrics, rules
        self._nodes: dict[str, LabeledNode] = {}
        self._events = EventRecorder(client, COMPONENT, counted=metrics.event)
        self._queue = Queue("node", clock=client.clock)
        self._brake = Brake[str](rules, client.clock)

    async def run(self) -> None:
        mirror = Reflector(self._client, "/api/v1/nodes", LabeledNode, on_change=self._changed)
        async with anyio.create_task_group() as group:
            group.start_soon(mirror.run)
            group.start_soon(self._events.run)
            await mirror.synced.wait()  # a share is of all nodes
            labels = Controller(
                "NodeLabel",
                self._queue,
                self._reconcile,
                workers=_WORKERS,
                metrics=self._metrics.runtime,
            )
            group.start_soon(labels.run)

    def _changed(self, change: Change[LabeledNode]) -> None:
        name = change.object.metadata.name
        if change.kind == "deleted":
            self._nodes.pop(name, None)
        else:
            before, self._nodes[name] = self._nodes.get(name), change.object
            if self._label(change.object) == self._health.value and (
                before is None or self._label(before) != self._health.value
            ):
                # By us, a release, or an earlier leader: it counts as if it were now.
                self._brake.take(name)
            self._queue.add(("", name))
        held = sum(self._label(one) == HELD for one in self._nodes.values())
        self._metrics.nodes_held.set(held)

    def _label(self, node: LabeledNode) -> str:
        return node.metadata.labels.get(self._health.key, "")

    async def _reconcile(self, key: Key) -> float | None:
        node = self._nodes.get(key[1])
        return await self._settle(node) if node is not None else None

    async def _settle(self, node: LabeledNode) -> float | None:
        about = node.metadata
        value, wait = wanted(node.status.conditions, self._health), None
        if value and self._label(node) != value:
            wait = self._brake.wait(about.name, len(self._nodes))
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
        log.info(
            "node labeled" if value else "label removed from node",
            node=about.name,
            label=self._health.key,
            value=value,
        )
        if value == HELD:
            self._tell(node)
        return wait

    def _tell(self, node: LabeledNode) -> None:
        """An Event on the node that waits; what many nodes have in common is said first."""
        conditions = {one.metadata.name: one.status.conditions for one in self._nodes.values()}
        codes = {name: code(its, self._health) for name, its in conditions.items()}
        suspect = suspicion((name, its) for name, its in codes.items() if its)
        why = f"{codes[node.metadata.name]}; {self._rules.sentence('the nodes')}"
        message = f"{suspect}; {why}" if suspect else why
        log.warning("node not labeled yet", node=node.metadata.name, why=message)
        self._events.event(
            Regarding("v1", "Node", node.metadata.name, node.metadata.uid),
            about=f"EvacuationHeld/{timestamp(datetime.now(UTC))}",
            reason="EvacuationHeld",
            message=message,
            warning=True,
        )
