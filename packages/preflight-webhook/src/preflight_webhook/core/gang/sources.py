"""Which field of a pod names its gang: one small function a source.

A source looks at the pod alone, as it is at admission, and says what it finds there; nobody is
asked. Which object knows the gang's size, and how, is the gang controller's knowledge.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from preflight_kube.api.workloads import labels as keys
from preflight_proto.gang_source import BUILT_IN, GangSource

from preflight_webhook.api.types import Container, OwnerReference, Pod, Variable
from preflight_webhook.config.config import GangDiscovery

__all__ = ["SOURCES", "GangIdentity", "Source", "controller_of", "sources"]

# ADR-026's own names for Volcano and Kueue come last in their source.
_VOLCANO: Final = (keys.VOLCANO_GROUP, "scheduling.volcano.sh/group-name", "volcano.sh/pod-group")
_OSMO: Final = "osmo.group_uuid"
_KUEUE_ADR: Final = "kueue.x-k8s.io/workload-name"

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
_SIZE: Final = re.compile(r"0*[1-9][0-9]{0,5}", re.ASCII)
_SIBLINGS_ARE_NO_GANG: Final = frozenset({"ReplicaSet", "DaemonSet", "StatefulSet", "Job"})
"""Owners whose pods are scheduled one by one, whatever the scheduler (KAI makes a PodGroup for each
pod of a plain Job).
"""

_env = msgspec.json.Decoder(list[Variable] | None)
_NONE: Final[dict[str, str]] = {}


class GangIdentity(NamedTuple):
    """What a source says; the same for all members. ``warning`` is one sentence for the user, or
    empty.

    ``id``, ``source``, ``object`` and ``size`` become fields of the stamp.
    """

    id: str
    source: str
    object: str | None = None
    size: int | None = None
    warning: str = ""


Source = Callable[[Pod, GangDiscovery], GangIdentity | None]


def scheduling_group(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """Kubernetes 1.36: `spec.schedulingGroup.podGroupName`."""
    group = pod.spec.scheduling_group
    name = group and _name(group.pod_group_name)
    return GangIdentity(name, "schedulingGroup", name) if name else None


def workload_ref(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """Kubernetes 1.35: `spec.workloadRef`, a group of a Workload, and its replica where there are
    several.
    """
    if (ref := pod.spec.workload_ref) is None:
        return None
    workload, group, replica = (
        _name(ref.name),
        _name(ref.pod_group),
        _name(ref.pod_group_replica_key),
    )
    if not workload or not group:
        return None
    return GangIdentity(
        f"{workload}/{group}/{replica}" if replica else f"{workload}/{group}",
        "workloadRef",
        workload,
    )


def volcano(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """Volcano's PodGroup, which its job controller (and LWS with Volcano) writes when it creates
    the pod.
    """
    if annotations := pod.metadata.annotations:
        for key in _VOLCANO:
            if name := _name(annotations.get(key)):
                return GangIdentity(name, "volcano", name)
    return None


def coscheduling(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """The PodGroup of the scheduler-plugins."""
    name = _name(_labels(pod).get(keys.COSCHEDULING_GROUP))
    return GangIdentity(name, "coscheduling", name) if name else None


def kai(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """KAI's PodGroup, where somebody wrote it before KAI's own pod-grouper does
    (after admission).
    """
    name = _name((pod.metadata.annotations or _NONE).get(keys.KAI_GROUP))
    return GangIdentity(name, "kai", name) if name else None


def osmo(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """OSMO's task group; its PodGroup of KAI bears the same name."""
    name = _name(_labels(pod).get(_OSMO))
    return GangIdentity(name, "osmo", name) if name else None


def owner(pod: Pod, config: GangDiscovery) -> GangIdentity | None:
    """For schedulers that derive the group from the owner after admission: the owner stands for it.

    Where the pod's labels say more than its direct owner (a JobSet makes Jobs, which make pods),
    these count.
    """
    if pod.spec.scheduler_name not in config.owner_schedulers:
        return None
    for workload in (grove, lws, kubeflow, jobset):
        if gang := workload(pod, config):
            return gang
    made_by = controller_of(pod)
    uid = made_by and made_by.kind not in _SIBLINGS_ARE_NO_GANG and _name(made_by.uid)
    return GangIdentity(uid, "owner") if uid else None


def kueue(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """Kueue's pod group, whose annotation has the size; ADR-026's label, which today's Kueue does
    not write.
    """
    labels = _labels(pod)
    if name := _name(labels.get(keys.KUEUE_GROUP)):
        size, warning = _size(
            (pod.metadata.annotations or _NONE).get(keys.KUEUE_COUNT),
            "annotation",
            keys.KUEUE_COUNT,
        )
        return GangIdentity(name, "kueue", name, size, warning)
    name = _name(labels.get(_KUEUE_ADR))
    return GangIdentity(name, "kueueWorkload", name) if name else None


def kueue_workload(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """The Workload of any kind of job that Kueue admits (written under
    topology-aware scheduling).
    """
    name = _name((pod.metadata.annotations or _NONE).get(keys.KUEUE_WORKLOAD))
    return GangIdentity(name, "kueueWorkload", name) if name else None


def labels(pod: Pod, config: GangDiscovery) -> GangIdentity | None:
    """The labels that the configuration names."""
    found, own = _labels(pod), config.labels
    if not (name := _name(found.get(own.gang_id_label))):
        return None
    size, warning = _size(found.get(own.gang_size_label), "label", own.gang_size_label)
    return GangIdentity(name, "labels", None, size, warning)


def kubeflow(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """A job of the training operator, or a TrainJob, which is a JobSet whose pods are told
    PET_NNODES.
    """
    found = _labels(pod)
    name = _name(found.get(keys.TRAINING + "job-name"))
    train_job = None if name else _name(found.get(keys.JOBSET + "jobset-name"))
    if not name and not train_job:
        return None
    nodes = next(
        (
            v.value
            for c in pod.spec.containers
            for v in _variables(c)
            if v.name == keys.TRAINING_NODES
        ),
        None,
    )
    if not name and nodes is None:
        return None
    job = name or train_job or ""
    # min:max is an elastic job, which has no one size.
    size, warning = (
        (None, "") if nodes and ":" in nodes else _size(nodes, "variable", keys.TRAINING_NODES)
    )
    return GangIdentity(job, "kubeflow", job, size, warning)


def lws(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """One group (a leader and its workers) of a LeaderWorkerSet."""
    found = _labels(pod)
    name, index = _name(found.get(keys.LWS + "name")), _name(found.get(keys.LWS + "group-index"))
    if not name or not index:
        return None
    size, warning = _size(
        (pod.metadata.annotations or _NONE).get(keys.LWS + "size"), "annotation", keys.LWS + "size"
    )
    return GangIdentity(f"{name}/{index}", "lws", name, size, warning)


def jobset(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """A JobSet, or the group of replicated jobs in it that the pod belongs to."""
    found = _labels(pod)
    if not (name := _name(found.get(keys.JOBSET + "jobset-name"))):
        return None
    group = _name(found.get(keys.JOBSET + "group-name"))
    return GangIdentity(f"{name}/{group}" if group and group != "default" else name, "jobset", name)


def grove(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """Grove's PodGang."""
    name = _name(_labels(pod).get(keys.GROVE_GANG))
    return GangIdentity(name, "grove", name) if name else None


def job(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """An Indexed Job; the pods of any other Job know nothing of each other."""
    found = _labels(pod)
    indexed = keys.JOB_INDEX in found or keys.JOB_INDEX in (pod.metadata.annotations or _NONE)
    name = _name(found.get(keys.JOB_NAME)) if indexed else None
    return GangIdentity(name, "job", name) if name else None


def kueue_admitted(pod: Pod, config: GangDiscovery) -> GangIdentity | None:
    """A pod of a job that Kueue has admitted: it labels the pod templates when it starts the job,
    all of whose pods it has room for.

    The gang is the one that the workload itself is, so far as the pod says which; any other pod is
    alone.
    """
    if keys.KUEUE_PODSET not in _labels(pod):
        return None
    return next(
        (gang for workload in (kubeflow, lws, jobset, job) if (gang := workload(pod, config))), None
    )


def configured(source: GangSource) -> Source:
    """A source of the configuration: the value of a label or an annotation is the name of the
    object that knows the size.
    """

    def find(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
        key, found = source.pod_label, pod.metadata.labels
        if key is None:
            key, found = source.pod_annotation or "", pod.metadata.annotations
        name = _name((found or _NONE).get(key))
        return GangIdentity(name, source.name, name) if name else None

    return find


_METHODS: Final[dict[str, tuple[Source, ...]]] = {
    "workloadRef": (scheduling_group, workload_ref),
    "volcano": (volcano,),
    "coscheduling": (coscheduling,),
    "kai": (kai, osmo, owner),
    "kueue": (kueue, kueue_workload, kueue_admitted),
    "labels": (labels,),
    "auto": (
        scheduling_group,
        workload_ref,
        volcano,
        coscheduling,
        kai,
        osmo,
        owner,
        kueue,
        labels,
        kueue_admitted,
    ),
}
_OPT_IN: Final[dict[str, Source]] = {
    # The one that says most about a pod comes first: a TrainJob is a JobSet, whose pods are a
    # Job's.
    "kubeflow": kubeflow,
    "lws": lws,
    "jobset": jobset,
    "grove": grove,
    "kueueWorkload": kueue_workload,
    "job": job,
}
SOURCES: Final = BUILT_IN
"""Every word that a stamp's ``source`` can be, beside the names of configured ones."""


@lru_cache(maxsize=256)  # namespaces may differ
def sources(config: GangDiscovery) -> tuple[Source, ...]:
    """The sources in the order in which they are asked; the first that answers decides."""
    own = [configured(one) for one in config.sources]
    chosen = [
        *own,
        *_METHODS[config.method],
        *(source for word, source in _OPT_IN.items() if word in config.opt_in),
    ]
    return tuple(dict.fromkeys(chosen))


def controller_of(pod: Pod) -> OwnerReference | None:
    """The owner that made the pod."""
    return next((owner for owner in pod.metadata.owner_references or () if owner.controller), None)


def _labels(pod: Pod) -> dict[str, str]:
    return pod.metadata.labels or _NONE


def _variables(container: Container) -> list[Variable]:
    try:
        return _env.decode(container.env) or []
    except msgspec.DecodeError:
        return []  # the API server will not take it either


def _name(text: str | None) -> str | None:
    """``text`` where it can be the name of something in Kubernetes, else None."""
    return text if text and _NAME.fullmatch(text) else None


def _size(text: str | None, kind: str, key: str) -> tuple[int | None, str]:
    """(size, warning) of what a pod says about its gang's size."""
    if text is None:
        return None, ""
    if _SIZE.fullmatch(text):
        return int(text), ""
    shown = text if len(text) <= 40 else text[:39] + "…"
    return (
        None,
        f'{kind} {key}: "{shown}" is not a gang size; write a whole number from 1, or leave it out',
    )
