"""KubeRay's clusters, jobs and services. Pure."""

from __future__ import annotations

from typing import Final

from preflight_kube.api.workloads.labels import JOB_NAME
from preflight_kube.api.workloads.model import Keys, Object, Path, PodMarks, WorkloadKind, replicas


def _of_ray(item: Object, name: str, part: str) -> PodMarks:
    if part == "submitter":
        return PodMarks({JOB_NAME: name}, {}, "Job")
    node = "head" if part == "head" else "worker"
    return PodMarks(
        {"ray.io/cluster": name, "ray.io/node-type": node, "ray.io/group": part}, {}, "RayCluster"
    )


def _pods(item: Object, keys: Keys) -> int:
    """One head, and as many workers of a group as it begins with."""
    return replicas(item, *keys[:-1], "replicas") if "workerGroupSpecs" in keys else 1


def _ray(*start: str) -> tuple[Path, ...]:
    return ("spec", *start, "headGroupSpec", "template"), (
        "spec",
        *start,
        "workerGroupSpecs",
        "*",
        "template",
    )


_VERSIONS: Final = ("v1", "v1alpha1")
KINDS: Final = (
    WorkloadKind("RayCluster", "ray.io", _VERSIONS, "rayclusters", _ray(), _of_ray, pods=_pods),
    WorkloadKind(
        "RayJob",
        "ray.io",
        _VERSIONS,
        "rayjobs",
        (*_ray("rayClusterSpec"), ("spec", "submitterPodTemplate")),
        _of_ray,
        pods=_pods,
    ),
    WorkloadKind(
        "RayService",
        "ray.io",
        _VERSIONS,
        "rayservices",
        _ray("rayClusterConfig"),
        _of_ray,
        pods=_pods,
    ),
)
