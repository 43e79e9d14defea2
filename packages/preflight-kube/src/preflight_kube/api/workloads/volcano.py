"""Volcano's jobs. Pure."""

from __future__ import annotations

from typing import Final

from preflight_kube.api.workloads.labels import VOLCANO_GROUP, VOLCANO_JOB, VOLCANO_TASK
from preflight_kube.api.workloads.model import Object, PodMarks, WorkloadKind, map_of

__all__ = ["KIND"]


def _of_volcano(item: Object, name: str, part: str) -> PodMarks:
    group = (
        f"{name}-{map_of(item.get('metadata')).get('uid') or 'UID'}"  # which only the cluster knows
    )
    return PodMarks({VOLCANO_JOB: name, VOLCANO_TASK: part}, {VOLCANO_GROUP: group}, "Job")


KIND: Final = WorkloadKind(
    "Job",
    "batch.volcano.sh",
    ("v1alpha1",),
    "jobs",
    (("spec", "tasks", "*", "template"),),
    _of_volcano,
)
