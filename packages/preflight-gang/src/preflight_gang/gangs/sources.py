"""Which objects know the size of a gang, for each source that the webhook stamps.

Pure. The webhook knows pods; this table knows objects. The first of a source's kinds that has an object of that name says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .workload_sizes import (
    Job,
    JobSet,
    KueueWorkload,
    LeaderWorkerSet,
    MinMemberPodGroup,
    PodGang,
    PodGroup,
    SizedKind,
    SizedObject,
    TrainingJob,
    TrainJob,
    Workload,
)

__all__ = ["BUILT_IN", "Sources"]


def _kind(group: str, resource: str, kind: str, type_: type[SizedObject]) -> SizedKind:
    return SizedKind(group=group, resource=resource, kind=kind, type=type_)


_KAI: Final = _kind("scheduling.run.ai", "podgroups", "PodGroup", MinMemberPodGroup)
_KUEUE: Final = _kind("kueue.x-k8s.io", "workloads", "Workload", KueueWorkload)
_TRAINING: Final = ("PyTorchJob", "MPIJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob")

Sources = Mapping[str, tuple[SizedKind, ...]]
"""The kinds of objects that know sizes, by the name of the source in the stamp."""

BUILT_IN: Final[Sources] = {
    "schedulingGroup": (_kind("scheduling.k8s.io", "podgroups", "PodGroup", PodGroup),),
    "workloadRef": (_kind("scheduling.k8s.io", "workloads", "Workload", Workload),),
    "volcano": (_kind("scheduling.volcano.sh", "podgroups", "PodGroup", MinMemberPodGroup),),
    "coscheduling": (_kind("scheduling.x-k8s.io", "podgroups", "PodGroup", MinMemberPodGroup),),
    "kai": (_KAI,),
    "osmo": (_KAI,),
    "owner": (_KAI,),
    "kueue": (_KUEUE,),
    "kueueWorkload": (_KUEUE,),
    "jobset": (_kind("jobset.x-k8s.io", "jobsets", "JobSet", JobSet),),
    "lws": (_kind("leaderworkerset.x-k8s.io", "leaderworkersets", "LeaderWorkerSet", LeaderWorkerSet),),
    "job": (_kind("batch", "jobs", "Job", Job),),
    "kubeflow": (
        _kind("trainer.kubeflow.org", "trainjobs", "TrainJob", TrainJob),
        *(_kind("kubeflow.org", f"{kind.lower()}s", kind, TrainingJob) for kind in _TRAINING),
    ),
    "grove": (_kind("scheduler.grove.io", "podgangs", "PodGang", PodGang),),
}
"""A source that is not here knows its size from the pod (the stamp), or not at all."""
