"""What one process sees of the cluster, what it has written since, as the kit's caches have it, and
what it holds in memory for binds under way. It is of one event loop, and nothing of it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from preflight_gpu_scheduler.api import messages, names
from preflight_gpu_scheduler.api.claim import Claim
from preflight_gpu_scheduler.api.gpu_node_status import Inventory
from preflight_gpu_scheduler.api.types import Lease, Node, Pod
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.core.filter_prioritize import NodeView, known, view
from preflight_gpu_scheduler.core.ledger import FirstSeen, Holder, LeaseState, Ledger, judge
from preflight_gpu_scheduler.core.protocol import Answer, DeleteLease, ReadLease, ReadPod, Request
from preflight_gpu_scheduler.core.protocol import Stored as Done

Key = tuple[str, str]
T = TypeVar("T")


class _ObjectStore(Protocol[T]):
    """The kit's cache of one kind, by ``namespace/name``, name, or uid (leases)."""

    @property
    def synced(self) -> Any: ...
    @property
    def store(self) -> Mapping[str, T]: ...
    def get(self, key: str) -> T | None: ...
    def by_index(self, name: str, value: str) -> list[T]: ...
    def count(self, name: str, value: str) -> int: ...
    def wrote(self, raw: Any) -> None: ...
    def deleted(self, key: str) -> None: ...


GpuStores = tuple[
    _ObjectStore[Pod],
    _ObjectStore[Node],
    _ObjectStore[Claim | list[str]],
    _ObjectStore[Inventory],
    _ObjectStore[Lease],
]


class GpuSnapshot:
    """``clock``: seconds, only forward. ``listeners``: called with what changed,
    ("pod", (namespace, name)), ("node", ("", name)), ("claim", …) or ("lease", ("", name)); a
    status counts as its node.
    """

    def __init__(self, clock: Callable[[], float], config: Config, stores: GpuStores) -> None:
        self.now, self._config, self._caches = clock, config, stores
        self.pods, self.nodes, self.claims, self.statuses, self.leases = stores
        self.listeners: list[Callable[[str, Key], None]] = []
        self._views: dict[str, NodeView] = {}
        self._dirty: set[str] = set()
        patience = config.seconds("stale_after")
        ledger = self._ledger = Ledger(clock, self.inventory, patience, self._dirty.add)
        self.hold, self.others = ledger.hold, ledger.others
        self._beats = FirstSeen()
        self._stale: set[str] = set()
        self._refreshed = float("-inf")

    @property
    def synced(self) -> bool:
        """Tell whether all of the cluster has been read once; PodGroups are not waited for."""
        return all(cache.synced.is_set() for cache in self._caches)

    # --- what is seen

    def pod(self, key: Key) -> Pod | None:
        """The newest that is known of the pod of this (namespace, name)."""
        return self.pods.get("/".join(key))

    def look(self, key: Key) -> Holder:
        """The pod of this (namespace, name), and whether leases of earlier ones are in use."""
        return Holder(self.pod(key), lingers=self._ledger.lingers)

    def claim(self, key: Key) -> Claim | None:
        """The claim of this (namespace, name); None where it is absent, or not valid."""
        claim = self.claims.get("/".join(key))
        return None if isinstance(claim, list) else claim

    def claim_of(self, pod: Pod) -> Claim | None:
        """The claim that the pod names; None where it is absent, or not valid."""
        return self.claim((pod.namespace, pod.claim)) if pod.claim else None

    def refusal_of(self, pod: Pod) -> str:
        """Why no node gives the pod a GPU, whatever is free there; empty where one may."""
        if self.claim_of(pod) is not None:
            return messages.COUNT_DIFFERS if self.miscount(pod) else ""
        invalid = self.claims.get(f"{pod.namespace}/{pod.claim}") is not None
        return messages.CLAIM_NOT_VALID if invalid else messages.CLAIM_NOT_FOUND

    def miscount(self, pod: Pod) -> str:
        """Why an unbound pod is never bound that was admitted, and counted, with another number of
        GPUs than its claim is for; empty where it may be, and where nothing is counted.
        """
        claim, resource = self.claim_of(pod), self._config.count_resource
        if claim is None or pod.bound or not resource:
            return ""
        if (asked := pod.counted(resource)) == claim.count:
            return ""
        number = "no whole number" if asked is None else asked
        return f"it asks for {number} of {resource}, and GpuClaim {claim.name} is for {claim.count}: it is never bound; delete it and create it again"

    def gang_claims(self) -> dict[Key, Claim]:
        """Those that name a gang."""
        claims = self.claims.by_index("ganged", "")
        return {(it.namespace, it.name): it for it in claims if isinstance(it, Claim)}

    def pods_of(self, claim: Key) -> list[Pod]:
        """The pods that name this claim."""
        return self.pods.by_index("claim", "/".join(claim))

    def lease(self, name: str) -> Lease | None:
        """The newest that is known."""
        part = (names.split_lease_name(name) or ("",))[0]
        return {lease.name: lease for lease in self.leases.by_index("node", part)}.get(name)

    def holder(self, lease: Lease) -> Pod | None:
        """The very pod that holds the lease, where a mirror shows it."""
        pod = self.pod(lease.pod) if lease.pod is not None else None
        return pod if pod is not None and pod.uid == lease.holder else None

    def stranded(self, lease: Lease) -> bool:
        """Tell whether the GPU that the lease was made for is gone, by its node's last word."""
        known, (_, gpu) = self.uuids(lease.node), lease.gpu or ("", -1)
        renumbered = known and lease.uuid and known.get(gpu, "") not in {"", lease.uuid}
        lost = lease.node not in self.nodes.store or (known and gpu not in known)
        return bool(lost or renumbered)

    def held_by(self, uid: str) -> list[Lease]:
        """The leases of which this pod is the holder."""
        return self.leases.by_index("holder", uid)

    def leases_on(self, node: str) -> Iterator[tuple[int, Lease]]:
        """(id, lease) of each GPU of ``node`` that has one, listed in its status or not."""
        leases = self.leases.by_index("node", names.lease_part(node))
        for lease in sorted(leases, key=lambda lease: lease.name):
            if (gpu := names.split_lease_name(lease.name)) is not None:
                yield gpu[1], lease

    def unlocked(self, node: str) -> Iterator[tuple[Pod, int, Lease | None]]:
        """(pod, id, lease) of each GPU of ``node`` that a pod has by its Binding or its plan, and
        whose lease is missing (None) or another pod's.
        """
        locks = dict(self.leases_on(node))
        for use in self._ledger.shown(node):
            for gpu in use.ids:
                lease = locks.get(gpu)
                if lease is None or lease.holder != use.pod.uid:
                    yield use.pod, gpu, lease

    def device_states(self) -> dict[str, dict[str, int]]:
        """By node, how many GPUs are leased, free, and neither: sick, unknown or cut up."""
        states = {}
        for name, inventory in self.statuses.store.items():
            leased = {gpu for gpu, _ in self.leases_on(name)} | self.others(name)
            leased &= {device.id for device in inventory.devices}
            free = sum(device.usable and device.id not in leased for device in inventory.devices)
            rest = len(inventory.devices) - len(leased) - free
            states[name] = {"leased": len(leased), "free": free, "unusable": rest}
        return states

    def inventory(self, node: str) -> Inventory | None:
        """The contents of the node's status."""
        status = self.statuses.get(node)
        return known(status, node, self._config) if node in self.nodes.store else status

    def uuids(self, node: str) -> Mapping[int, str]:
        """By id; empty where nothing is known of ``node``."""
        inventory = self.inventory(node)
        return inventory.uuids if inventory is not None else {}

    def view(self, name: str) -> NodeView:
        """The view of one node, known or not."""
        self._refresh()
        return self._views.get(name) or self._build_view(name)

    def views(self) -> Mapping[str, NodeView]:
        """Every node that is known."""
        self._refresh()
        return self._views

    def stale(self) -> int:
        """How many nodes have a status that is too old."""
        self._refresh()
        return len(self._stale & self._views.keys())

    # --- what this process does

    def let_go(self, node: str, pod: Pod, *, sent: bool = False) -> None:
        """Let others choose again what the pod held in memory on ``node``. ``sent``: its Binding
        may be stored: not before a mirror shows what became of it."""
        shown = self.pod(pod.key)
        bound = shown is not None and shown.uid == pod.uid and shown.bound
        self._ledger.let_go(node, pod, sent=sent and not bound)

    def record(self, request: Request, answer: Answer) -> None:
        """Take note of what a write of ours did."""
        if not isinstance(answer, Done) or isinstance(request, ReadLease | ReadPod):
            return
        if isinstance(request, DeleteLease):
            self.leases.deleted(request.lease.uid)
        elif isinstance(answer.object, Lease):
            self.leases.wrote(answer.object)
        elif isinstance(answer.object, Pod):
            self.pods.wrote(answer.object)

    # --- what the caches report

    def _pod_changed(self, pod: Pod, deleted: bool, before: Pod | None) -> None:
        if before is not None and before.uid != pod.uid:
            self._ledger.note(before, deleted=True, final=False)
        self._ledger.note(pod, deleted=deleted, final=pod is not before)  # a list shows the last
        self._dirty.update(lease.node for lease in self.held_by(pod.uid))
        self._notify("pod", pod.key)

    def _claim_changed(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        self._notify("claim", (namespace, name))

    def _status_changed(self, now: Inventory, deleted: bool, before: Inventory | None) -> None:
        name = now.node
        self._stale.discard(name)
        if deleted:
            self._beats.forget(name)
        else:
            self._beats.note(name, now.observed_time, self.now())
            same = before is not None and before == replace(now, observed_time=before.observed_time)
            if same and name in self._views and self._views[name].blocked == "":
                return  # a heartbeat
        self._node_touched(name)

    def _node_changed(self, node: Node, deleted: bool, before: Node | None) -> None:
        another = deleted or (before is not None and before.uid != node.uid)
        status = self.statuses.get(node.name)
        if another and status is not None and status.observed_time is not None:
            self._stale.add(node.name)  # it speaks of the machine before
        self._node_touched(node.name)

    def _node_touched(self, name: str) -> None:
        self._dirty.add(name)
        self._notify("node", ("", name))

    def _lease_changed(self, lease: Lease, *_: object) -> None:
        self._dirty.add(lease.node)
        self._notify("lease", ("", lease.name))

    # --- views

    def _notify(self, kind: str, key: Key) -> None:
        for listener in self.listeners:
            listener(kind, key)

    def _refresh(self) -> None:
        now = self.now()
        if now - self._refreshed >= 1.0:
            self._refreshed = now
            self.leases.get("")  # what was written and is never shown goes
            patience = self._config.seconds("stale_after")
            self._ledger.forget(lambda uid: bool(self.held_by(uid)))
            for name, inventory in self.statuses.store.items():
                late = self._beats.note(name, inventory.observed_time, now) > patience
                if late and inventory.observed_time is not None and name not in self._stale:
                    self._stale.add(name)
                    self._dirty.add(name)
        dirty = tuple(self._dirty)
        self._dirty.clear()
        for name in dirty:
            if self.nodes.get(name) is not None:
                self._views[name] = self._build_view(name)
            else:
                self._views.pop(name, None)

    def _build_view(self, name: str) -> NodeView:
        inventory = self.inventory(name)
        return view(
            self.nodes.get(name),
            inventory,
            self.busy(name),
            self._config,
            ended=self._ledger.ended,
            unlocked=any(lease is None for *_, lease in self.unlocked(name)),
            stale=name in self._stale,
        )

    def busy(self, name: str) -> frozenset[int]:
        """Ids of the node that others have, or whose leases cannot be taken over; a GPU that has
        got another id since its lease was made is busy under both.
        """
        busy = set(self.others(name))
        numbers = {uuid: gpu for gpu, uuid in self.uuids(name).items() if uuid}
        for gpu, lease in self.leases_on(name):
            state = judge(lease, self.look(lease.pod or ("", "")))
            if state not in {LeaseState.FREE, LeaseState.UNSURE}:
                busy.add(gpu)
            now = numbers.get(lease.uuid, gpu)
            if now != gpu and state is not LeaseState.FREE:
                busy.add(now)
        return frozenset(busy)
