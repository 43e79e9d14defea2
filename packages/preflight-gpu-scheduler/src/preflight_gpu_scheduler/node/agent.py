"""One node's agent: writes its GpuNodeStatus every heartbeat, and at once on change."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import anyio
import msgspec
from preflight_kube.client.client import Client, Conflict, KubeError, NotFound
from preflight_kube.logs import get_logger
from preflight_kube.runtime.reflector import Change, Reflector

from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.gpu_node_status import InventoryStatus, complaints
from preflight_gpu_scheduler.api.types import Lease, Metadata, Node, Pod
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.metrics import AgentMetrics
from preflight_gpu_scheduler.node import status as node_status
from preflight_gpu_scheduler.node.nvml import NvmlFailed, NvmlProcess
from preflight_gpu_scheduler.node.status import Facts

T = TypeVar("T")
log = get_logger(__name__)

LOOK: Final = 5.0
"""Seconds between two looks at NVML: a sick GPU is reported within them."""
SETTLE: Final = 0.2
"""Seconds from a change to the look, as changes come together."""


class _SliceSpec(msgspec.Struct, frozen=True):
    driver: str = ""


class _Slice(msgspec.Struct, frozen=True):
    """A ResourceSlice as far as it says whose it is."""

    metadata: Metadata
    spec: _SliceSpec = _SliceSpec()


class Agent:
    """``boot``: the kernel's id of this boot. ``reflectors`` have to run."""

    def __init__(
        self,
        client: Client,
        config: Config,
        node: str,
        driver: NvmlProcess,
        metrics: AgentMetrics,
        *,
        boot: str = "",
    ) -> None:
        self._client, self._config, self._metrics = client, config, metrics
        self._node, self._driver, self._boot = node, driver, boot
        self._known = InventoryStatus()
        self._path = f"{names.STATUSES}/{node}"
        self._woken = anyio.Event()
        self._holders: dict[int, str] = {}
        self._failure = ""

        def mirror(path: str, type_: type[T], of: str) -> Reflector[T]:
            params = {"fieldSelector": f"{of}={node}"}
            return Reflector(client, path, type_, on_change=self._changed, params=params)

        self._pods = mirror("/api/v1/pods", Pod, "spec.nodeName")
        self._nodes = mirror("/api/v1/nodes", Node, "metadata.name")
        slices = "/apis/resource.k8s.io/v1/resourceslices"
        self._slices = mirror(slices, _Slice, "spec.nodeName")
        self.reflectors: tuple[Reflector[Any], ...] = (self._pods, self._nodes, self._slices)

    async def remember(self) -> None:
        """Read the last status, which says which id each UUID has. Raises KubeError."""
        written = await self._client.get_or_none(self._path, dict[str, Any])
        try:
            self._known = msgspec.convert((written or {}).get("status") or {}, InventoryStatus)
        except msgspec.ValidationError as error:
            log.warning("previous status not valid, and begun anew", error=str(error))

    async def run(self) -> None:
        """Look at NVML, the node and its pods, and write what changed, until cancelled."""
        for mirror in self.reflectors:
            await mirror.synced.wait()
        known, beat = self._known, float("-inf")
        while True:
            self._woken = anyio.Event()
            facts = await self._facts()
            await self._ask_holders({device.id for device in known.devices})
            now = self._client.clock()
            heartbeat = self._config.seconds("heartbeat")
            if (status := self._status(known, facts)) is not None:
                due = node_status.changed(known, status) or now - beat >= heartbeat
                if due and await self._publish(status):
                    known, beat = status, now
                if facts is not None and not node_status.changed(known, status):
                    self._driver.kept()
            left = max(0.0, beat + heartbeat - self._client.clock())
            with anyio.move_on_after(min(LOOK, left) if left else LOOK):
                await self._woken.wait()
                await anyio.sleep(SETTLE)

    def _status(self, known: InventoryStatus, facts: list[Facts] | None) -> InventoryStatus | None:
        node = next(iter(self._nodes.store.values()), None)
        if node is None:
            return None  # of a node that is not there nothing is said
        drivers = {part.spec.driver for part in self._slices.store.values()}
        return node_status.status(
            known,
            facts,
            complaints(node, self._config.node_conditions),
            self._pods.store.values(),
            self._node,
            holders=self._holders,
            conflicts=node_status.conflicts(node, drivers),
            boot=self._boot,
            observed=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        )

    async def _facts(self) -> list[Facts] | None:
        facts, failure = None, ""
        try:
            facts = await anyio.to_thread.run_sync(self._driver.facts)
        except NvmlFailed as error:
            failure = str(error)
        self._metrics.nvml.set(not failure)
        if failure and not self._failure:
            log.warning("nothing is known of the GPUs", error=failure)
        elif self._failure and not failure:
            log.info("NVML answers again", before=self._failure)
        self._failure = failure
        return facts

    async def _ask_holders(self, here: set[int]) -> None:
        """Read the Leases of those GPUs ``here`` that a pod says it has, until they say so too."""
        claimed = node_status.claimed(self._pods.store.values(), self._node)
        self._holders = {
            gpu: uid for gpu, uid in self._holders.items() if uid in claimed.get(gpu, ())
        }
        for gpu in sorted(here & claimed.keys()):
            if claimed[gpu] == {self._holders.get(gpu)}:
                continue
            path = (
                f"{names.leases(self._config.lock_namespace)}/{names.lease_name(self._node, gpu)}"
            )
            try:
                lease = await self._client.get_or_none(path, Lease)
            except KubeError as error:
                log.warning("a Lease cannot be read", gpu=gpu, error=str(error))
                continue
            self._holders.pop(gpu, None)
            if lease is not None and lease.ours and lease.gpu == (self._node, gpu):
                self._holders[gpu] = lease.holder

    async def _publish(self, status: InventoryStatus) -> bool:
        """Tell whether it was stored."""
        body = {
            **msgspec.to_builtins(status),
            "usable": sum(device.usable for device in status.devices),
            "total": status.total,
            "reason": status.reason or None,  # so that the last one goes
            "conflicts": list(status.conflicts),
        }
        try:
            await self._write({"status": body})
        except KubeError as error:
            self._metrics.published.labels("failed").inc()
            log.warning("status not published", error=str(error))
            return False
        self._metrics.published.labels("ok").inc()
        for health in ("Healthy", "Unhealthy", "Unknown"):
            number = sum(device.health == health for device in status.devices)
            self._metrics.devices.labels(health).set(number)
        return True

    async def _write(self, body: dict[str, Any]) -> None:
        try:
            await self._client.merge_patch(f"{self._path}/status", body)
        except NotFound:
            kind = {"apiVersion": names.API_VERSION, "kind": "GpuNodeStatus"}
            created = {**kind, "metadata": {"name": self._node}, "spec": {"nodeName": self._node}}
            with suppress(Conflict):  # somebody else made it meanwhile
                await self._client.create(names.STATUSES, created)
            await self._client.merge_patch(f"{self._path}/status", body)

    def _changed(self, _: Change[Any]) -> None:
        self._woken.set()
