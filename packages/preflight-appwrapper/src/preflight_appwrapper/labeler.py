"""One label of our own on each node, made from its conditions, and nothing else of it: what a check
has found stands in a condition until a check that finds nothing takes it back, so the label stays
through any restart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import anyio
import msgspec
from preflight_kube import jsonpatch
from preflight_kube.client import Client, Conflict, NotFound, PreconditionFailed
from preflight_kube.conditions import makes_sick
from preflight_kube.lease import Leadership
from preflight_kube.logs import get_logger
from preflight_kube.reflector import Change, Reflector
from preflight_kube.workqueue import Key, Queue

from .config import NodeHealth
from .metrics import Metrics

__all__ = ["Labeler", "wanted"]

_WORKERS: Final = 4

log = get_logger(__name__)


class NodeCondition(msgspec.Struct, frozen=True):
    """Of a node; its heartbeats are not changes."""

    type: str
    status: str = ""


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    uid: str
    labels: dict[str, str] = {}


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[NodeCondition, ...] = ()


class _Node(msgspec.Struct, frozen=True):
    metadata: _Metadata
    status: _Status = _Status()


def wanted(conditions: Iterable[NodeCondition], health: NodeHealth) -> str:
    """The label's value; empty: there should be none."""
    bad = any(makes_sick(one.type, one.status, health.conditions) for one in conditions)
    return health.value if bad else ""


def patch(uid: str, labels: Mapping[str, str], key: str, value: str) -> list[jsonpatch.Operation]:
    """What sets the label to ``value``, or removes it, on the node with this uid; nothing where it
    is so already.
    """
    if labels.get(key, "") == value:
        return []
    about = [jsonpatch.test("/metadata/uid", uid)]
    where = jsonpatch.pointer("metadata", "labels", key)
    if not value:
        return [*about, jsonpatch.test(where, labels[key]), jsonpatch.remove(where)]
    if labels:
        return [*about, jsonpatch.add(where, value)]
    whole = jsonpatch.pointer("metadata", "labels")
    return [*about, jsonpatch.test(whole, None), jsonpatch.add(whole, {key: value})]


class Labeler:
    """``lead`` is all that it does."""

    def __init__(self, client: Client, health: NodeHealth, metrics: Metrics) -> None:
        self._client, self._health, self._metrics = client, health, metrics

    async def lead(self, leadership: Leadership) -> None:
        """Keep the label of every node right until cancelled."""
        client = self._client.fenced(leadership.valid)
        queue = Queue("node", clock=client.clock)
        nodes: dict[str, _Node] = {}

        def changed(change: Change[_Node]) -> None:
            name = change.object.metadata.name
            if change.kind == "deleted":
                nodes.pop(name, None)
            else:
                nodes[name] = change.object
                queue.add(("", name))

        mirror = Reflector(client, "/api/v1/nodes", _Node, on_change=changed)

        async def look(key: Key) -> float | None:
            node = nodes.get(key[1])
            return await self._settle(client, node) if node is not None else None

        with self._metrics.leading():
            async with anyio.create_task_group() as group:
                group.start_soon(mirror.run)
                for _ in range(_WORKERS):
                    group.start_soon(queue.work, look)

    async def _settle(self, client: Client, node: _Node) -> float | None:
        about = node.metadata
        value = wanted(node.status.conditions, self._health)
        operations = patch(about.uid, about.labels, self._health.key, value)
        if not operations:
            return None
        try:
            await client.json_patch(f"/api/v1/nodes/{about.name}", operations)
        except (PreconditionFailed, Conflict, NotFound):
            self._metrics.writes.labels("label", "conflict").inc()
            return 1.0  # another node, or another label by now: the watch brings it
        self._metrics.writes.labels("label", "written").inc()
        log.info(
            "node labeled" if value else "label removed from node",
            node=about.name,
            label=self._health.key,
            value=value,
        )
        return None
