"""Which objects know the size of a gang, for each source that the webhook stamps.

Pure. The first of a source's kinds that has an object of that name says it. Kinds beside the
Kubernetes layer's are described by the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from preflight_kube.api.workloads import batch, grove, jobset, kubeflow, leaderworkerset, podgroups
from preflight_kube.api.workloads.model import WorkloadKind
from preflight_kube.api.workloads.sizes import DeclaredSize, SizedMetadata, SizedObject, counted

from preflight_gang.api.expression import Expression, NoNumber


class SizedKind(msgspec.Struct, frozen=True):
    """A resource, and the Struct that reads it."""

    group: str
    resource: str
    kind: str
    type: type[SizedObject]

    @property
    def absent(self) -> str:
        """What is said of its objects where the cluster does not serve it."""
        return f"cannot be read: the cluster does not serve {self.resource}.{self.group}"


class _Labeled(SizedMetadata, kw_only=True):
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


def sized_by(expression: Expression) -> type[SizedObject]:
    """Objects whose size ``expression`` says; of them nothing but that is kept."""

    class Configured(SizedObject, kw_only=True):
        metadata: _Labeled
        spec: Any = None
        status: Any = None
        declared: DeclaredSize = DeclaredSize()

        def __post_init__(self) -> None:
            about = {"labels": self.metadata.labels, "annotations": self.metadata.annotations}
            item = {"metadata": about, "spec": self.spec, "status": self.status}
            try:
                self.declared = counted(expression.value(item), "pods", least=True)
            except NoNumber as error:
                self.declared = DeclaredSize(unknown=str(error))
            self.spec = self.status = None
            self.metadata.labels, self.metadata.annotations = {}, {}

        def size(self, gang: str) -> DeclaredSize:
            return self.declared

    return Configured


def _kind(kind: WorkloadKind, type_: type[SizedObject]) -> SizedKind:
    return SizedKind(kind.group, kind.plural, kind.kind, type_)


_KAI: Final = _kind(podgroups.KAI, podgroups.KaiPodGroup)
_KUEUE: Final = _kind(podgroups.KUEUE_WORKLOAD_KIND, podgroups.KueueWorkload)

Sources = Mapping[str, tuple[SizedKind, ...]]
"""The kinds of objects that know sizes, by the name of the source in the stamp."""

BUILT_IN: Final[Sources] = {
    "schedulingGroup": (_kind(podgroups.POD_GROUP, podgroups.PodGroup),),
    "workloadRef": (_kind(podgroups.WORKLOAD, podgroups.Workload),),
    "volcano": (_kind(podgroups.VOLCANO, podgroups.MinMemberPodGroup),),
    "coscheduling": (_kind(podgroups.COSCHEDULING, podgroups.MinMemberPodGroup),),
    "kai": (_KAI,),
    "osmo": (_KAI,),
    "owner": (_KAI,),
    "kueue": (_KUEUE,),
    "kueueWorkload": (_KUEUE,),
    "jobset": (_kind(jobset.KIND, jobset.JobSet),),
    "lws": (_kind(leaderworkerset.KIND, leaderworkerset.LeaderWorkerSet),),
    "job": (_kind(batch.JOB, batch.Job),),
    "kubeflow": (
        _kind(kubeflow.TRAIN_JOB, kubeflow.TrainJob),
        *(_kind(kind, kubeflow.TrainingJob) for kind in kubeflow.JOBS),
    ),
    "grove": (_kind(grove.POD_GANG, grove.PodGang),),
}
"""A source that is not here knows its size from the pod (the stamp), or not at all."""
