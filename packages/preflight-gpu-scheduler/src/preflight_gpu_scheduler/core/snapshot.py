"""What one process sees of the cluster: pods, nodes, claims, statuses and leases, and what it has
written since.

Everything in it is of one event loop, and nothing of it waits. A lease that this process created
counts from the answer on, before a mirror shows it; what it holds in memory for a bind under way
counts from the choice on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from preflight_kube.runtime.indexes import Index

from preflight_gpu_scheduler.api import gpu_node_status as inventories
from preflight_gpu_scheduler.api import messages, names
from preflight_gpu_scheduler.api.claim import Claim, RawClaim
from preflight_gpu_scheduler.api.gpu_node_status import Inventory
from preflight_gpu_scheduler.api.types import Lease, Metadata, Node, Pod
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.core import desired_patches
from preflight_gpu_scheduler.core.filter_prioritize import NodeView
from preflight_gpu_scheduler.core.gpu_selection import Topology
from preflight_gpu_scheduler.core.lease_state import Sight, Sightings
from preflight_gpu_scheduler.core.ledger import Ledger
from preflight_gpu_scheduler.core.node_view import busy_ids, known, view
from preflight_gpu_scheduler.core.protocol import Answer, CreateLease, DeleteLease, Request, Stored

__all__ = ["GpuSnapshot", "Key", "RawStatus"]

Key = tuple[str, str]
_UNSEEN: Final = 10.0
"""Seconds after which a lease of our own making that no mirror has shown is believed gone again."""


class RawStatus(msgspec.Struct, frozen=True):
    """A GpuNodeStatus before it is read."""

    metadata: Metadata
    spec: Any = None
    status: Any = None


class GpuSnapshot:
    """``clock``: seconds, only forward. ``listeners``: called with what changed,
    ("pod", (namespace, name)), ("node", ("", name)), ("claim", …) or ("lease", ("", name)).

    A node's status counts as a change of the node.
    """

    def __init__(self, clock: Callable[[], float], config: Config) -> None:
        self.now, self._config = clock, config
        self.pods: dict[Key, Pod] = {}
        self.nodes: dict[str, Node] = {}
        self.claims: dict[Key, Claim | list[str]] = {}
        self.inventories: dict[str, Inventory] = {}
        self.leases: dict[str, Lease] = {}
        self._by_holder = Index[Lease](lambda lease: (lease.holder,))
        self._by_pod = Index[Lease](lambda lease: ("/".join(lease.pod or ()),))
        self.by_claim: dict[Key, set[Key]] = {}
        self.ganged: set[Key] = set()  # claims that name a gang
        self.listeners: list[Callable[[str, Key], None]] = []
        self._written: dict[str, tuple[Lease, float]] = {}
        self._on: dict[str, set[str]] = {}  # names of leases by node
        self._views: dict[str, NodeView] = {}
        self._dirty: set[str] = set()
        self._ledger = Ledger(self._touched)
        self._topologies: dict[Topology, Topology] = {}
        self._beats = Sightings()
        self._stale: set[str] = set()
        self._looked = float("-inf")

    @property
    def synced(self) -> bool:
        """Whether all of the cluster has been read once."""
        return True

    def groups(self) -> Mapping[Key, int]:
        """The least number of members that each PodGroup asks for; empty where none is mirrored."""
        return {}

    # --- what is seen

    def look(self, pod: Key) -> Sight:
        """The pod of this (namespace, name) as the mirror has it."""
        shown = self.pods.get(pod)
        uid = shown.metadata.uid if shown is not None else ""
        others = (self.leases[name] for name in self.leases_for(pod))
        left = (one for one in others if one.holder != uid and self._lingers(one))
        return Sight(shown, lingering=frozenset(one.metadata.name for one in left))

    def _observed(self, node: str) -> str | None:
        found = self.inventories.get(node)
        return found.observed if found is not None else None

    def _lingers(self, lease: Lease) -> bool:
        found = self.inventories.get(_node_of(lease))
        patience = self._config.seconds("stale_after")
        return self._ledger.lingers(lease, found, self.now(), patience)

    def claim_of(self, pod: Pod) -> Claim | None:
        """The claim; None where it is absent, or not valid."""
        found = self.claims.get((pod.metadata.namespace, pod.claim)) if pod.claim else None
        return None if isinstance(found, list) else found

    def refusal_of(self, pod: Pod) -> str:
        """Why no node gives the pod a GPU, whatever is free there; empty where one may."""
        if self.claim_of(pod) is None:
            invalid = (pod.metadata.namespace, pod.claim) in self.claims
            return messages.CLAIM_NOT_VALID if invalid else messages.CLAIM_NOT_FOUND
        return messages.COUNT_DIFFERS if self.miscount(pod) else ""

    def miscount(self, pod: Pod) -> str:
        """Why an unbound pod is never bound, as in :mod:`.desired_patches`; empty where it may."""
        claim = self.claim_of(pod)
        if claim is None or pod.bound:
            return ""
        return desired_patches.miscount(pod, claim, self._config.count_resource)

    def gang_claims(self) -> dict[Key, Claim]:
        """Those that name a gang."""
        found = {key: self.claims[key] for key in self.ganged}
        return {key: one for key, one in found.items() if not isinstance(one, list)}

    def pods_of(self, claims: Iterable[Key]) -> list[Pod]:
        """The pods that name these claims."""
        keys = (key for claim in claims for key in self.by_claim.get(claim, ()))
        return [self.pods[key] for key in keys if key in self.pods]

    def lease(self, name: str) -> Lease | None:
        """As it was written here, while no mirror shows it, else as the mirror has it."""
        written = self._written.get(name)
        return written[0] if written is not None else self.leases.get(name)

    def leases_for(self, pod: Key) -> tuple[str, ...]:
        """The names of the leases that were made for a pod of this name."""
        return self._by_pod.keys("/".join(pod))

    def held_by(self, uid: str) -> list[Lease]:
        """The leases of which this pod is the holder."""
        found = {name: self.leases[name] for name in self._by_holder.keys(uid)}
        for name, (lease, _) in self._written.items():
            if lease.holder == uid:
                found[name] = lease
        return list(found.values())

    def ids(self, node: str) -> tuple[int, ...]:
        """Of the GPUs that the status of ``node`` names; empty where there is none."""
        found = known(self.inventories.get(node), node, self._config)
        return tuple(one.id for one in found.devices) if found is not None else ()

    def leases_on(self, node: str) -> Iterator[tuple[int, Lease]]:
        """(id, lease) of each GPU of ``node`` that has one, listed in its status or not."""
        wanted = {names.lease_name(node, gpu) for gpu in self.ids(node)}
        for name in sorted(wanted | self._on.get(node, set())):
            lease, gpu = self.lease(name), names.split_lease_name(name)
            if lease is not None and gpu is not None:
                yield gpu[1], lease

    def unlocked(self, node: str) -> Iterator[tuple[Pod, int, Lease | None]]:
        """(pod, id, lease) of each GPU of ``node`` that a pod has by its Binding or its plan, and
        whose lease is missing (None) or another pod's.
        """
        for use in self._ledger.shown(node):
            for gpu in use.ids:
                lease = self.lease(names.lease_name(node, gpu))
                if lease is None or lease.holder != use.pod.metadata.uid:
                    yield use.pod, gpu, lease

    def others(self, node: str, uid: str = "") -> frozenset[int]:
        """GPUs that pods but ``uid`` have by their Bindings, or that binds of theirs hold; and
        those of pods that vanished, until their containers are seen to have ended.
        """
        now, patience = self.now(), self._config.seconds("stale_after")
        self._ledger.settle(node, self.inventories.get(node), now, patience)
        return self._ledger.others(node, uid, self.uuids(node))

    def busy(self) -> dict[str, frozenset[int]]:
        """Ids by node that cannot be taken over."""
        return {name: self._busy(name) for name in self.inventories}

    def device_states(self) -> dict[str, dict[str, int]]:
        """By node, how many GPUs are leased, free, and neither: sick,
        unknown or cut into slices.
        """
        found = {}
        for name, inventory in self.inventories.items():
            leased = {gpu for gpu, _ in self.leases_on(name)} | self.others(name)
            leased &= {one.id for one in inventory.devices}
            free = sum(one.usable and one.id not in leased for one in inventory.devices)
            found[name] = {
                "leased": len(leased),
                "free": free,
                "unusable": len(inventory.devices) - len(leased) - free,
            }
        return found

    def uuids(self, node: str) -> Mapping[int, str]:
        """By id; empty where nothing is known of ``node``."""
        found = self.inventories.get(node)
        return found.uuids if found is not None else {}

    def view(self, name: str) -> NodeView:
        """Of one node, known or not."""
        self._refresh()
        return self._views.get(name) or self._seen(name)

    def views(self) -> Mapping[str, NodeView]:
        """Every node that is known."""
        self._refresh()
        return self._views

    def stale(self) -> int:
        """How many nodes have a status that is too old."""
        self._refresh()
        return len(self._stale)

    # --- what this process does

    def hold(self, node: str, ids: Iterable[int], pod: Pod) -> None:
        """From the choice on nobody else here chooses these; what the same pod held there before is
        let go.
        """
        self._ledger.hold(node, pod, ids, self.uuids(node))

    def let_go(self, node: str, pod: Pod, *, sent: bool = False) -> None:
        """What the pod held in memory on ``node`` may be chosen by others again. ``sent``: its
        Binding may be stored: not before a mirror shows what became of it.
        """
        shown = self.pods.get(pod.key)
        bound = shown is not None and shown.metadata.uid == pod.metadata.uid and shown.bound
        self._ledger.let_go(node, pod, sent=sent and not bound)

    def told(self, request: Request, answer: Answer) -> None:
        """Take note of what a request of ours did."""
        if (
            isinstance(request, CreateLease)
            and isinstance(answer, Stored)
            and isinstance(answer.found, Lease)
        ):
            shown = self.leases.get(request.name)
            if shown is None or shown.metadata.uid != answer.found.metadata.uid:
                self._written[request.name] = (answer.found, self.now())
            self._dirty.add(request.node)
        elif isinstance(request, DeleteLease) and isinstance(answer, Stored):
            about = request.lease.metadata
            written = self._written.get(about.name)
            if written is not None and written[0].metadata.uid == about.uid:
                self._forget(about.name)

    # --- what the mirrors report

    def pod_changed(self, pod: Pod, deleted: bool) -> None:
        """Take note of a pod as it is now, or was when it was deleted."""
        if deleted:
            shown = self.pods.get(pod.key)
            if shown is not None and shown.metadata.uid == pod.metadata.uid:
                del self.pods[pod.key]
                self._unclaimed(pod)
        else:
            self.pods[pod.key] = pod
            if pod.claim:
                self.by_claim.setdefault((pod.metadata.namespace, pod.claim), set()).add(pod.key)
        self._ledger.note(pod, self.now(), self._observed, deleted=deleted)
        for lease in self.held_by(pod.metadata.uid):
            self._dirty.add(_node_of(lease))
        self._say("pod", pod.key)

    def _unclaimed(self, pod: Pod) -> None:
        key = (pod.metadata.namespace, pod.claim)
        if (those := self.by_claim.get(key)) is not None:
            those.discard(pod.key)
            if not those:
                del self.by_claim[key]

    def node_changed(self, node: Node, deleted: bool) -> None:
        """Take note of a Node."""
        name = node.metadata.name
        if deleted:
            self.nodes.pop(name, None)
        else:
            self.nodes[name] = node
        self._dirty.add(name)
        self._say("node", ("", name))

    def claim_changed(self, raw: RawClaim, deleted: bool) -> None:
        """Take note of a GpuClaim."""
        about = raw.metadata
        key = (about.namespace, about.name)
        if deleted:
            self.claims.pop(key, None)
            self.ganged.discard(key)
        else:
            found = raw.read()
            if self.claims.get(key) == found:
                return  # its status, which nobody here reads
            self.claims[key] = found
            ganged = not isinstance(found, list) and found.gang is not None
            (self.ganged.add if ganged else self.ganged.discard)(key)
        self._say("claim", key)

    def claim_unreadable(self, about: Metadata, why: str) -> None:
        """Take note of why a claim cannot be read; empty where it can again, or has gone."""
        key = (about.namespace, about.name)
        if why:
            self.claims[key] = [f"cannot be read: {why}"]
            self.ganged.discard(key)
        elif isinstance(self.claims.get(key), list):
            del self.claims[key]

    def status_changed(self, raw: RawStatus, deleted: bool) -> None:
        """Take note of a GpuNodeStatus."""
        name = raw.metadata.name
        before = self.inventories.get(name)
        if deleted:
            self.inventories.pop(name, None)
            self._beats.forget(name)
        else:
            said = {"metadata": {"name": name}, "spec": raw.spec or {}, "status": raw.status or {}}
            self.inventories[name] = found = inventories.read(said)
            self._beats.note(name, found.observed, self.now())
            self._stale.discard(name)
            same = before is not None and msgspec.structs.replace(
                before, observed=None
            ) == msgspec.structs.replace(found, observed=None)
            if same and name in self._views and self._views[name].blocked == "":
                return  # a heartbeat
        self._dirty.add(name)
        self._say("node", ("", name))

    def status_unreadable(self, about: Metadata, why: str) -> None:
        """Believe nothing of such a node."""
        name = about.name
        if why:
            self.inventories[name] = Inventory(node=name, problems=(f"cannot be read: {why}",))
        else:
            self.inventories.pop(name, None)
        self._dirty.add(name)
        self._say("node", ("", name))

    def lease_changed(self, lease: Lease, deleted: bool) -> None:
        """Take note of a Lease."""
        name = lease.metadata.name
        old = self.leases.pop(name, None)
        written = self._written.get(name)
        if written is not None and written[0].metadata.uid == lease.metadata.uid:
            del self._written[name]
        on = self._on.setdefault(_node_of(lease), set())
        now = lease if not deleted else None
        if now is None and old is not None and old.metadata.uid != lease.metadata.uid:
            now = old  # its successor is known already
        (on.discard if now is None else on.add)(name)
        if now is not None:
            self.leases[name] = now
        for index in (self._by_holder, self._by_pod):
            if now is not None:
                index.put(name, now)
            else:
                index.remove(name)
        self._dirty.add(_node_of(lease))
        self._say("lease", ("", name))

    def lease_unreadable(self, about: Metadata, why: str) -> None:
        """Take such a lease for somebody else's: busy."""
        lease = Lease(metadata=about)
        if why:
            self.leases[about.name] = lease
        else:
            self.leases.pop(about.name, None)
        self._dirty.add(_node_of(lease))

    # --- views

    def _say(self, kind: str, key: Key) -> None:
        for listener in self.listeners:
            listener(kind, key)

    def _touched(self, node: str) -> None:
        self._dirty.add(node)

    def _forget(self, name: str) -> None:
        lease, _ = self._written.pop(name)
        self._dirty.add(_node_of(lease))

    def _refresh(self) -> None:
        now = self.now()
        if now - self._looked >= 1.0:
            self._looked = now
            for name in [
                name for name, (_, since) in self._written.items() if now - since > _UNSEEN
            ]:
                self._forget(name)
            patience = self._config.seconds("stale_after")
            self._ledger.forget(now - patience, self._by_holder.values())
            for name, found in self.inventories.items():
                late = (
                    found.observed is not None
                    and self._beats.note(name, found.observed, now) > patience
                )
                if late and name not in self._stale:
                    self._stale.add(name)
                    self._dirty.add(name)
        dirty, self._dirty = self._dirty, set()
        for name in dirty:
            if name in self.nodes:
                self._views[name] = self._seen(name)
            else:
                self._views.pop(name, None)
                self._stale.discard(name)

    def _seen(self, name: str) -> NodeView:
        found = known(self.inventories.get(name), name, self._config)
        users = {uid for one in found.devices for uid in one.in_use_by} if found else set()
        made = view(
            self.nodes.get(name),
            found,
            self._busy(name),
            self._config,
            over={uid for uid in users if self._ledger.ended(uid)},
            unlocked=any(lease is None for *_, lease in self.unlocked(name)),
            stale=name in self._stale,
        )
        slots = self._topologies.setdefault(made.slots, made.slots)
        return msgspec.structs.replace(made, slots=slots)

    def _busy(self, name: str) -> frozenset[int]:
        leases = list(self.leases_on(name))
        foreign = {gpu for gpu, lease in leases if lease.gpu is None}
        numbers = {uuid: gpu for gpu, uuid in self.uuids(name).items() if uuid}
        locked = busy_ids((lease for _, lease in leases), self.look, numbers)
        return frozenset(foreign) | locked | self.others(name)


def _node_of(lease: Lease) -> str:
    if (gpu := lease.gpu) is not None:
        return gpu[0]
    found = names.split_lease_name(lease.metadata.name)
    return found[0] if found is not None else ""
