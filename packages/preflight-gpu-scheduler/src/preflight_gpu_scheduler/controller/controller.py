"""What the leader keeps right: leases of pods that have gone, gates, capacity, claims' status, and
rejected pods that a free GPU may suit. Gangs are :mod:`.gang_controller`'s. A sweep goes through
all leases.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import anyio
from preflight_kube.client.client import Client, Conflict, KubeError, NotFound, PreconditionFailed
from preflight_kube.logs import get_logger
from preflight_kube.runtime.controller import Controller as Reconciler
from preflight_kube.runtime.event_recorder import EventRecorder
from preflight_kube.runtime.events import Regarding
from preflight_kube.runtime.workqueue import Queue

from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.gpu_node_status import Inventory, complaints, shared
from preflight_gpu_scheduler.api.types import Lease, Metadata, Node, Pod
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.controller.apply import Executor, pod_patch, pod_path
from preflight_gpu_scheduler.controller.cache import GpuCache
from preflight_gpu_scheduler.controller.gang_controller import GangController
from preflight_gpu_scheduler.core import desired
from preflight_gpu_scheduler.core.filter_prioritize import own_ids
from preflight_gpu_scheduler.core.ledger import FirstSeen, LeaseState, judge, reason
from preflight_gpu_scheduler.core.protocol import Done, collect, relock, relocked
from preflight_gpu_scheduler.core.snapshot import Key
from preflight_gpu_scheduler.metrics import GpuControllerMetrics

log = get_logger(__name__)

COMPONENT: Final = "gpu-scheduler-controller"
CLAIM_PATIENCE: Final = 5.0
"""Seconds that a pod waits for its claim before an Event says so."""
_HELD_FOR: Final = 2.0
"""Seconds after which a pod that holds GPUs and is not bound gets an Event that says so."""
_LOST_FOR: Final = 1.0
"""Seconds for which a bound pod's lease is not seen before it is made again."""
_STATUS_REST: Final = 1.0
_AGAIN: Final = 1.0
_MARGIN: Final = 0.05
_BUDGET: Final = 30.0
_ROUND: Final[Key] = ("", "all")  # gangs are looked at together
_WAKE_REST: Final = 0.2
_WAKE_AGAIN: Final = 2.0
"""Seconds from a nudge to the next; each takes twice as long as the one before, up to ``sweep``."""


class Controller:
    """``client``: fenced, so that nothing is written once another may lead."""

    def __init__(
        self, client: Client, config: Config, seen: GpuCache, metrics: GpuControllerMetrics
    ) -> None:
        self._client, self._config, self._seen, self._metrics = client, config, seen, metrics
        self._executor = Executor(client, config, seen, metrics)
        self._events = EventRecorder(client, COMPONENT)
        self._gangs = GangController(seen, metrics, self._executor, self._event)
        self._since = FirstSeen()
        self._leases, self._pods, self._nodes = Queue("lease"), Queue("pod"), Queue("node")
        self._claims, self._rounds = Queue("claim", rest=self._status_rest), Queue("gang")
        self._wakes = anyio.Event()
        self._free: dict[str, int] = {}
        self._phases: dict[Key, tuple[str, dict[str, Any]]] = {}  # each claim's uid, and status
        self._unknown: dict[str, int] = {}  # GPUs that are named and no node's, by node

    async def lead(self) -> None:
        """Until cancelled. Begins with everything that there is, once that has been read."""
        seen = self._seen
        seen.listeners.append(self._changed)
        try:
            for pod in list(seen.pods.store.values()):
                self._changed("pod", pod.key)
            for claim in list(seen.claims.store):
                namespace, _, name = claim.partition("/")
                self._changed("claim", (namespace, name))
            for node in seen.nodes.store.keys() | seen.statuses.store.keys():
                self._changed("node", ("", node))
            self._rounds.add(_ROUND)
            work = (
                ("lease", self._leases, self._reconcile_lease, 4),
                ("pod", self._pods, self._reconcile_pod, 4),
                ("claim", self._claims, self._reconcile_claim, 2),
                ("node", self._nodes, self._reconcile_node, 2),
                ("gang", self._rounds, self._gangs.reconcile, 1),
            )
            counts = self._metrics.runtime
            async with anyio.create_task_group() as group:
                for name, queue, do, workers in work:
                    reconciler = Reconciler(name, queue, do, workers=workers, metrics=counts)
                    group.start_soon(reconciler.run)
                for run in (self._events.run, self._sweep, self._wake_rejected):
                    group.start_soon(run)
        finally:
            seen.listeners.remove(self._changed)

    def _status_rest(self, claim: Key) -> float:
        """Seconds between two writes of a claim's status; more where it has thousands of pods."""
        pods = self._seen.pods.count("claim", "/".join(claim))
        return max(_STATUS_REST, pods * _STATUS_REST / 1000)

    def _event(
        self, about: Pod | Node, reason: str, message: str, *, good: bool = False, once: str = ""
    ) -> bool:
        """Record an Event; whether it is new. ``once``: what no second one is recorded about."""
        metadata, kind = about.metadata, "Pod" if isinstance(about, Pod) else "Node"
        return self._events.event(
            Regarding("v1", kind, metadata.name, metadata.uid, metadata.namespace),
            about=f"{reason} {once or message}",
            reason=reason,
            message=message,
            warning=not good,
        )

    # --- what changed

    def _changed(self, kind: str, key: Key) -> None:
        seen = self._seen
        if kind == "pod":
            if (pod := seen.pod(key)) is None:
                for what in ("claim of", "lost"):
                    self._since.forget(f"{what} {'/'.join(key)}")
            else:
                self._pods.add(key)
                if pod.claim:
                    self._claims.add((key[0], pod.claim))
            for lease in seen.leases.by_index("pod", "/".join(key)):
                self._queue(lease)
        elif kind == "claim":
            self._claims.add(key)
            for named in seen.pods_of(key):
                self._pods.add(named.key)
            self._wakes.set()
        elif kind == "node":
            self._nodes.add(key)
            self._wakes.set()
        else:
            self._lease_changed(key[1])
        if kind == "claim" or (kind != "node" and seen.claims.count("ganged", "")):
            self._rounds.add(_ROUND)

    def _lease_changed(self, name: str) -> None:
        seen, lease = self._seen, self._seen.lease(name)
        node = (lease or Lease(metadata=Metadata(name=name))).node
        self._nodes.add(("", node))  # what it counts, and who has a sick GPU, follow from leases
        if lease is None:
            self._since.forget(f"lease {name}")
            self._wakes.set()
            for unlocked, *_ in seen.unlocked(node):
                self._pods.add(unlocked.key)
            return
        self._queue(lease)
        if (pod := seen.holder(lease)) is not None and pod.claim:
            self._claims.add((pod.namespace, pod.claim))

    def _queue(self, lease: Lease) -> LeaseState:
        """Look at a lease, unless its pod has the GPU; each namespace has its turn."""
        key = (lease.pod or ("", ""))[0], lease.name
        state = judge(lease, self._seen.look(lease.pod or ("", "")))
        if state is LeaseState.RESERVED:  # most are held by then
            self._age(lease)
            self._leases.add_after(key, _HELD_FOR + _MARGIN)
        elif state is not LeaseState.HELD:
            self._leases.add(key)
        return state

    def _age(self, lease: Lease) -> float:
        written = (lease.uid, lease.spec.renew_time)
        return self._since.note(f"lease {lease.name}", written, self._client.clock())

    # --- leases

    async def _reconcile_lease(self, key: Key) -> float | None:
        seen, name = self._seen, key[1]
        lease = seen.lease(name)
        if lease is None or not lease.locks:
            return None
        age = self._age(lease)
        lasts = lease.spec.lease_duration_seconds or self._config.reservation_seconds
        holder = seen.look(lease.pod or ("", ""))
        state = judge(lease, holder, over=age > lasts)
        if state is LeaseState.HELD:
            return None
        if state is LeaseState.LINGERING:
            return _AGAIN
        if state is LeaseState.RESERVED:
            if age < _HELD_FOR:
                return _HELD_FOR - age + _MARGIN
            self._report_reserved(lease, lasts)
            return max(0.0, lasts - age) + _MARGIN
        steps = collect(lease, seen.look, over=age > lasts, stranded=seen.stranded(lease))
        done = await self._executor.run(steps, _BUDGET)
        about = {"lease": name, "pod": "/".join(lease.pod or ())}
        if done is Done.COLLECTED:
            why = reason(lease, holder)
            self._metrics.collected.labels(why).inc()
            log.info("lease released", why=why, **about)
        elif done is Done.RECLAIMED:
            self._metrics.reclaimed.inc()
            log.info("reservation reclaimed", **about)
            self._report_gang(lease)
        return {Done.AGAIN: _AGAIN, Done.KEPT: lasts}.get(done)

    async def _sweep(self) -> None:
        seen = self._seen
        while True:
            states = Counter(self._queue(lease) for lease in list(seen.leases.store.values()))
            for state in LeaseState:
                self._metrics.leases.labels(state.value).set(states[state])
            self._metrics.stale.set(seen.stale())
            nodes = list(seen.nodes.store.values())
            unlocked = {pod.key for node in nodes for pod, *_ in seen.unlocked(node.name)}
            self._metrics.unlocked.set(len(unlocked))
            for key in unlocked:
                self._pods.add(key)
            phases = Counter(str(status["phase"]) for _, status in self._phases.values())
            self._metrics.counted(phases, seen.device_states())
            self._reconcile_failed()
            await anyio.sleep(self._config.seconds("sweep"))

    def _report_reserved(self, lease: Lease, lasts: float) -> None:
        pod = self._seen.holder(lease)
        if pod is None or pod.reserved is not None:  # a gang's members have had their Events
            return
        every = own_ids(self._seen.held_by(pod.uid), pod)
        gpus = [f"{gpu} of {node}" for node, ids in sorted(every.items()) for gpu in ids]
        which = f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(gpus)}"
        message = f"it holds {which} for {lasts:g} s, and is not bound to its node yet"
        self._event(pod, "GpusReserved", message, good=True, once=f"reserved {lease.number}")

    def _report_gang(self, lease: Lease) -> None:
        pod = self._seen.holder(lease)
        claim = self._seen.claim_of(pod) if pod is not None else None
        if pod is not None and claim is not None and claim.gang is not None:
            lasts = self._config.reservation_seconds
            message = f"gang {claim.gang[1]} was not bound within {lasts} s of its reservation {lease.number}; its GPUs are taken back, and it is planned again"
            self._event(pod, "GangTimedOut", message)

    # --- pods

    async def _reconcile_pod(self, key: Key) -> float | None:
        pod = self._seen.pod(key)
        waits = [await self._relock(key, pod), await self._ungate(pod) if pod else None]
        return min((seconds for seconds in waits if seconds is not None), default=None)

    def _left(self, since: str, value: object, seconds: float) -> float | None:
        """The rest of the ``seconds`` for which ``since`` has had ``value``; None after them."""
        waited = self._since.note(since, value, self._client.clock())
        return seconds - waited + _MARGIN if waited < seconds else None

    async def _relock(self, key: Key, pod: Pod | None) -> float | None:
        """Make Leases again that somebody has deleted of a pod that runs, where they are not there
        after a while: a mirror of leases may be behind that of pods.
        """
        seen, since = self._seen, f"lost {'/'.join(key)}"
        placed = pod.placed if pod is not None else None
        node = placed.node if placed is not None else ""
        if pod is None or all(other.key != key for other, *_ in seen.unlocked(node)):
            self._since.forget(since)
            return None
        if (left := self._left(since, pod.uid, _LOST_FOR)) is not None:
            return left
        taken = await self._executor.run(relock(pod, seen.look), _BUDGET)
        if taken.created:
            self._metrics.relocked.inc(len(taken.created))
            log.warning("lost lease made again", pod="/".join(key), leases=sorted(taken.created))
            self._wakes.set()
        for reason_, message in relocked(node, taken, seen.lease):
            self._event(pod, reason_, message)
        return self._config.seconds("sweep") if taken.busy or taken.broken else _AGAIN

    async def _ungate(self, pod: Pod) -> float | None:
        if pod.deleting:
            return None
        if pod.claim and pod.bound and pod.allocated is None and not pod.ended:
            message = "it was bound by somebody else than the GPU scheduler, and sees no GPU"
            self._event(pod, "GpusNotAllocated", message)
            return None
        if why := self._seen.miscount(pod):
            self._event(pod, "GpuCountDiffers", why)
            return None
        claim = self._seen.claim_of(pod)
        if desired.opens(pod, claim):
            await self._patch(pod, ungate=True)
        elif pod.gated and claim is None:
            since = f"claim of {'/'.join(pod.key)}"
            if (left := self._left(since, pod.uid, CLAIM_PATIENCE)) is not None:
                return left
            absent = f"no GpuClaim {pod.claim} in this namespace; create it, or the pod waits"
            self._event(pod, "GpuClaimMissing", f"there is {absent}")
        return None

    async def _patch(
        self, pod: Pod, annotations: dict[str, str] | None = None, *, ungate: bool = False
    ) -> None:
        """Where it has changed meanwhile nothing is written: that event comes by itself."""
        patch = pod_patch(pod, annotations or {}, ungate=ungate)
        with contextlib.suppress(PreconditionFailed, Conflict, NotFound):
            await self._client.strategic_patch(pod_path(pod.key), patch)

    # --- claims

    async def _reconcile_claim(self, key: Key) -> float | None:
        seen = self._seen
        claim = seen.claim(key)
        if claim is None:
            self._phases.pop(key, None)
            return None
        possible = not seen.nodes.store or desired.could_ever(claim, seen.views().values())
        wanted = desired.status(claim, seen.pods_of(key), seen.held_by, possible=possible)
        if self._phases.get(key) == (claim.uid, wanted):
            return None
        gone = dict.fromkeys(("nodeName", "gpuIds", "allocated"))
        path = f"/apis/{names.API_VERSION}/namespaces/{key[0]}/gpuclaims/{key[1]}/status"
        with contextlib.suppress(NotFound):
            await self._client.merge_patch(path, {"status": {**gone, **wanted}})
            self._phases[key] = claim.uid, wanted
        return None

    def _reconcile_failed(self) -> None:
        """Reconcile claims for which no node would ever do: another node may."""
        for claim, (_, status) in self._phases.items():
            if status["phase"] == "Failed":
                self._claims.add(claim)

    # --- nodes

    async def _reconcile_node(self, key: Key) -> float | None:
        seen, name = self._seen, key[1]
        node, inventory = seen.nodes.get(name), seen.inventory(name)
        if node is None:
            self._unknown.pop(name, None)
            return await self._forget(name) if inventory is not None else None
        self._since.forget(f"node {name}")
        if inventory is None:
            return None
        self._report_unknown(node, inventory)
        given = not inventory.conflicts or self._config.device_plugin == "ignore"
        if not given:
            self._event(node, "DevicePluginConflict", shared(inventory.conflicts))
        leases = {gpu: lease for gpu, lease in seen.leases_on(name) if lease.ours}
        self._report_sick(name, inventory, leases)
        if not inventory.devices and (inventory.problems or inventory.reason):
            return None  # with less than its pods have a kubelet that starts anew would refuse them
        wanted = desired.capacity(inventory, {*leases, *seen.others(name)}, given=given)
        patch = desired.capacity_patch(node, self._config.count_resource, wanted)
        if patch is not None:
            with contextlib.suppress(NotFound):
                await self._client.merge_patch(f"/api/v1/nodes/{name}/status", patch)
        return None

    async def _forget(self, name: str) -> float | None:
        """The status of a node that is gone goes too, but not at once: nodes register again."""
        if (left := self._left(f"node {name}", True, self._config.seconds("sweep"))) is not None:
            return left
        self._since.forget(f"node {name}")
        with contextlib.suppress(NotFound):
            await self._client.delete(f"{names.STATUSES}/{name}")
            log.info("the status of a node that is gone is deleted", node=name)
        return None

    def _report_unknown(self, node: Node, inventory: Inventory) -> None:
        """Whoever names a GPU that the node does not have takes none out, and does not know."""
        listed = set(inventory.uuids.values()) - {""}
        named = complaints(node, self._config.node_conditions) if listed else {}
        unknown = sorted(named.keys() - listed - {""})
        if unknown:
            which = "; ".join(f"{named[uuid]} names {uuid:.64}" for uuid in unknown[:4])
            self._event(node, "UnknownGpu", f"{which}, which is no GPU of this node")
        self._unknown[node.name] = len(unknown)
        self._metrics.unknown.set(sum(self._unknown.values()))

    def _report_sick(self, node: str, inventory: Inventory, leases: Mapping[int, Lease]) -> None:
        """A pod keeps a GPU that turned sick, and gets one Event that says so."""
        for device in inventory.devices:
            lease = leases.get(device.id)
            pod = self._seen.holder(lease) if lease and device.health == "Unhealthy" else None
            if pod is not None and pod.bound and not pod.ended:
                why = device.reason or "no reason given"
                message = f"GPU {device.id} of {node} is unhealthy: {why}"
                self._event(pod, "GpuUnhealthy", message, once=f"GpuUnhealthy {device.id}")

    # --- pods that were rejected

    async def _wake_rejected(self) -> None:
        """Write on pods that an extender has rejected, for which kube-scheduler waits. Once more
        without a change: the extender may have heard of it later, a write may fail, and the pod
        that was woken may not fit for reasons that are not seen here.
        """
        pause = most = self._config.seconds("sweep")
        while True:
            with anyio.move_on_after(pause):
                await self._wakes.wait()
            changed = self._wakes.is_set()
            pause = min(_WAKE_AGAIN, most) if changed else min(pause * 2, most)
            self._wakes = anyio.Event()
            await anyio.sleep(_WAKE_REST)
            seen = self._seen
            views = seen.views().items()
            free = {name: view.free.bit_count() for name, view in views if not view.blocked}
            before = self._free if changed else {}
            more = {name: count for name, count in free.items() if count > before.get(name, 0)}
            self._free = free
            waiting = [
                (pod, claim)
                for pod in (seen.pods.by_index("unbound", "") if more else ())
                if (claim := seen.claim_of(pod)) is not None
                and not (seen.miscount(pod) or seen.held_by(pod.uid))
            ]
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            for pod in desired.wake_unschedulable(waiting, more, again=not changed):
                try:
                    await self._patch(pod, {names.NUDGED_ANNOTATION: now})
                except KubeError as error:
                    log.warning("pod requeue failed", pod="/".join(pod.key), error=str(error))
