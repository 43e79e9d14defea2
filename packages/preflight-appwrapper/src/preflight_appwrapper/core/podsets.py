"""Pod sets of a component: its pod templates, and how many pods each makes. Pure.

What :func:`inferred` finds for a kind that Kueue knows equals what Kueue finds, in order, counts,
paths and annotations: else Kueue would see another workload, and suspend it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from preflight_kube.api.workloads.model import (
    Keys,
    Object,
    at,
    dotted,
    map_of,
    maps,
    places,
    whole,
)
from preflight_kube.api.workloads.table import kind_of

from preflight_appwrapper.api.names import PREFIX
from preflight_appwrapper.api.types import Component, PodSet

MOST_POD_SETS: Final = 8
"""Pod sets of a wrapper: Kueue's own limit for a Workload."""

_PATH: Final = re.compile(r"template((?:\.[^.\[\]]+|\[[0-9]{1,9}\])*)")
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]")
_LONGEST: Final = 1024
_POD_INDEX: Final = PREFIX + "tas-pod-index-label"
_SUB_GROUP_INDEX: Final = PREFIX + "tas-sub-group-index-label"
_SUB_GROUP_COUNT: Final = PREFIX + "tas-sub-group-count"
_JOB_INDEX: Final = {_POD_INDEX: "batch.kubernetes.io/job-completion-index"}
_SUB_GROUPS: Final = {**_JOB_INDEX, _SUB_GROUP_INDEX: "jobset.sigs.k8s.io/job-index"}
_REPLICA_INDEX: Final = {_POD_INDEX: "training.kubeflow.org/replica-index"}


class PodSetError(ValueError):
    """One sentence, without the place where it holds."""


def pod_template(template: object, path: str) -> dict[str, Any]:
    """The pod template at ``path`` of a manifest. Raises :class:`PodSetError`."""
    match = _PATH.fullmatch(path) if len(path) <= _LONGEST else None
    if match is None:
        raise PodSetError(
            f'"{path:.80}" is not a path; write template, then .field or [index], e.g. template.spec.template'
        )
    part: Any = template
    walked = "template"
    for step in _STEP.finditer(match[1]):
        part = _below(part, step, walked)
        walked += step[0]
    containers = at(part, ("spec", "containers"))
    if not containers or maps(containers) != containers:
        raise PodSetError(
            f'"{path:.80}" leads to no pod template (something with spec.containers); correct the path'
        )
    assert isinstance(part, dict)
    return part


def _below(part: Any, step: re.Match[str], walked: str) -> Any:
    if step[1] is not None:
        if not isinstance(part, dict) or step[1] not in part:
            raise PodSetError(f'"{walked:.80}" has no field "{step[1]:.60}"; correct the path')
        return part[step[1]]
    if not isinstance(part, list) or int(step[2]) >= len(part):
        size = f"has {len(part)} items" if isinstance(part, list) else "is not a list"
        raise PodSetError(f'"{walked:.80}" {size}, and [{step[2]}] was asked for; correct the path')
    return part[int(step[2])]


def group_kind(template: object) -> tuple[str, str, str]:
    """Group, version and kind of a manifest; empty where it says none."""
    about = map_of(template)
    api, kind = about.get("apiVersion"), about.get("kind")
    group, _, version = api.rpartition("/") if isinstance(api, str) else ("", "", "")
    return group, version, kind if isinstance(kind, str) else ""


def kueue_knows(template: object) -> bool:
    """Say whether Kueue infers the pod sets of this kind by itself."""
    return group_kind(template) in _KUEUE


def inferred(template: object) -> tuple[PodSet, ...]:
    """The pod sets that follow from the kind, if it is known. Raises :class:`PodSetError`."""
    known = {**_KUEUE, **_OURS}.get(group_kind(template))
    if known is None or not isinstance(template, dict):
        return ()
    try:
        pod_sets = tuple(_sets(template, known))
    except ValueError as error:
        raise PodSetError(f"template.{error}; correct it") from None
    for pod_set in pod_sets:
        pod_template(template, pod_set.path)
    return pod_sets


def slacks(components: Sequence[Component]) -> tuple[int, ...]:
    """By component: pods that it may be short of, as it is elastic by itself."""
    known: tuple[int, ...] | None = getattr(components, "slacks", None)
    if known is not None:
        return known
    return tuple(slack(component.template) for component in components)


def slack(template: object) -> int:
    """Pods of the pod sets that need not be there: of groups of Ray's workers, whose number its
    operator bounds and its autoscaler changes, or by PyTorch's elastic policy. Never raises.
    """
    group, _, kind = group_kind(template)
    if (group, kind) == ("kubeflow.org", "PyTorchJob"):
        least = whole(at(template, ("spec", "elasticPolicy", "minReplicas")), -1)
        workers = at(template, ("spec", "pytorchReplicaSpecs", "Worker", "replicas"))
        return 0 if least < 0 else max(0, whole(workers, 1) - least)
    clusters = {
        ("ray.io", "RayCluster"): ("spec",),
        ("ray.io", "RayJob"): ("spec", "rayClusterSpec"),
    }
    inner: Keys | None = clusters.get((group, kind))
    if inner is None:
        return 0
    elastic = at(template, (*inner, "enableInTreeAutoscaling")) is True
    return sum(
        max(0, whole(workers.get("replicas"), 1) - _fewest(workers, elastic=elastic))
        for workers in maps(at(template, (*inner, "workerGroupSpecs")))
    )


def _fewest(workers: Object, *, elastic: bool) -> int:
    """The fewest pods that KubeRay makes of a group; without ``replicas`` none, in a pod set 1."""
    least = whole(workers.get("minReplicas"), 0)
    wanted = least if elastic else max(whole(workers.get("replicas"), 0), least)
    most = whole(workers.get("maxReplicas"), wanted)
    # Its operator looks at the upper bound only where there are not too few.
    count = wanted if wanted == least else min(wanted, most)
    hosts = whole(workers.get("numOfHosts"), 1) or 1
    return 0 if workers.get("suspend") is True else max(0, count * hosts)


def pod_sets(component: Component) -> tuple[PodSet, ...]:
    """The declared ones, else those that follow from the kind. Raises :class:`PodSetError`."""
    return component.pod_sets or inferred(component.template)


def readable(template: object, declared: tuple[PodSet, ...] = ()) -> tuple[PodSet, ...]:
    """The ``declared`` pod sets, else those of the kind, else none. Never raises."""
    try:
        return declared or inferred(template)
    except PodSetError:
        return ()


class _Sets(NamedTuple):
    """A way to find the pod sets of a kind. ``needs``: where in an object there must be a template.
    ``roles``: those whose pods count, in Kueue's order (empty: all, in the object's). ``marks``:
    annotations for Kueue's topology-aware scheduling. ``jobs``: it replicates Jobs, each of which
    needs a template, and has marks of its own."""

    needs: tuple[Keys, ...] = ()
    roles: tuple[str, ...] = ()
    marks: Mapping[str, str] = {}
    jobs: bool = False


def _sets(item: Object, known: _Sets) -> Iterator[PodSet]:
    """Raises :class:`ValueError` with the path of a number that is none."""
    kind = kind_of(item)
    assert kind is not None
    templates = [
        place.keys
        for place in places(item, kind)
        if _SUBMITTER not in place.keys and (not known.roles or place.part in known.roles)
    ]
    if known.roles:
        templates.sort(key=lambda keys: known.roles.index(str(keys[-2])))
    needs = _of_each_job(item) if known.jobs else known.needs
    for keys in (*(keys for keys in needs if keys not in templates), *templates):
        count = kind.pods(item, keys)
        if count is None:
            continue
        path = f"template.{dotted(keys)}".removesuffix(".")
        marks = dict(known.marks)
        if known.jobs:
            marks[_SUB_GROUP_COUNT] = str(whole(at(item, (*keys[:3], "replicas")), 1))
        yield PodSet(path=path, replicas=count, annotations=marks)


def _of_each_job(item: Object) -> Iterator[Keys]:
    """Yield the place of each job that is described at all."""
    jobs = at(item, ("spec", "replicatedJobs"))
    for i in range(len(jobs) if isinstance(jobs, list) else 0):
        job: Keys = ("spec", "replicatedJobs", i, "template")
        if at(item, job) is not None:
            yield (*job, "spec", "template")


_SUBMITTER: Final = "submitterPodTemplate"
"""A template of a RayJob: Kueue leaves it out."""
_WITHIN: Final = ("spec", "leaderWorkerTemplate")
_KUEUE: Final = {
    ("", "v1", "Pod"): _Sets(),
    ("apps", "v1", "Deployment"): _Sets(),
    ("apps", "v1", "StatefulSet"): _Sets(),
    ("batch", "v1", "Job"): _Sets(needs=(("spec", "template"),), marks=_JOB_INDEX),
    ("jobset.x-k8s.io", "v1alpha2", "JobSet"): _Sets(marks=_SUB_GROUPS, jobs=True),
    ("kubeflow.org", "v1", "PyTorchJob"): _Sets(roles=("Master", "Worker"), marks=_REPLICA_INDEX),
    ("ray.io", "v1", "RayCluster"): _Sets(needs=(("spec", "headGroupSpec", "template"),)),
    ("ray.io", "v1", "RayJob"): _Sets(
        needs=(("spec", "rayClusterSpec", "headGroupSpec", "template"),)
    ),
}
_OURS: Final = {
    ("kubeflow.org", "v1", "MPIJob"): _Sets(roles=("Launcher", "Worker")),
    ("kubeflow.org", "v2beta1", "MPIJob"): _Sets(roles=("Launcher", "Worker")),
    ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"): _Sets(
        needs=((*_WITHIN, "workerTemplate"),)
    ),
}
"""Kinds that Kueue does not know: admission writes their pod sets into the wrapper."""
