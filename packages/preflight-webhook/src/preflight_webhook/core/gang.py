"""Which gang a pod belongs to, decided here and nowhere else: sources, and the stamp.

A source looks at the pod alone, as it is at admission, and says what it finds there; nobody is
asked. Which object knows the gang's size, and how, is the gang controller's knowledge.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from preflight_kube.api.workloads import labels as keys
from preflight_proto import names
from preflight_proto.stamp import VERSION, Stamp, configmap_name, encode_stamp, gang_hash

from preflight_webhook.api.review import decode_entries
from preflight_webhook.api.types import OwnerReference, Pod
from preflight_webhook.config.config import GangDiscovery

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
_SIZE: Final = re.compile(r"0*[1-9][0-9]{0,5}", re.ASCII)
_SIBLINGS_ARE_NO_GANG: Final = frozenset(
    {"ReplicaSet", "DaemonSet", "StatefulSet", "Job", "RunaiJob", "Workflow"}
)
"""Owners whose pods are scheduled one by one, whatever the scheduler (KAI makes a PodGroup for each
pod of a plain Job, and for each step of an Argo Workflow).
"""

_ROLES: Final = (keys.TRAINING + "job-role", keys.TRAINING + "replica-type")
_KUEUE_PARENT: Final = "kueue.x-k8s.io/pod-suspending-parent"
"""Annotation of pods that Kueue admits for what they belong to, a group of them at a time."""
_TRAINER: Final = "node"
"""The replicated job of a TrainJob's JobSet that trains."""
_NOT_SCHEDULED_TOGETHER: Final = frozenset({"labels", "kueue", "kueueWorkload"})
"""Sources under which a StatefulSet that starts its pods one by one can run; a gang scheduler would
never start it.
"""
_NONE: Final[Mapping[str, str]] = {}


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


def identify(pod: Pod, config: GangDiscovery) -> GangIdentity | None:
    """The pod's gang by the first source that knows one, or None."""
    gang = _first(_sources(config), pod, config)
    if gang and gang.source == "kubeflow" and _role(pod):
        return None  # the job's size does not count it, so it must not come off that size either
    return gang


def _first(sources: Iterable[Source], pod: Pod, config: GangDiscovery) -> GangIdentity | None:
    for source in sources:
        if gang := source(pod, config):
            return gang
    return None


def ordered(pod: Pod, gang: GangIdentity, config: GangDiscovery) -> str:
    """Why this member starts before or after others instead of with them, or nothing.

    Such a member would wait in its init containers for members that wait for it to run.
    """
    labels = pod.metadata.labels or {}
    if _role(pod) == "launcher":
        return "an MPI launcher may be started only when its workers run"
    if (
        gang.source in _NOT_SCHEDULED_TOGETHER
        and not config.parallel_stateful_sets
        and keys.LWS + "name" not in labels
    ):
        maker = _controller_of(pod)
        if maker is not None and maker.kind == "StatefulSet":
            return (
                "a StatefulSet may start its pods one after the other (set gangDiscovery.parallelStatefulSets "
                "where all of them are podManagementPolicy: Parallel)"
            )
    return ""


def stamp(namespace: str, gang: GangIdentity | None, *, takes_part: bool) -> Stamp | None:
    """The stamp by which the gang controller knows a member; None where there is no gang."""
    if gang is None:
        return None
    return Stamp(
        v=VERSION,
        id=gang.id,
        source=gang.source,
        config_map=configmap_name(namespace, gang.id, gang.source),
        takes_part=takes_part,
        object=gang.object,
        size=gang.size,
    )


def marks(namespace: str, stamp: Stamp) -> tuple[dict[str, str], dict[str, str]]:
    """(labels, annotations) of a member. An empty roster means: no answer yet."""
    annotations = {names.GANG_ANNOTATION: encode_stamp(stamp)}
    if stamp.takes_part:
        annotations[names.ROSTER_ANNOTATION] = ""
    return {names.GANG_LABEL: gang_hash(namespace, stamp.id, stamp.source)}, annotations


def _named(source: str, *of: str, annotation: bool = False) -> Source:
    """The source ``source``: the value of a label (or an annotation) is the name of the object that
    knows the size. The first of the keys ``of`` counts.
    """

    def find(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
        metadata = pod.metadata
        if entries := metadata.annotations if annotation else metadata.labels:
            for key in of:
                if name := _name(entries.get(key)):
                    return GangIdentity(name, source, name)
        return None

    return find


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
    parts = [_name(ref.name), _name(ref.pod_group), _name(ref.pod_group_replica_key)]
    if not parts[0] or not parts[1]:
        return None
    return GangIdentity("/".join(filter(None, parts)), "workloadRef", parts[0])


def owner(pod: Pod, config: GangDiscovery) -> GangIdentity | None:
    """For schedulers that derive the group from the owner after admission: the owner stands for it.

    Where the pod's labels say more than its direct owner (a JobSet makes Jobs, which make pods),
    these count.
    """
    if pod.spec.scheduler_name not in config.owner_schedulers:
        return None
    if gang := _first((_OPT_IN["grove"], lws, kubeflow, jobset), pod, config):
        return gang
    made_by = _controller_of(pod)
    uid = made_by and made_by.kind not in _SIBLINGS_ARE_NO_GANG and _name(made_by.uid)
    return GangIdentity(uid, "owner") if uid else None


def kueue(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """Kueue's pod group: an annotation names it, or else a label (Kueue 0.18; before, a label
    alone), and an annotation has the size.
    """
    given = (pod.metadata.annotations or _NONE, _labels(pod))
    if not (name := next(filter(None, (_name(of.get(keys.KUEUE_GROUP)) for of in given)), None)):
        return None
    return GangIdentity(name, "kueue", name, *_annotated_size(pod, keys.KUEUE_COUNT))


def labels(pod: Pod, config: GangDiscovery) -> GangIdentity | None:
    """The labels that the configuration names."""
    labels, own = _labels(pod), config.labels
    if not (name := _name(labels.get(own.gang_id_label))):
        return None
    size, warning = _size(labels.get(own.gang_size_label), "label", own.gang_size_label)
    return GangIdentity(name, "labels", None, size, warning)


def kubeflow(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """A job of the training operator, or a TrainJob, which is a JobSet whose pods are told
    PET_NNODES. In any other JobSet that is the size of one torchrun, of which there may be several,
    each of some of its jobs or of all: only the JobSet knows.
    """
    labels = _labels(pod)
    name = _name(labels.get(keys.TRAINING + "job-name"))
    trains = labels.get(keys.JOBSET + "replicatedjob-name") == _TRAINER
    train_job = _name(labels.get(keys.JOBSET + "jobset-name")) if trains and not name else None
    if not name and not train_job:
        return None
    variables = (v for c in pod.spec.containers for v in decode_entries(bytes(c.env)))
    given = next((v.get("value") for v in variables if v.get("name") == keys.TRAINING_NODES), None)
    nodes = given if isinstance(given, str) else None
    if not name and nodes is None:
        return None
    job = name or train_job or ""
    if nodes and ":" in nodes:  # min:max is an elastic job, which has no one size
        return GangIdentity(job, "kubeflow", job)
    return GangIdentity(job, "kubeflow", job, *_size(nodes, "variable", keys.TRAINING_NODES))


def lws(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """One group (a leader and its workers) of a LeaderWorkerSet."""
    labels = _labels(pod)
    name, index = _name(labels.get(keys.LWS + "name")), _name(labels.get(keys.LWS + "group-index"))
    if not name or not index:
        return None
    return GangIdentity(f"{name}/{index}", "lws", name, *_annotated_size(pod, keys.LWS + "size"))


def jobset(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """A JobSet, or the group of replicated jobs in it that the pod belongs to."""
    labels = _labels(pod)
    if not (name := _name(labels.get(keys.JOBSET + "jobset-name"))):
        return None
    group = _name(labels.get(keys.JOBSET + "group-name"))
    return GangIdentity(f"{name}/{group}" if group and group != "default" else name, "jobset", name)


def job(pod: Pod, _: GangDiscovery) -> GangIdentity | None:
    """An Indexed Job; the pods of any other Job know nothing of each other."""
    labels = _labels(pod)
    indexed = keys.JOB_INDEX in labels or keys.JOB_INDEX in (pod.metadata.annotations or _NONE)
    name = _name(labels.get(keys.JOB_NAME)) if indexed else None
    return GangIdentity(name, "job", name) if name else None


def kueue_admitted(pod: Pod, config: GangDiscovery) -> GangIdentity | None:
    """A pod of a job that Kueue has admitted: it labels the pod templates when it starts the job,
    all of whose pods it has room for. Pods of a LeaderWorkerSet are there before, and gated.

    The gang is the one that the workload itself is, so far as the pod says which; any other pod is
    alone.
    """
    if not (keys.KUEUE_PODSET in _labels(pod) or _KUEUE_PARENT in (pod.metadata.annotations or ())):
        return None
    return _first((kubeflow, lws, jobset, job), pod, config)


# ADR-026's own names for Volcano and Kueue come last.
_VOLCANO: Final = _named(
    "volcano",
    keys.VOLCANO_GROUP,
    "scheduling.volcano.sh/group-name",
    "volcano.sh/pod-group",
    annotation=True,
)
"""Volcano's PodGroup, which its job controller (and LWS with Volcano) writes when it creates the
pod.
"""
_COSCHEDULING: Final = _named("coscheduling", keys.COSCHEDULING_GROUP)
_KAI: Final = (
    _named("kai", keys.KAI_GROUP, annotation=True),  # before KAI's own pod-grouper writes it
    _named("osmo", "osmo.group_uuid"),  # its PodGroup of KAI bears the same name
    owner,
)
_KUEUE_WORKLOAD: Final = _named("kueueWorkload", keys.KUEUE_WORKLOAD, annotation=True)
"""The Workload of any kind of job that Kueue admits (written under topology-aware scheduling)."""
_KUEUE: Final = (kueue, _named("kueueWorkload", "kueue.x-k8s.io/workload-name"))
_NATIVE: Final = (scheduling_group, workload_ref)
_METHODS: Final[dict[str, tuple[Source, ...]]] = {
    "workloadRef": _NATIVE,
    "volcano": (_VOLCANO,),
    "coscheduling": (_COSCHEDULING,),
    "kai": _KAI,
    "kueue": (*_KUEUE, kueue_admitted, _KUEUE_WORKLOAD),
    "labels": (labels,),
    "auto": (*_NATIVE, _VOLCANO, _COSCHEDULING, *_KAI, *_KUEUE, labels, kueue_admitted),
}
_OPT_IN: Final[dict[str, Source]] = {
    # The one that says most about a pod comes first: a TrainJob is a JobSet, whose pods are a
    # Job's.
    "kubeflow": kubeflow,
    "lws": lws,
    "jobset": jobset,
    "grove": _named("grove", keys.GROVE_GANG),
    "kueueWorkload": _KUEUE_WORKLOAD,
    "job": job,
}


@lru_cache(maxsize=256)  # namespaces may differ
def _sources(config: GangDiscovery) -> tuple[Source, ...]:
    """The sources in the order in which they are asked; the first that answers decides."""
    chosen = [
        _named(
            source.name,
            source.pod_label or source.pod_annotation or "",
            annotation=source.pod_label is None,
        )
        for source in config.sources
    ]
    chosen += _METHODS[config.method]
    chosen += (source for word, source in _OPT_IN.items() if word in config.opt_in)
    return tuple(dict.fromkeys(chosen))


def _controller_of(pod: Pod) -> OwnerReference | None:
    """The owner that made the pod."""
    return next((owner for owner in pod.metadata.owner_references or () if owner.controller), None)


def _role(pod: Pod) -> str:
    """The role of a pod of a Kubeflow job that no size counts, else nothing."""
    roles = [role.lower() for key in _ROLES if (role := _labels(pod).get(key))]
    return next((role for role in roles if role in keys.NOT_COUNTED), "")


def _labels(pod: Pod) -> Mapping[str, str]:
    return pod.metadata.labels or _NONE


def _name(text: str | None) -> str | None:
    """``text`` where it can be the name of something in Kubernetes, else None."""
    return text if text and _NAME.fullmatch(text) else None


def _annotated_size(pod: Pod, key: str) -> tuple[int | None, str]:
    return _size((pod.metadata.annotations or _NONE).get(key), "annotation", key)


def _size(text: str | None, kind: str, key: str) -> tuple[int | None, str]:
    """(size, warning) of what a pod says about its gang's size."""
    if text is not None and _SIZE.fullmatch(text):
        return int(text), ""
    if text is None and kind != "label":
        return None, ""
    # Of a gang by labels nobody else knows it.
    then = "as its members wait until one says it" if kind == "label" else "or leave it out"
    what = "is missing"
    if text is not None:
        what = f'"{text if len(text) <= 40 else text[:39] + "…"}" is not a gang size'
    return None, f"{kind} {key}: {what}; write a whole number from 1, {then}"
