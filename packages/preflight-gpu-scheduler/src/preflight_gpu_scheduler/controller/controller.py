"""What the leader keeps right: leases of pods that have gone, gates, capacity, claims' status,
nudges. Gangs are :mod:`.gang_controller`'s.

Whatever changed is looked at again, each thing once and by one worker at a time; a sweep looks at
all leases.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import anyio
from preflight_kube.client.client import Client, Conflict, KubeError, NotFound, PreconditionFailed
from preflight_kube.logs import get_logger
from preflight_kube.runtime.workqueue import Queue

from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.gpu_node_status import Inventory
from preflight_gpu_scheduler.api.node_conditions import complaints
from preflight_gpu_scheduler.api.types import Lease, Node, Pod
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.controller.apply import Executor, pod_path
from preflight_gpu_scheduler.controller.cache import GpuCache
from preflight_gpu_scheduler.controller.events import GpuEventRecorder, relocked, shares
from preflight_gpu_scheduler.controller.gang_controller import GangController
from preflight_gpu_scheduler.core import claim_status as statuses
from preflight_gpu_scheduler.core import desired_patches
from preflight_gpu_scheduler.core.desired_patches import Gate
from preflight_gpu_scheduler.core.lease_state import LeaseState, Sightings, is_own, judge, reason
from preflight_gpu_scheduler.core.leases import relock
from preflight_gpu_scheduler.core.reclaim import Done, collect
from preflight_gpu_scheduler.core.snapshot import Key
from preflight_gpu_scheduler.metrics import GpuControllerMetrics

__all__ = ["CLAIM_PATIENCE", "Controller"]

log = get_logger(__name__)

CLAIM_PATIENCE: Final = 5.0
"""Seconds that a pod waits for its claim before an Event says so."""
WORKERS: Final = 4
_HELD_FOR: Final = 2.0
"""Seconds after which a pod that holds GPUs and is not bound gets an Event that says so."""
_LOST_FOR: Final = 1.0
"""Seconds for which a bound pod's lease is not seen before it is made again."""
_STATUS_REST: Final = 1.0
_AGAIN: Final = 1.0
_NUDGE_REST: Final = 0.2
_NUDGE_AGAIN: Final = 2.0
"""Seconds from a nudge to the next; each takes twice as long as the one before, up to ``sweep``."""


class Controller:
    """``client``: fenced, so that nothing is written once another may lead."""

    def __init__(
        self, client: Client, config: Config, seen: GpuCache, metrics: GpuControllerMetrics
    ) -> None:
        self._client, self._config, self._seen, self._metrics = client, config, seen, metrics
        self._executor = Executor(client, config, seen, metrics)
        self._unchanged = Sightings()
        self._since, self._lost = Sightings(), Sightings()
        self._leases, self._gates = Queue("lease"), Queue("pod")
        self._claims = Queue("claim", rest=self._status_rest)
        self._nodes, self._locks = Queue("node"), Queue("lock")
        self._nudge = anyio.Event()
        self._free: dict[str, int] = {}
        self._said: dict[Key, dict[str, Any]] = {}
        self._sick: set[tuple[str, int]] = set()
        self._unplaced: set[Key] = set()
        # What Events were written about: reservations by pod; UUIDs that are named and no GPU's,
        # and who else hands out GPUs, by node.
        self._reserved: dict[Key, tuple[str, int]] = {}
        self._unknown: dict[str, tuple[str, ...]] = {}
        self._conflicts: dict[str, tuple[str, ...]] = {}
        self._events = GpuEventRecorder(client)
        say = self._events.of_pod
        self._gangs = GangController(seen, metrics, self._executor, say)

    async def lead(self) -> None:
        """Until cancelled. Begins with a look at everything."""
        seen = self._seen
        await seen.wait_synced()
        seen.listeners.append(self._changed)
        try:
            for pod in list(seen.pods):
                self._changed("pod", pod)
            for claim in list(seen.claims):
                self._changed("claim", claim)
            for node in seen.nodes.keys() | seen.inventories.keys():
                self._changed("node", ("", node))
            async with anyio.create_task_group() as group:
                for _ in range(WORKERS):
                    group.start_soon(self._leases.work, self._collect)
                looks: Sequence[tuple[Queue, Callable[[Key], Awaitable[float | None]]]] = (
                    (self._gates, self._ungate),
                    (self._claims, self._tell),
                    (self._nodes, self._count),
                    (self._locks, self._relock),
                )
                for queue, look in looks:
                    for _ in range(2):
                        group.start_soon(queue.work, look)
                group.start_soon(self._sweep)
                group.start_soon(self._nudging)
                group.start_soon(self._gangs.run)
        finally:
            seen.listeners.remove(self._changed)

    def _status_rest(self, claim: Key) -> float:
        """Seconds between two writes of a claim's status; what it says of thousands of pods is a
        look at each of them.
        """
        return max(_STATUS_REST, len(self._seen.by_claim.get(claim, ())) * _STATUS_REST / 1000)

    # --- what changed

    def _changed(self, kind: str, key: Key) -> None:
        seen = self._seen
        if kind == "pod":
            pod = seen.pods.get(key)
            if pod is not None:
                self._gate(pod)
                if pod.claim and pod.placed is not None:
                    self._locks.add(key)
                if pod.claim:
                    self._claims.add((key[0], pod.claim))
            self._placed(key, pod)
            for name in seen.leases_for(key):
                self._leases.add((key[0], name))
        elif kind == "claim":
            self._claims.add(key)
            for pod in seen.pods_of([key]):
                self._gate(pod)
            self._nudge.set()
        elif kind == "node":
            self._nodes.add(key)
            self._nudge.set()
        elif kind == "lease":
            lease = seen.lease(key[1])
            if lease is not None:
                self._queue(lease)
            found = names.split_lease_name(key[1])
            gpu = lease.gpu if lease is not None else None
            node = gpu[0] if gpu is not None else found[0] if found else ""
            if node in seen.nodes:
                self._nodes.add(("", node))
            if lease is None:
                self._unchanged.forget(key[1])
                self._nudge.set()
                for unlocked, *_ in seen.unlocked(node):
                    self._locks.add(unlocked.key)
            elif (
                lease.pod is not None
                and (pod := seen.pods.get(lease.pod)) is not None
                and pod.claim
            ):
                self._claims.add((pod.metadata.namespace, pod.claim))
        if kind == "claim" or (kind in {"pod", "lease"} and seen.ganged):
            self._gangs.look()

    def _gate(self, pod: Pod) -> None:
        if pod.gated or _unallocated(pod) or self._seen.miscount(pod):
            self._gates.add(pod.key)

    def _placed(self, key: Key, pod: Pod | None) -> None:
        """Note which pods wait for a node: those are nudged."""
        if pod is not None and pod.claim and not pod.bound:
            self._unplaced.add(key)
        elif key in self._unplaced:
            self._unplaced.discard(key)
            self._reserved.pop(key, None)

    def _queue(self, lease: Lease) -> None:
        """By the holder's namespace: one that has many leases to collect does not
        hold up another.
        """
        self._leases.add(((lease.pod or ("", ""))[0], lease.metadata.name))

    # --- collection

    async def _collect(self, key: Key) -> float | None:
        seen, name = self._seen, key[1]
        lease = seen.leases.get(name)
        if lease is None or not lease.locks:
            return None
        now = self._client.clock()
        age = self._unchanged.note(name, (lease.metadata.uid, lease.spec.renew_time), now)
        lasts = lease.spec.lease_duration_seconds or self._config.reservation_seconds
        sight = seen.look(lease.pod or ("", ""))
        state = judge(lease, sight, over=age > lasts)
        if state is LeaseState.HELD:
            return None
        if state is LeaseState.LINGERING:
            return _AGAIN
        if state is LeaseState.RESERVED:
            if age < _HELD_FOR:
                return _HELD_FOR - age + 0.05
            await self._tell_reserved(lease, lasts)
            return max(0.05, lasts - age + 0.05)
        siblings = seen.held_by(lease.holder)
        done = await self._executor.run(collect(lease, siblings, seen.look, over=age > lasts), 30.0)
        about = {"lease": name, "pod": "/".join(lease.pod or ())}
        if done is Done.COLLECTED:
            why = reason(lease, sight)
            self._metrics.collected.labels(why).inc()
            log.info("collected", why=why, **about)
        elif done is Done.RECLAIMED:
            self._metrics.reclaimed.inc()
            log.info("reclaimed", **about)
            await self._tell_gang(lease)
        if done is Done.AGAIN:
            return _AGAIN
        return lasts if done is Done.KEPT else None

    async def _sweep(self) -> None:
        while True:
            states: dict[str, int] = {one.value: 0 for one in LeaseState}
            for lease in list(self._seen.leases.values()):
                state = judge(lease, self._seen.look(lease.pod or ("", "")))
                states[state.value] += 1
                if state is not LeaseState.HELD:
                    self._queue(lease)
            for name, number in states.items():
                self._metrics.leases.labels(name).set(number)
            self._metrics.stale.set(self._seen.stale())
            unlocked = {
                pod.key for node in self._seen.nodes for pod, *_ in self._seen.unlocked(node)
            }
            self._metrics.unlocked.set(len(unlocked))
            for key in unlocked:
                self._locks.add(key)
            phases = Counter(str(one["phase"]) for one in self._said.values())
            self._metrics.counted(phases, self._seen.device_states())
            await anyio.sleep(self._config.seconds("sweep"))

    async def _relock(self, key: Key) -> float | None:
        """Leases that somebody has deleted of a pod that runs; no pod is placed on its node before.

        A mirror of leases may be behind that of pods, so it is looked at again after a while.
        """
        seen, pod = self._seen, self._seen.pods.get(key)
        placed = pod.placed if pod is not None else None
        node = placed.node if placed is not None else ""
        if pod is None or all(its.key != key for its, *_ in seen.unlocked(node)):
            self._lost.forget("/".join(key))
            return None
        waited = self._lost.note("/".join(key), pod.metadata.uid, self._client.clock())
        if waited < _LOST_FOR:
            return _LOST_FOR - waited + 0.05
        taken = await self._executor.run(relock(pod, seen.look), 30.0)
        if taken.created:
            self._metrics.relocked.inc(len(taken.created))
            log.warning("locked again", pod="/".join(key), leases=sorted(taken.created))
            self._nudge.set()
        for event, said in relocked(node, taken, seen.lease):
            await self._events.of_pod(pod, event, said)
        return self._config.seconds("sweep") if taken.busy or taken.broken else _AGAIN

    async def _tell_reserved(self, lease: Lease, lasts: float) -> None:
        """Once of a reservation; a gang's members have had their Events when they were planned."""
        pod = self._seen.pods.get(lease.pod or ("", ""))
        if pod is None or pod.reserved is not None:
            return
        reservation = (pod.metadata.uid, lease.number)
        if self._reserved.get(pod.key) == reservation:
            return
        self._reserved[pod.key] = reservation
        held = [one.gpu for one in self._seen.held_by(pod.metadata.uid) if is_own(one, pod)]
        gpus = sorted(gpu for gpu in held if gpu is not None)
        listed = ", ".join(f"{gpu} of {node}" for node, gpu in gpus)
        which = f"GPU{'s' if len(gpus) > 1 else ''} {listed}"
        said = f"it holds {which} for {lasts:g} s, and is not bound to its node yet"
        await self._events.of_pod(pod, "GpusReserved", said, True)

    async def _tell_gang(self, lease: Lease) -> None:
        pod = self._seen.pods.get(lease.pod) if lease.pod is not None else None
        claim = self._seen.claim_of(pod) if pod is not None else None
        if pod is None or claim is None or claim.gang is None or pod.metadata.uid != lease.holder:
            return
        await self._events.of_pod(
            pod,
            "GangTimedOut",
            f"gang {claim.gang[1]} was not bound within {self._config.reservation_seconds} s of its reservation {lease.number}; its GPUs "
            "are taken back, and it is planned again",
        )

    # --- gates

    async def _ungate(self, key: Key) -> float | None:
        pod = self._seen.pods.get(key)
        if pod is None or pod.deleting:
            return None
        if _unallocated(pod):
            await self._events.of_pod(
                pod,
                "GpusNotAllocated",
                "it was bound by somebody else than the GPU scheduler, and sees no GPU",
            )
            return None
        claim = self._seen.claim_of(pod)
        if why := self._seen.miscount(pod):
            await self._events.of_pod(pod, "GpuCountDiffers", why)
            return None
        what = desired_patches.gate(pod, claim)
        if what is Gate.REMOVE:
            # Where it changed meanwhile it is looked at again.
            with contextlib.suppress(PreconditionFailed, Conflict, NotFound):
                await self._client.json_patch(pod_path(key), desired_patches.gate_patch(pod))
            return None
        if what is Gate.WAIT_CLAIM:
            waited = self._since.note("/".join(key), pod.metadata.uid, self._client.clock())
            if waited < CLAIM_PATIENCE:
                return CLAIM_PATIENCE - waited
            await self._events.of_pod(
                pod,
                "GpuClaimMissing",
                f"there is no GpuClaim {pod.claim} in this namespace; create it, or the pod waits",
            )
        return None

    # --- claims

    async def _tell(self, key: Key) -> float | None:
        seen = self._seen
        claim = seen.claims.get(key)
        if claim is None or isinstance(claim, list):
            self._said.pop(key, None)
            return None
        pods = seen.pods_of([key])
        unbound = (pod for pod in pods if not pod.bound)
        leases = [lease for pod in unbound for lease in seen.held_by(pod.metadata.uid)]
        views = seen.views()
        kinds = list(views.values())
        if not claim.spec.selector.match_labels:  # nodes of one topology differ by labels
            kinds = list({id(one.slots): one for one in kinds}.values())
        slots = [(one.slots, dict(one.labels)) for one in kinds]
        possible = not views or statuses.could_ever(claim, slots)
        wanted = statuses.status(claim, pods, leases, possible=possible)
        if self._said.get(key) == wanted:
            return None
        gone = dict.fromkeys(("nodeName", "gpuIds", "allocated"))
        path = f"/apis/{names.API_VERSION}/namespaces/{key[0]}/gpuclaims/{key[1]}/status"
        try:
            await self._client.merge_patch(path, {"status": {**gone, **wanted}})
        except NotFound:
            return None
        self._said[key] = wanted
        return None

    # --- capacity

    async def _count(self, key: Key) -> float | None:
        node, inventory = self._seen.nodes.get(key[1]), self._seen.inventories.get(key[1])
        if node is None:
            self._unknown.pop(key[1], None)
            return await self._forget(key[1]) if inventory is not None else None
        self._since.forget(key[1])
        if inventory is None:
            return None
        await self._tell_unknown(node, inventory)
        if inventory.conflicts and self._conflicts.get(key[1]) != inventory.conflicts:
            await self._events.of_node(node, "DevicePluginConflict", shares(inventory.conflicts))
        self._conflicts[key[1]] = inventory.conflicts
        leases = {gpu: lease for gpu, lease in self._seen.leases_on(key[1]) if lease.ours}
        await self._tell_sick(key[1], inventory, leases)
        leased = {*leases, *self._seen.others(key[1])}
        wanted = desired_patches.capacity(inventory, leased)
        patch = desired_patches.capacity_patch(node, self._config.count_resource, wanted)
        if patch is not None:
            with contextlib.suppress(NotFound):
                await self._client.json_patch(f"/api/v1/nodes/{key[1]}/status", patch)
        return None

    async def _forget(self, name: str) -> float | None:
        """The status of a node that is gone goes too, but not at once: nodes register again."""
        waited, rest = (
            self._since.note(name, True, self._client.clock()),
            self._config.seconds("sweep"),
        )
        if waited < rest:
            return rest - waited + 0.05
        self._since.forget(name)
        with contextlib.suppress(NotFound):
            await self._client.delete(f"{names.STATUSES}/{name}")
            log.info("the status of a node that is gone is deleted", node=name)
        return None

    async def _tell_unknown(self, node: Node, inventory: Inventory) -> None:
        """Whoever names a GPU that the node does not have takes none out, and does not know."""
        name, listed = node.metadata.name, set(inventory.uuids.values()) - {""}
        named = complaints(node, self._config.node_conditions).by_uuid if listed else {}
        unknown = tuple(sorted(named.keys() - listed))
        if unknown and self._unknown.get(name) != unknown:
            said = "; ".join(f"{named[uuid]} names {uuid:.64}" for uuid in unknown[:4])
            await self._events.of_node(node, "UnknownGpu", f"{said}, which is no GPU of this node")
        self._unknown[name] = unknown
        self._metrics.unknown.set(sum(map(len, self._unknown.values())))

    async def _tell_sick(
        self, node: str, inventory: Inventory, leases: Mapping[int, Lease]
    ) -> None:
        """A pod keeps a GPU that turned sick, and gets one Event that says so."""
        for device in inventory.devices:
            lease = leases.get(device.id)
            if device.health != "Unhealthy" or lease is None or lease.pod is None:
                continue
            pod = self._seen.pods.get(lease.pod)
            if pod is None or not pod.bound or pod.ended or pod.metadata.uid != lease.holder:
                continue
            if (lease.holder, device.id) in self._sick:
                continue
            self._sick.add((lease.holder, device.id))
            await self._events.of_pod(
                pod,
                "GpuUnhealthy",
                f"GPU {device.id} of {node} is unhealthy: {device.reason or 'no reason given'}",
            )

    # --- nudges

    async def _nudging(self) -> None:
        """A pod that an extender has rejected waits for some event of the cluster: a write on it is
        one.

        Once more without a change: the extender may have heard of it later than this process, a
        write may fail, and the pod that was nudged may not fit for reasons that are not seen here.
        """
        pause = most = self._config.seconds("sweep")
        while True:
            with anyio.move_on_after(pause):
                await self._nudge.wait()
            changed = self._nudge.is_set()
            pause = min(_NUDGE_AGAIN, most) if changed else min(pause * 2, most)
            self._nudge = anyio.Event()
            await anyio.sleep(_NUDGE_REST)
            seen = self._seen
            free = {
                name: one.free.bit_count() for name, one in seen.views().items() if not one.blocked
            }
            before = self._free if changed else {}
            more = {name: count for name, count in free.items() if count > before.get(name, 0)}
            self._free = free
            waiting = []
            unplaced = (seen.pods[key] for key in self._unplaced if more and key in seen.pods)
            for pod in unplaced:
                claim = seen.claim_of(pod)
                if claim is None or pod.bound or seen.miscount(pod):
                    continue
                if not seen.held_by(pod.metadata.uid):
                    waiting.append((pod, claim))
            for pod in desired_patches.nudged(waiting, more, again=not changed) if more else ():
                word = datetime.now(UTC).isoformat(timespec="milliseconds")
                try:
                    await self._client.json_patch(
                        pod_path(pod.key), desired_patches.nudge_patch(pod, word)
                    )
                except (PreconditionFailed, Conflict, NotFound):
                    continue  # it has changed, which is an event by itself
                except KubeError as error:
                    log.warning("not nudged", pod="/".join(pod.key), error=str(error))


def _unallocated(pod: Pod) -> bool:
    """Whether it names a claim, and was bound without GPUs: a Binding of ours carries both in one
    write.
    """
    return bool(pod.claim) and pod.bound and pod.allocated is None and not pod.ended
