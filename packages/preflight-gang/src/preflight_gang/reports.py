"""What concerns one injected pod alone: its checks' results become counts and Events, and it is told about its node.

Both replicas keep up, the one that leads writes. What has been counted follows from the Events in the cluster, what has been told
from the pod itself.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import anyio

from .config import Config
from .kube.client import Client
from .kube.reflector import Change, Reflector
from .metrics import Metrics
from .nodes import facts_patch, goes_with_roster, untold
from .objects import Node, Pod, node_with
from .results import PATIENCE, Ended, ended_checks, event_of, not_started, stuck_checks
from .workqueue import Queue
from .writer import Writer

__all__ = ["Reports"]

RETRY: Final = 1.0
WORKERS: Final = 4
NODES_LATEST: Final = 5.0
"""Seconds that a new leader waits, at most, until the nodes are read: a roster that is written before goes without them."""


class Reports:
    """Follows the pods that it is told of; acts while :meth:`lead` runs."""

    def __init__(self, client: Client, config: Config, metrics: Metrics) -> None:
        self._config, self._metrics, self._clock = config, metrics, client.clock
        self.queue: Queue[str] = Queue("uid", clock=client.clock)
        self._pods: dict[str, Pod] = {}
        self._counted: dict[str, set[str]] = {}
        self._stuck: dict[tuple[str, str], float] = {}  # (uid, check) → since when it is not started
        self._told: set[str] = set()  # about their nodes; the watch says so a moment later
        self._homeless: dict[str, set[str]] = {}  # pods by the node that is not known yet
        self._nodes: Reflector[Node] = Reflector(
            client,
            "/api/v1/nodes",
            node_with({config.instance_type_label, *config.topology_labels}),
            on_change=self._node_changed,
            key=lambda node: node.metadata.name,
        )
        self._nodes_wanted = anyio.Event()

    # --- what changes

    async def mirror(self) -> None:
        """Keep up with the nodes, from the first pod on that is to be told about its own."""
        await self._nodes_wanted.wait()
        await self._nodes.run()

    def seen(self, pod: Pod) -> None:
        """An injected pod as it is now."""
        uid = pod.metadata.uid
        self._pods[uid] = pod
        stuck = {check for check, _ in stuck_checks(pod, self._config.checks)}
        for check in self._config.checks:
            if check in stuck:
                self._stuck.setdefault((uid, check), self._clock())
            else:
                self._stuck.pop((uid, check), None)
        if pod.spec.volumes:
            self._nodes_wanted.set()
        self.queue.add(uid)

    def gone(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None and (homeless := self._homeless.get(pod.spec.node_name)) is not None:
            homeless.discard(uid)
        self._counted.pop(uid, None)
        self._told.discard(uid)
        for check in self._config.checks:
            self._stuck.pop((uid, check), None)

    def _node_changed(self, change: Change[Node]) -> None:
        if change.kind != "deleted":
            for uid in self._homeless.pop(change.key, ()):
                self.queue.add(uid)

    # --- what the leader does

    async def lead(self, writer: Writer) -> None:
        """Report on every pod, until cancelled."""
        for uid in self._pods:
            self.queue.add(uid)
        async with anyio.create_task_group() as group:
            for _ in range(WORKERS):
                group.start_soon(self.queue.work, lambda uid: self._report(writer, uid), RETRY)

    async def wait_nodes(self) -> None:
        """Until the nodes are known, if some pod is to be told; not for long, for gangs can do without."""
        if self._nodes_wanted.is_set():
            with anyio.move_on_after(NODES_LATEST):
                await self._nodes.synced.wait()

    def with_roster(self, uid: str) -> dict[str, str]:
        """The annotations about its node that go with the pod's first roster."""
        pod = self._pods.get(uid)
        return self._facts(pod) if pod is not None and goes_with_roster(pod) else {}

    def _facts(self, pod: Pod) -> dict[str, str]:
        name = pod.spec.node_name
        if not pod.spec.volumes or not name:
            return {}
        node = self._nodes.store.get(name)
        if node is None:
            self._homeless.setdefault(name, set()).add(pod.metadata.uid)
        return untold(pod, node, self._config.instance_type_label, self._config.topology_labels)

    async def _report(self, writer: Writer, uid: str) -> float | None:
        """Tell the pod about its node, and count each run of its checks once; after how many seconds to look again."""
        pod = self._pods.get(uid)
        if pod is None:
            return None
        if uid not in self._told and not goes_with_roster(pod) and (facts := self._facts(pod)):
            written = await writer.annotate(pod.metadata, facts_patch(pod, facts))
            if written is None:
                return RETRY
            if written:
                self._told.add(uid)
        again, late = self._late(pod)
        counted = self._counted.setdefault(uid, set())
        for ended in [*ended_checks(pod, self._config.checks), *late]:
            if ended.run in counted:
                continue
            new = await writer.event(event_of(pod, ended, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")))
            if new is None:
                return RETRY
            counted.add(ended.run)
            if new:
                self._count(pod, ended)
        return again

    def _late(self, pod: Pod) -> tuple[float | None, list[Ended]]:
        """Checks that have not been started for too long, and the seconds until the next one will be."""
        waits, late = [], []
        for check, status in stuck_checks(pod, self._config.checks):
            left = self._stuck.get((pod.metadata.uid, check), self._clock()) + PATIENCE - self._clock()
            if left > 0:
                waits.append(left)
            else:
                late.append(not_started(status, check))
        return min(waits, default=None), late

    def _count(self, pod: Pod, ended: Ended) -> None:
        result = ended.result
        self._metrics.checks.labels(ended.check, result.outcome).inc()
        if ended.ran:
            self._metrics.duration.labels(ended.check).observe(ended.seconds)
        if result.outcome in {"failed", "inconclusive", "misconfigured"}:
            self._metrics.failures.labels(
                ended.check,
                self._metrics.bounded("node", pod.spec.node_name),
                self._metrics.bounded("error_code", result.code),
            ).inc()
