"""What is remembered of nodes from gang to gang: taken from results, published with rosters,
written to the cluster once a minute at most.

Whoever leads reads it once and then keeps it; in between it loses a minute at most, which the pods
that still exist make up for.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import anyio
import msgspec
from preflight_kube.client.client import Client, Conflict, KubeError, NotFound
from preflight_kube.logs import get_logger
from preflight_proto import names
from preflight_proto.history import Past, digest, told

from preflight_gang.api.types import Metadata, Node, Pod
from preflight_gang.config import Config
from preflight_gang.controller.apply import Writer
from preflight_gang.core.membership import GangMember
from preflight_gang.core.node_facts import identity
from preflight_gang.core.node_history import SHARDS, NodeHistory, shard_name
from preflight_gang.core.results import EndedCheck
from preflight_gang.core.snapshot import GangView

__all__ = ["PAUSE", "HistoryStore"]

PAUSE: Final = 60.0
"""Seconds between two writes of the same records."""
_KEY: Final = "nodes"

log = get_logger(__name__)


class _Stored(msgspec.Struct):
    metadata: Metadata
    data: dict[str, str] = {}


class HistoryStore:
    """``home``: the namespace that the records are kept in; without one they last as long as the
    leader.
    """

    def __init__(self, client: Client, config: Config, home: str) -> None:
        self._client, self._home = client, home
        self._on = config.history_seconds > 0
        self._book = NodeHistory(config.history_seconds)
        self._versions: dict[int, str] = {}
        self._read = False

    # --- what is seen

    def note(self, pod: Pod, node: Node | None, ended: EndedCheck) -> None:
        """A run of a check on a node of the cluster has ended."""
        details, finished = ended.result.details, ended.finished
        if not self._on or ended.check != names.NCCL_ALLREDUCE or node is None or finished is None:
            return
        seen = told(details) if details is not msgspec.UNSET else None
        if seen is None or ended.result.outcome not in {"passed", "failed"}:
            return
        at = min(finished, datetime.now(UTC)).timestamp()
        gbps = (ended.result.measured or 0.0) if ended.result.outcome == "passed" else 0.0
        self._book.note((node.metadata.name, identity(node)), at, _whose(pod), seen, gbps)

    def there(self, node: Node) -> None:
        """The node is in the cluster, as it is now."""
        self._book.check(node.metadata.name, identity(node), _now())

    def deleted(self, namespace: str, name: str) -> None:
        """A ConfigMap has been deleted: if it was of these, nothing of it counts any more."""
        for number in range(SHARDS) if namespace == self._home else ():
            if name == shard_name(number):
                self._versions.pop(number, None)
                self._book.empty(number, _now())

    # --- what is published

    def of(
        self,
        gang: GangView,
        pod_of: Callable[[str], Pod | None],
        node_of: Callable[[str], Node | None],
    ) -> Callable[[GangMember], Past | None]:
        """What each member of a sealed gang learns about its node. ``pod_of``, ``node_of``: by uid
        and by name.
        """
        members = (
            {digest(assigned.node): assigned.node for assigned in gang.record.assignments}
            if self._on and gang.record
            else {}
        )

        def past(member: GangMember) -> Past | None:
            pod, node = pod_of(member.uid), node_of(member.node)
            if not members or pod is None or node is None:
                return None
            return self._book.past((member.node, identity(node)), _now(), _whose(pod), members)

        return past

    def shown(self) -> list[tuple[str, int, dict[str, float]]]:
        """(node, bad spells, what is usual in GB/s by sort), for the metrics."""
        return self._book.shown(_now()) if self._on else []

    # --- where it is kept

    async def load(self) -> None:
        """Read what the last leader has kept. Where that fails, gangs go without
        until it is there.
        """
        if not self._on or not self._home:
            return
        params = {"labelSelector": f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY}"}
        numbers = {shard_name(number): number for number in range(SHARDS)}
        try:
            async for found, _ in self._client.pages(self._path, _Stored, params=params):
                for one in found:
                    if (number := numbers.get(one.metadata.name)) is not None:
                        self._versions[number] = one.metadata.resource_version
                        self._book.read(number, one.data.get(_KEY, ""))
        except KubeError as error:
            log.warning("node history not read", error=str(error))
        else:
            self._read = True

    async def lead(self, writer: Writer) -> None:
        """Keep the records, until cancelled."""
        try:
            while True:
                await anyio.sleep(PAUSE)
                await self.keep(writer)
        finally:
            self._book.clear()
            self._versions.clear()
            self._read = False

    async def keep(self, writer: Writer) -> None:
        """Write what has changed."""
        if not self._home:
            return
        if not self._read:
            await self.load()
        for number in sorted(self._book.changed) if self._read else ():
            try:
                self._versions[number] = await writer.remember(self._body(number))
            except (
                Conflict,
                NotFound,
            ):  # somebody else has written or deleted it: see what is there
                self._versions.pop(number, None)
                self._read = False
            except KubeError as error:
                log.warning(
                    "node history not written", configmap=shard_name(number), error=str(error)
                )
            else:
                continue
            self._book.changed.add(number)

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._home}/configmaps"

    def _body(self, number: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "name": shard_name(number),
            "namespace": self._home,
            "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.HISTORY_LABEL: _KEY},
        }
        if version := self._versions.get(number):
            metadata["resourceVersion"] = version
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {_KEY: self._book.encoded(number)},
        }


def _whose(pod: Pod) -> tuple[str, str]:
    return pod.metadata.namespace, pod.metadata.labels.get(names.GANG_LABEL, pod.metadata.uid)


def _now() -> float:
    return datetime.now(UTC).timestamp()
