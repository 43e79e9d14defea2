"""LeaderWorkerSets. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from preflight_kube.api.workloads.labels import LWS
from preflight_kube.api.workloads.model import (
    Keys,
    Object,
    PodMarks,
    WorkloadKind,
    at,
    map_of,
    replicas,
)
from preflight_kube.api.workloads.sizes import (
    START_ORDER,
    DeclaredSize,
    Section,
    SizedObject,
    counted,
)

_WITHIN: Final = ("spec", "leaderWorkerTemplate")


def _of_lws(item: Object, name: str, part: str) -> PodMarks:
    size = map_of(map_of(item.get("spec")).get("leaderWorkerTemplate")).get("size") or 1
    labels = {"name": name, "group-index": "0", "worker-index": "0" if part == "leader" else "1"}
    return PodMarks(
        {LWS + key: value for key, value in labels.items()},
        {f"{LWS}size": str(size)},
        "StatefulSet",
    )


def _pods(item: Object, keys: Keys) -> int | None:
    """Of all its groups. Without a template of their own leaders are made as workers are."""
    groups = replicas(item, "spec", "replicas")
    size = replicas(item, *_WITHIN, "size")
    if keys[-1] == "leaderTemplate":
        return groups
    if at(item, (*_WITHIN, "leaderTemplate")) is None:
        return groups * size
    return groups * (size - 1) if size > 1 else None


class _LeaderWorkerTemplate(Section, kw_only=True):
    size: int = 1


class _LeaderWorkerSetSpec(Section, kw_only=True):
    startup_policy: str = "LeaderCreated"
    leader_worker_template: _LeaderWorkerTemplate = msgspec.field(
        default_factory=_LeaderWorkerTemplate
    )


class LeaderWorkerSet(SizedObject, kw_only=True):
    """leaderworkerset.x-k8s.io LeaderWorkerSet; one gang is one group of it."""

    spec: _LeaderWorkerSetSpec = msgspec.field(default_factory=_LeaderWorkerSetSpec)

    def size(self, gang: str) -> DeclaredSize:
        """How many pods of ``gang`` start together, by this object."""
        if self.spec.startup_policy == "LeaderReady":
            return DeclaredSize(skip=f"its startupPolicy is LeaderReady: {START_ORDER}")
        return counted(self.spec.leader_worker_template.size, "spec.leaderWorkerTemplate.size")


KIND: Final = WorkloadKind(
    "LeaderWorkerSet",
    "leaderworkerset.x-k8s.io",
    ("v1",),
    "leaderworkersets",
    ((*_WITHIN, "leaderTemplate"), (*_WITHIN, "workerTemplate")),
    _of_lws,
    pods=_pods,
)
