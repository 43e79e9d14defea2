"""An API server of pods and Leases as far as the protocol needs one: optimistic concurrency, uids,
versions, a past that mirrors may show.

Checked after every write: no GPU is two living pods', by id and by UUID, and each bound pod's
Leases are stored, unless somebody may delete them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.allocation import written
from preflight_gpu_scheduler.api.types import (
    Lease,
    LeaseSpec,
    Metadata,
    Pod,
    PodSchedulingGate,
    PodSpec,
    PodStatus,
)
from preflight_gpu_scheduler.core.ledger import Holder
from preflight_gpu_scheduler.core.protocol import (
    AdoptLease,
    Answer,
    BindPod,
    Conflict,
    CreateLease,
    DeleteLease,
    Exists,
    Missing,
    RaiseReclaimed,
    ReadLease,
    ReadPod,
    Refused,
    Request,
    ReservePod,
    Stored,
)

Key = tuple[str, str]
Event = tuple[Any, bool]
"""An object, and whether it was deleted."""
replace = msgspec.structs.replace


@dataclass
class World:
    pods: dict[Key, Pod] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """By object, so that histories that differ only in the order of what does not touch lead to
    equal worlds.
    """
    past: dict[Key, list[Pod | None]] = field(default_factory=dict)
    """Every state that a mirror may still show of a pod."""
    lawless: bool = False
    """Whether somebody deletes Leases whose pods run."""
    there: bool = True
    """Whether the namespace of the locks is."""
    events: dict[str, list[Event]] = field(default_factory=lambda: {"pod": [], "lease": []})
    """What a watch tells, by kind, in its order; where it is lawless."""

    def _next(self, what: str) -> str:
        self.counts[what] = self.counts.get(what, 0) + 1
        return f"{what}#{self.counts[what]}"

    def _version(self, what: str) -> str:
        return self._next(what).rpartition("#")[2]

    def copy(self) -> World:
        past = {key: list(states) for key, states in self.past.items()}
        return World(dict(self.pods), dict(self.leases), dict(self.counts), past)

    @property
    def state(self) -> str:
        return repr(
            (sorted(self.pods.items()), sorted(self.leases.items()), sorted(self.counts.items()))
        )

    def _put(self, pod: Pod) -> Pod:
        stored = replace(
            pod,
            metadata=replace(
                pod.metadata, resource_version=self._version(f"pod {pod.metadata.name}")
            ),
        )
        self.pods[pod.key] = stored
        self.past.setdefault(pod.key, [None]).append(stored)
        self._tell("pod", stored)
        return stored

    def _tell(self, kind: str, found: Any, deleted: bool = False) -> None:
        if self.lawless:
            self.events[kind].append((found, deleted))

    # what users, kubelets and the garbage collector do

    def create_pod(self, name: str, *, gated: bool = False) -> Pod:
        gates = (PodSchedulingGate(name=names.GATE),) if gated else None
        metadata = Metadata(
            name=name,
            namespace="team",
            uid=self._next(f"uid {name}"),
            annotations={names.CLAIM_ANNOTATION: "two"},
        )
        return self._put(
            Pod(
                metadata=metadata,
                spec=PodSpec(scheduling_gates=gates),
                status=PodStatus(phase="Pending"),
            )
        )

    def delete_pod(self, key: Key) -> None:
        if pod := self.pods.pop(key, None):
            self.past[key].append(None)
            self._tell("pod", pod, True)

    def mark_deleting(self, key: Key) -> None:
        if pod := self.pods.get(key):
            self._put(replace(pod, metadata=replace(pod.metadata, deletion_timestamp="now")))

    def end_pod(self, key: Key) -> None:
        if pod := self.pods.get(key):
            self._put(replace(pod, status=PodStatus(phase="Failed")))

    def start_pod(self, key: Key) -> None:
        """The kubelet has begun its containers."""
        said = {"phase": "Running", "startTime": "t"}
        running: dict[str, Any] = {"containerStatuses": [{"state": {"running": {}}}]}
        if (pod := self.pods.get(key)) and pod.bound and not pod.ended:
            self._put(replace(pod, status=msgspec.convert({**said, **running}, PodStatus)))

    def lose_lease(self, name: str) -> None:
        """Somebody deletes it."""
        self._tell("lease", self.leases.pop(name), True)

    def lose_locks(self) -> None:
        """Somebody deletes their namespace."""
        self.there = False
        for name in list(self.leases):
            self.lose_lease(name)

    def change_lease(self, name: str, **spec: Any) -> None:
        """Somebody changes it by hand."""
        lease = self.leases[name]
        about = replace(lease.metadata, resource_version=self._version(name))
        self.leases[name] = replace(lease, metadata=about, spec=replace(lease.spec, **spec))
        self._tell("lease", self.leases[name])

    def restore(self, pods: dict[Key, Pod], leases: dict[str, Lease]) -> None:
        """The store is what it was, with versions that nobody has seen."""
        for key, pod in list(self.pods.items()):
            if key not in pods or pods[key].metadata.uid != pod.metadata.uid:
                self.delete_pod(key)
        for pod in pods.values():
            self._put(pod)
        self.there = True
        for name in list(self.leases):
            if name not in leases or leases[name].metadata.uid != self.leases[name].metadata.uid:
                self.lose_lease(name)
        for name, lease in leases.items():
            self.leases[name] = lease
            self.change_lease(name)

    def touch_pod(self, key: Key) -> None:
        if pod := self.pods.get(key):
            self._put(pod)

    def live(self, key: Key) -> Holder:
        return Holder(self.pods.get(key), live=True)

    def mirror(self, back: int, of: dict[Key, int] | None = None) -> Any:
        """A mirror that is ``back`` states behind for every pod, ``of`` some more. It is fixed when
        it is made, as one that stands still.
        """
        more = of or {}
        frozen = {
            key: states[max(0, len(states) - 1 - back - more.get(key, 0))]
            for key, states in self.past.items()
        }
        return lambda key: Holder(frozen.get(key))

    # the API server

    def perform(self, request: Request) -> Answer:
        answer = self._perform(request)
        self.check()
        return answer

    def _perform(self, request: Request) -> Answer:
        match request:
            case CreateLease():
                return self._create(request)
            case ReadLease():
                lease = self.leases.get(request.name)
                return Stored(lease) if lease else Missing()
            case AdoptLease() | DeleteLease():
                return self._change(request)
            case ReadPod():
                pod = self.pods.get(request.key)
                return Stored(pod) if pod else Missing()
            case BindPod() | RaiseReclaimed() | ReservePod():
                return self._write_pod(request)

    def _create(self, request: CreateLease) -> Answer:
        if request.name in self.leases:
            return Exists()
        if not self.there:
            return Refused("there is no such namespace")
        about = {
            names.POD_ANNOTATION: "/".join(request.pod.key),
            names.NODE_ANNOTATION: request.node,
            names.UUID_ANNOTATION: request.uuid,
        }
        lease = Lease(
            metadata=Metadata(
                name=request.name,
                namespace=names.LOCK_NAMESPACE,
                uid=self._next(f"uid {request.name}"),
                resource_version=self._version(request.name),
                labels={names.MANAGED_LABEL: "true"},
                annotations=about,
            ),
            spec=LeaseSpec(
                holder_identity=request.pod.metadata.uid, lease_transitions=request.pod.number
            ),
        )
        self.leases[request.name] = lease
        self._tell("lease", lease)
        return Stored(lease)

    def _change(self, request: AdoptLease | DeleteLease) -> Answer:
        about = request.lease.metadata
        lease = self.leases.get(about.name)
        if lease is None:
            return Missing()
        if _version(lease.metadata) != _version(about):
            return Conflict()
        if isinstance(request, DeleteLease):
            del self.leases[about.name]
            self._tell("lease", lease, True)
            return Stored()
        stored = replace(
            lease, metadata=replace(lease.metadata, resource_version=self._version(about.name))
        )
        self.leases[about.name] = stored
        self._tell("lease", stored)
        return Stored(stored)

    def _write_pod(self, request: BindPod | RaiseReclaimed | ReservePod) -> Answer:
        pod = self.pods.get(request.pod.key)
        if pod is None:
            return Missing()
        if _version(pod.metadata) != _version(request.pod.metadata):
            return Conflict()
        annotations, spec = dict(pod.metadata.annotations or {}), pod.spec
        if isinstance(request, BindPod):
            if pod.bound or pod.deleting or spec.scheduling_gates:
                return Conflict()
            spec = replace(spec, node_name=request.node)
            annotations |= request.annotations
        elif isinstance(request, RaiseReclaimed):
            assert not pod.bound, "a bound pod is never fenced"
            assert request.number > pod.reclaimed
            annotations[names.RECLAIMED_ANNOTATION] = str(request.number)
        else:
            annotations[names.RESERVED_ANNOTATION] = written(request.reserved)
            spec = replace(spec, scheduling_gates=None)
        return Stored(
            self._put(
                replace(pod, metadata=replace(pod.metadata, annotations=annotations), spec=spec)
            )
        )

    # what must hold at every instant

    def running(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.bound and not pod.ended]

    def check(self) -> None:
        users: dict[tuple[str, int | str], str] = {}
        for pod in self.running():
            allocated = pod.allocated
            assert allocated is not None
            assert allocated.node == pod.spec.node_name
            assert len(pod.uuids) == len(allocated.ids)
            whats: tuple[int | str, ...] = (*allocated.ids, *pod.uuids)
            for place in [(allocated.node, what) for what in whats]:
                assert place not in users, (
                    f"{place} is given to {users[place]} and {pod.metadata.uid}"
                )
                users[place] = pod.metadata.uid
            for gpu in allocated.ids if not self.lawless else ():
                lease = self.leases.get(names.lease_name(allocated.node, gpu))
                assert lease is not None, f"{pod.metadata.uid} runs without the lease of {gpu}"
                assert lease.holder == pod.metadata.uid
        for pod in self.running() if not self.lawless else ():
            self._check_gang(pod)

    def _check_gang(self, first: Pod) -> None:
        """Where the first member runs, what the plan gave the others is theirs: no fence, no lost
        lease.
        """
        plan = first.reserved
        if plan is None:
            return
        members = [
            p for p in self.pods.values() if p.reserved is not None and p.reserved.plan == plan.plan
        ]
        begun = any(p.metadata.uid == plan.first_uid and p.bound for p in members)
        gone = all(p.metadata.uid != plan.first_uid for p in self.pods.values())
        assert begun or gone, "a member runs, and the first one does not"
        if first.metadata.uid != plan.first_uid:
            return
        for pod in members:
            reserved = pod.reserved
            assert reserved is not None
            if pod.ended or (pod.deleting and not pod.bound):
                continue
            for gpu in reserved.ids:
                lease = self.leases.get(names.lease_name(reserved.node, gpu))
                assert lease is not None
                assert lease.holder == pod.metadata.uid
        lost = [p for p in self.pods.values() if _was(p, plan.plan) and p.reserved is None]
        assert not lost, "a member was fenced after the first one was bound"


def _was(pod: Pod, plan: str) -> bool:
    return f'"plan":"{plan}"' in pod.annotation(names.RESERVED_ANNOTATION)


def _version(about: Metadata) -> tuple[str, str]:
    return about.uid, about.resource_version
