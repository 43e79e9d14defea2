"""Every kind that makes pods, and the pods that an object of one makes, as they come to admission.
Pure.

A kind is known by its API group as well: Volcano's Job is not a Job of batch. Shapes are those of
the projects' own API types: Kubernetes, JobSet, LeaderWorkerSet, Kubeflow's training operator and
trainer, KubeRay, Volcano, Grove, AppWrapper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from preflight_kube.api.workloads import (
    batch,
    grove,
    jobset,
    kubeflow,
    leaderworkerset,
    others,
    ray,
)
from preflight_kube.api.workloads.labels import KUEUE_PARENT, KUEUE_PODSET, KUEUE_QUEUE
from preflight_kube.api.workloads.model import Object, WorkloadKind, map_of, name_of, places

_ALL: Final = (
    *batch.KINDS,
    batch.JOB,
    batch.CRON_JOB,
    jobset.KIND,
    leaderworkerset.KIND,
    *kubeflow.JOBS,
    kubeflow.TRAIN_JOB,
    *ray.KINDS,
    others.VOLCANO_JOB_KIND,
    grove.POD_CLIQUE_SET,
    others.APP_WRAPPER,
)
KINDS: Final = tuple(workload.title for workload in _ALL)
"""What people may give, as they write it."""
_QUEUED: Final = (batch.JOB, jobset.KIND, *kubeflow.JOBS)
"""Kinds whose pods Kueue labels with their pod set, once it admits what has the label of a queue;
those of a LeaderWorkerSet it holds back.
"""


class PodTemplate(NamedTuple):
    """One pod as it comes to admission, and what of its object it is (", worker"), empty where
    there is one only.
    """

    suffix: str
    pod: Object


def kind_of(item: Mapping[str, Any]) -> WorkloadKind | None:
    """The kind of an object, by group and kind; without an apiVersion the first of that name."""
    version = item.get("apiVersion")
    group = None if version is None else str(version).rpartition("/")[0]
    kinds = (it for it in _ALL if it.kind == item.get("kind") and group in (None, it.group))
    return next(kinds, None)


def named(word: str) -> WorkloadKind | None:
    """The kind that a person calls ``word``: kind or plural in any case, with its group where he
    likes (job.batch.volcano.sh).
    """
    name, _, group = word.lower().partition(".")
    kinds = (it for it in _ALL if name in (it.kind.lower(), it.plural))
    return next((it for it in kinds if group in ("", it.group)), None)


def templates(item: Object, others: Iterable[Object]) -> Iterator[PodTemplate]:
    """The pods that ``item`` makes; ``others`` are the objects beside it, among which a TrainJob
    finds its runtime.

    Raises :class:`ValueError` with one sentence, without the object's name, where it has none.
    """
    kind = kind_of(item)
    if kind is None:
        return
    if kind.kind == "Pod":
        yield PodTemplate("", item)
        return
    if kind.inner is not None:
        for place, inner in kind.inner(item, others):
            yield from _component(place, inner, others) if place else templates(inner, others)
        return
    matched = False
    for _, part, template in places(item, kind):
        if isinstance(template, dict):
            matched = True
            yield PodTemplate(f", {part}" if part else "", _pod(item, kind, part, template))
    if not matched:
        raise ValueError(
            f"has no pod template; it must be at {' or '.join('.'.join(path) for path in kind.paths)}"
        )


def _component(place: str, item: Object, others: Iterable[Object]) -> Iterator[PodTemplate]:
    """The pods of an object within another; none of a Service or a ConfigMap, as likely as not."""
    if (kind := kind_of(item)) is None:
        return
    what = f"{kind.title} {name_of(item) or place}"
    try:
        for template in templates(item, others):
            yield PodTemplate(f", {what}{template.suffix}", template.pod)
    except ValueError as error:
        raise ValueError(f"its component {what} {error}") from None


def _pod(item: Object, kind: WorkloadKind, part: str, template: Object) -> Object:
    """A template with what the controller of ``kind`` writes to its pods; of several pods the first
    one. An owner's UID is not known yet.
    """
    name = name_of(item)
    if kind.group == grove.GROUP:
        # A clique: labels and annotations of its own, the pod's spec below its spec.
        about = {key: template[key] for key in ("labels", "annotations") if template.get(key)}
        template = {"metadata": about, "spec": map_of(template.get("spec")).get("podSpec")}
    marks = kind.written(item, name, part)
    given = map_of(template.get("metadata"))
    metadata = dict(given)
    labels, annotations = dict(marks.labels), dict(marks.annotations)
    if KUEUE_QUEUE in map_of(map_of(item.get("metadata")).get("labels")):
        if kind in _QUEUED:
            labels[KUEUE_PODSET] = part.lower() or "main"
        elif kind is leaderworkerset.KIND:
            annotations[KUEUE_PARENT] = f"{kind.group}/{kind.kind.lower()}"
    for section, written in (("labels", labels), ("annotations", annotations)):
        if written:
            metadata[section] = {**map_of(given.get(section)), **written}
    metadata["ownerReferences"] = [
        {"kind": marks.owner or kind.kind, "name": name, "uid": "", "controller": True}
    ]
    spec = _with_env(template.get("spec"), marks.env)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _with_env(spec: Any, env: Mapping[str, str]) -> Any:
    if not env or not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
        return spec
    added = [{"name": name, "value": value} for name, value in env.items()]
    containers = [
        {**container, "env": [*(container.get("env") or []), *added]}
        if isinstance(container, dict)
        else container
        for container in spec["containers"]
    ]
    return {**spec, "containers": containers}
