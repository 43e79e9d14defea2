"""The caches of pods, nodes, claims, statuses, leases and PodGroups, and the snapshot over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from preflight_kube.api.workloads import podgroups
from preflight_kube.api.workloads.model import WorkloadKind
from preflight_kube.api.workloads.sizes import SizedObject
from preflight_kube.client.client import Client
from preflight_kube.runtime.cache import Cache
from preflight_kube.runtime.indexes import namespaced_name
from preflight_kube.runtime.reflector import Change, Reflector, uid

from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.claim import Claim, RawClaim
from preflight_gpu_scheduler.api.gpu_node_status import RawStatus
from preflight_gpu_scheduler.api.types import Lease, Node, Pod
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.core.snapshot import GpuSnapshot, Key

_GROUPS: Final[tuple[tuple[WorkloadKind, type[SizedObject]], ...]] = (
    (podgroups.POD_GROUP, podgroups.PodGroup),
    (podgroups.COSCHEDULING, podgroups.MinMemberPodGroup),
    (podgroups.VOLCANO, podgroups.MinMemberPodGroup),
)
"""Kinds of PodGroups; one that is not served is asked for again now and then."""
_LEASE_INDEXES: Final[dict[str, Callable[[Lease], tuple[str, ...]]]] = {
    "holder": lambda lease: (lease.holder,),
    "pod": lambda lease: ("/".join(lease.pod or ()),),
    "node": lambda lease: (names.split_lease_name(lease.name) or ())[:1],
}


class GpuCache(GpuSnapshot):
    """The snapshot of a process that runs its ``reflectors``; ``gangs``: PodGroups, too."""

    def __init__(self, client: Client, config: Config, *, gangs: bool = False) -> None:
        def cache(path: str, type_: type[Any], **more: Any) -> Cache[Any]:
            named = {"key": lambda item: namespaced_name(item)[0]}
            return Cache(client, path, type_, **named | more)

        def noted(changed: Callable[[Any, bool, Any], None]) -> Callable[[Change[Any]], None]:
            return lambda change: changed(change.object, change.kind == "deleted", change.before)

        pods = cache(
            "/api/v1/pods",
            Pod,
            params={"fieldSelector": f"spec.schedulerName={config.scheduler_name}"},
            on_change=noted(self._pod_changed),
            indexes={
                "claim": lambda pod: (f"{pod.namespace}/{pod.claim}",) if pod.claim else (),
                "unbound": lambda pod: ("",) if pod.claim and not pod.bound else (),
            },
        )
        nodes = cache(
            "/api/v1/nodes",
            Node,
            kept=lambda node: _without_noise(node, config.count_resource),
            on_change=noted(self._node_changed),
        )
        claims = cache(
            names.CLAIMS,
            RawClaim,
            decode=RawClaim.read,
            on_change=lambda change: self._claim_changed(change.key),
            indexes={"ganged": lambda it: ("",) if isinstance(it, Claim) and it.gang else ()},
        )
        statuses = cache(
            names.STATUSES,
            RawStatus,
            decode=RawStatus.read,
            on_change=noted(self._status_changed),
        )
        leases = cache(
            names.leases(config.lock_namespace),
            Lease,
            key=uid,
            on_change=noted(self._lease_changed),
            indexes=_LEASE_INDEXES,
        )
        self._groups = tuple(
            Reflector(client, f"/apis/{kind.group}/{version}/{kind.plural}", type_)
            for kind, type_ in (_GROUPS if gangs else ())
            for version in kind.versions
        )
        caches = (pods, nodes, claims, statuses, leases)
        self.reflectors: tuple[Reflector[Any], ...] = (*caches, *self._groups)
        super().__init__(client.clock, config, caches)

    def groups(self) -> dict[Key, int]:
        """The least number of members that each PodGroup asks for."""
        return {
            (group.metadata.namespace, group.metadata.name): size
            for cache in self._groups
            for group in cache.store.values()
            if (size := group.size(group.metadata.name).count) is not None
        }


def _without_noise(node: Node, resource: str) -> Node:
    """The node without its version, by which every heartbeat would be a change. Of its resources
    the counted one is read, and whether there are any.
    """
    replace, status = msgspec.structs.replace, node.status
    capacity = {key: n for key, n in (status.capacity or {}).items() if key == resource}
    return replace(
        node,
        metadata=replace(node.metadata, resource_version=""),
        status=replace(status, capacity=capacity if status.capacity else None, allocatable=None),
    )
