"""Where a component's pods come from: the paths of its pod templates, how many pods each makes, and
what follows from its kind. Pure.

What :func:`inferred` finds for a kind that Kueue knows equals what Kueue finds, in order, counts,
paths and annotations: else Kueue would see another workload, and suspend it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from .objects import PREFIX, ComponentStatus, PodSet
from .objects import Component as _Component

__all__ = [
    "MOST_POD_SETS",
    "PodSetError",
    "group_kind",
    "inferred",
    "initial",
    "kueue_knows",
    "pod_sets",
    "pod_template",
]

MOST_POD_SETS: Final = 8
"""Of a wrapper: Kueue's own limit for a Workload."""

_PATH: Final = re.compile(r"template((?:\.[^.\[\]]+|\[[0-9]{1,9}\])*)")
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]")
_LONGEST: Final = 1024
_POD_INDEX: Final = PREFIX + "tas-pod-index-label"
_SUB_GROUP_INDEX: Final = PREFIX + "tas-sub-group-index-label"
_SUB_GROUP_COUNT: Final = PREFIX + "tas-sub-group-count"
_JOB_INDEX: Final = {_POD_INDEX: "batch.kubernetes.io/job-completion-index"}
_REPLICA_INDEX: Final = {_POD_INDEX: "training.kubeflow.org/replica-index"}


class PodSetError(ValueError):
    """One sentence, without the place where it holds."""


def pod_template(template: object, path: str) -> dict[str, Any]:
    """The pod template at ``path`` (``template.spec.template``) of the manifest ``template``.
    Raises :class:`PodSetError`.
    """
    match = _PATH.fullmatch(path) if len(path) <= _LONGEST else None
    if match is None:
        raise PodSetError(
            f'"{path:.80}" is no path; write template, then .field or [index], e.g. template.spec.template'
        )
    found: Any = template
    walked = "template"
    for step in _STEP.finditer(match[1]):
        found = _below(found, step, walked)
        walked += step[0]
    spec = found.get("spec") if isinstance(found, dict) else None
    containers = spec.get("containers") if isinstance(spec, dict) else None
    if (
        not isinstance(containers, list)
        or not containers
        or not all(isinstance(one, dict) for one in containers)
    ):
        raise PodSetError(
            f'"{path:.80}" leads to no pod template (something with spec.containers); correct the path'
        )
    assert isinstance(found, dict)
    return found


def _below(found: Any, step: re.Match[str], walked: str) -> Any:
    if step[1] is not None:
        if not isinstance(found, dict) or step[1] not in found:
            raise PodSetError(f'"{walked:.80}" has no field "{step[1]:.60}"; correct the path')
        return found[step[1]]
    if not isinstance(found, list) or int(step[2]) >= len(found):
        size = f"has {len(found)} items" if isinstance(found, list) else "is no list"
        raise PodSetError(f'"{walked:.80}" {size}, and [{step[2]}] was asked for; correct the path')
    return found[int(step[2])]


def group_kind(template: object) -> tuple[str, str, str]:
    """Group, version and kind of a manifest; empty where it says none."""
    if not isinstance(template, dict):
        return "", "", ""
    api, kind = template.get("apiVersion"), template.get("kind")
    group, _, version = api.rpartition("/") if isinstance(api, str) else ("", "", "")
    return group, version, kind if isinstance(kind, str) else ""


def kueue_knows(template: object) -> bool:
    """Whether Kueue infers the pod sets of this kind by itself."""
    return group_kind(template) in _KUEUE


def inferred(template: object) -> tuple[PodSet, ...]:
    """The pod sets that follow from the kind; none for one that is not known. Raises
    :class:`PodSetError`.
    """
    known = {**_KUEUE, **_OURS}.get(group_kind(template))
    if known is None:
        return ()
    found = tuple(known(template))
    for one in found:
        pod_template(template, one.path)
    return found


def pod_sets(component: _Component) -> tuple[PodSet, ...]:
    """The declared ones, else those that follow from the kind. Raises :class:`PodSetError`."""
    return component.pod_sets or inferred(component.template)


def initial(components: tuple[_Component, ...]) -> tuple[ComponentStatus, ...]:
    """``status.componentStatus`` at first sight; a component whose pod sets cannot be told has
    none.
    """
    return tuple(ComponentStatus(pod_sets=_or_none(one)) for one in components)


def _or_none(component: _Component) -> tuple[PodSet, ...]:
    try:
        return pod_sets(component)
    except PodSetError:
        return ()


def _at(template: object, *keys: str | int) -> Any:
    found: Any = template
    for key in keys:
        if isinstance(key, int):
            found = found[key] if isinstance(found, list) and key < len(found) else None
        else:
            found = found.get(key) if isinstance(found, dict) else None
    return found


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _replicas(template: object, *keys: str | int) -> int:
    value = _at(template, *keys)
    if value is None:
        return 1
    count = _whole(value)
    if count is None:
        raise PodSetError(f"template.{_dotted(keys)} is no whole number; correct it")
    return count


def _dotted(keys: tuple[str | int, ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(
        "."
    )


def _at_once(template: object, *keys: str | int) -> int:
    """Pods of a Job at one time."""
    parallelism = _whole(_at(template, *keys, "parallelism"))
    completions = _whole(_at(template, *keys, "completions"))
    pods = 1 if parallelism is None else parallelism
    return pods if completions is None else min(pods, completions)


def _pod(_: object) -> Iterator[PodSet]:
    yield PodSet(path="template", replicas=1)


def _replicated(template: object) -> Iterator[PodSet]:
    if _at(template, "spec", "template") is not None:
        yield PodSet(
            path="template.spec.template", replicas=_replicas(template, "spec", "replicas")
        )


def _job(template: object) -> Iterator[PodSet]:
    yield PodSet(
        path="template.spec.template", replicas=_at_once(template, "spec"), annotations=_JOB_INDEX
    )


def _job_set(template: object) -> Iterator[PodSet]:
    jobs = _at(template, "spec", "replicatedJobs")
    for i in range(len(jobs) if isinstance(jobs, list) else 0):
        below = ("spec", "replicatedJobs", i)
        if _at(template, *below, "template") is None:
            continue
        replicas = _whole(_at(template, *below, "replicas"))
        count = 1 if replicas is None else replicas
        yield PodSet(
            path=f"template.spec.replicatedJobs[{i}].template.spec.template",
            replicas=count * _at_once(template, *below, "template", "spec"),
            annotations={
                **_JOB_INDEX,
                _SUB_GROUP_INDEX: "jobset.sigs.k8s.io/job-index",
                _SUB_GROUP_COUNT: str(count),
            },
        )


def _replica_specs(
    template: object, key: str, roles: tuple[str, ...], said: dict[str, str]
) -> Iterator[PodSet]:
    for role in roles:
        if _at(template, "spec", key, role, "template") is not None:
            yield PodSet(
                path=f"template.spec.{key}.{role}.template",
                replicas=_replicas(template, "spec", key, role, "replicas"),
                annotations=said,
            )


def _pytorch(template: object) -> Iterator[PodSet]:
    yield from _replica_specs(template, "pytorchReplicaSpecs", ("Master", "Worker"), _REPLICA_INDEX)


def _mpi(template: object) -> Iterator[PodSet]:
    yield from _replica_specs(template, "mpiReplicaSpecs", ("Launcher", "Worker"), {})


def _ray(template: object, *below: str) -> Iterator[PodSet]:
    prefix = "template." + ".".join(below)
    yield PodSet(path=f"{prefix}.headGroupSpec.template", replicas=1)
    groups = _at(template, *below, "workerGroupSpecs")
    for i in range(len(groups) if isinstance(groups, list) else 0):
        if _at(template, *below, "workerGroupSpecs", i, "template") is not None:
            replicas = _replicas(template, *below, "workerGroupSpecs", i, "replicas")
            yield PodSet(path=f"{prefix}.workerGroupSpecs[{i}].template", replicas=replicas)


def _ray_cluster(template: object) -> Iterator[PodSet]:
    yield from _ray(template, "spec")


def _ray_job(template: object) -> Iterator[PodSet]:
    yield from _ray(template, "spec", "rayClusterSpec")


def _leader_worker_set(template: object) -> Iterator[PodSet]:
    groups, size = (
        _replicas(template, "spec", "replicas"),
        _replicas(template, "spec", "leaderWorkerTemplate", "size"),
    )
    below = "template.spec.leaderWorkerTemplate"
    if (
        _at(template, "spec", "leaderWorkerTemplate", "leaderTemplate") is None
    ):  # leaders are made as workers are
        yield PodSet(path=f"{below}.workerTemplate", replicas=groups * size)
        return
    yield PodSet(path=f"{below}.leaderTemplate", replicas=groups)
    if size > 1:
        yield PodSet(path=f"{below}.workerTemplate", replicas=groups * (size - 1))


_KUEUE: Final = {
    ("", "v1", "Pod"): _pod,
    ("apps", "v1", "Deployment"): _replicated,
    ("apps", "v1", "StatefulSet"): _replicated,
    ("batch", "v1", "Job"): _job,
    ("jobset.x-k8s.io", "v1alpha2", "JobSet"): _job_set,
    ("kubeflow.org", "v1", "PyTorchJob"): _pytorch,
    ("ray.io", "v1", "RayCluster"): _ray_cluster,
    ("ray.io", "v1", "RayJob"): _ray_job,
}
_OURS: Final = {
    ("kubeflow.org", "v1", "MPIJob"): _mpi,
    ("kubeflow.org", "v2beta1", "MPIJob"): _mpi,
    ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"): _leader_worker_set,
}
"""Kinds that Kueue does not know: admission writes their pod sets into the wrapper, so that it need
not.
"""
