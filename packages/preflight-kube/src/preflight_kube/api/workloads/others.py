"""Volcano's jobs and AppWrappers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from preflight_kube.api.workloads.labels import VOLCANO_GROUP, VOLCANO_JOB, VOLCANO_TASK
from preflight_kube.api.workloads.model import Object, PodMarks, WorkloadKind, map_of, maps


def _of_volcano(item: Object, name: str, part: str) -> PodMarks:
    uid = map_of(item.get("metadata")).get("uid") or "UID"  # which only the cluster knows
    group = {VOLCANO_GROUP: f"{name}-{uid}"}
    return PodMarks({VOLCANO_JOB: name, VOLCANO_TASK: part}, group, "Job")


VOLCANO_JOB_KIND: Final = WorkloadKind(
    "Job",
    "batch.volcano.sh",
    ("v1alpha1",),
    "jobs",
    (("spec", "tasks", "*", "template"),),
    _of_volcano,
)


def _components(item: Object, _: Iterable[Object]) -> Iterator[tuple[str, Object]]:
    components = maps(map_of(item.get("spec")).get("components"))
    if not components:
        raise ValueError("has no component; list them at spec.components")
    for number, component in enumerate(components):
        if isinstance(inner := component.get("template"), dict):
            yield str(number), inner


APP_WRAPPER: Final = WorkloadKind(
    "AppWrapper", "workload.codeflare.dev", ("v1beta2",), "appwrappers", inner=_components
)
