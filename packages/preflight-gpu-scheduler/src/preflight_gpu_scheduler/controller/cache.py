"""Mirrors of pods, nodes, claims, statuses, leases and PodGroups, which tell a snapshot what
changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from preflight_kube.client.client import Client, Unreadable
from preflight_kube.runtime.reflector import Change, Reflector

from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.claim import RawClaim
from preflight_gpu_scheduler.api.types import Lease, Metadata, Node, Pod, PodGroup
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.core.snapshot import GpuSnapshot, Key, RawStatus

__all__ = ["GpuCache"]

T = TypeVar("T")
GROUPS: Final = (
    "/apis/scheduling.k8s.io/v1alpha2/podgroups",
    "/apis/scheduling.k8s.io/v1alpha1/podgroups",
    "/apis/scheduling.x-k8s.io/v1alpha1/podgroups",
    "/apis/scheduling.volcano.sh/v1beta1/podgroups",
)
"""Where PodGroups may be served; one that is not is asked for again now and then."""


class GpuCache(GpuSnapshot):
    """The snapshot of a process that runs ``reflectors``. ``gangs``: whether PodGroups are
    mirrored, too.
    """

    def __init__(self, client: Client, config: Config, *, gangs: bool = False) -> None:
        super().__init__(client.clock, config)
        of_ours = {"fieldSelector": f"spec.schedulerName={config.scheduler_name}"}
        lock = f"/apis/coordination.k8s.io/v1/namespaces/{config.lock_namespace}/leases"

        def mirror(
            path: str,
            type_: type[T],
            changed: Callable[[T, bool], None],
            unreadable: Callable[[Metadata, str], None] = lambda *_: None,
            **options: Any,
        ) -> Reflector[T]:
            def on_change(change: Change[T]) -> None:
                changed(change.object, change.kind == "deleted")

            def on_unreadable(item: Unreadable, bad: bool) -> None:
                about = item.metadata
                metadata = Metadata(name=about.name, namespace=about.namespace, uid=about.uid)
                unreadable(metadata, item.why if bad else "")

            return Reflector(
                client, path, type_, on_change=on_change, on_unreadable=on_unreadable, **options
            )

        self._mirrors: tuple[Reflector[Any], ...] = (
            mirror("/api/v1/pods", Pod, self.pod_changed, params=of_ours),
            mirror("/api/v1/nodes", Node, self.node_changed, kept=_without_noise),
            mirror(names.CLAIMS, RawClaim, self.claim_changed, self.claim_unreadable),
            mirror(names.STATUSES, RawStatus, self.status_changed, self.status_unreadable),
            mirror(lock, Lease, self.lease_changed, self.lease_unreadable),
        )
        self._groups = tuple(Reflector(client, path, PodGroup) for path in GROUPS) if gangs else ()

    @property
    def synced(self) -> bool:
        """Whether every mirror has had its first full list; PodGroups are not waited for."""
        return all(mirror.synced.is_set() for mirror in self._mirrors)

    async def wait_synced(self) -> None:
        """Until :attr:`synced`."""
        for mirror in self._mirrors:
            await mirror.synced.wait()

    @property
    def reflectors(self) -> tuple[Reflector[Any], ...]:
        """What has to run for this to follow the cluster."""
        return (*self._mirrors, *self._groups)

    def groups(self) -> dict[Key, int]:
        """The least number of members that each PodGroup asks for."""
        return {
            (group.metadata.namespace, group.metadata.name): size
            for mirror in self._groups
            for group in mirror.store.values()
            if (size := group.size) is not None
        }


def _without_noise(node: Node) -> Node:
    """A kubelet's heartbeat changes nothing that is read; the version would make every one a
    change.
    """
    return msgspec.structs.replace(
        node, metadata=msgspec.structs.replace(node.metadata, resource_version="")
    )
