"""The objects that know the size of a gang: of each, the fields it is read from, and how.

Pure. Pods know which object it is; API versions are discovered. Any field may be missing: an object then says why it knows no size,
and its own gang waits. Lists have a limit, since anybody may write such objects and all of a kind are kept. Where the members of an object start one after the other, the
first would wait in its init containers for the last, so there is nothing to test: `skip`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, TypeVar

import msgspec

from .expression import MAX_SIZE, Expression, NoNumber, beyond

__all__ = [
    "DeclaredSize",
    "Job",
    "JobSet",
    "KueueWorkload",
    "LeaderWorkerSet",
    "MinMemberPodGroup",
    "PodGang",
    "PodGroup",
    "SizedKind",
    "SizedObject",
    "TrainJob",
    "TrainingJob",
    "Workload",
    "sized_by",
]

START_ORDER: Final = "its pods are not started together, so the first would wait for the last"


class DeclaredSize(msgspec.Struct, frozen=True, kw_only=True):
    """What an object says about the size: ``count`` pods, or ``skip`` and why there is none to test, or ``unknown`` and why.
    ``least``: as many as there must be before any is started, and there may be more."""

    count: int | None = None
    least: bool = False
    skip: str = ""
    unknown: str = ""


_T = TypeVar("_T")
_Few = Annotated[list[_T], msgspec.Meta(max_length=256)]
_Roles = Annotated[dict[str, _T], msgspec.Meta(max_length=64)]
"""Workloads have a handful of parts; Kubernetes' own Workload has eight at most."""


class SizedMetadata(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    name: str
    namespace: str = ""
    uid: str = ""


class SizedObject(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    """An object that knows the size of gangs. Subclasses name the fields they read in ``spec``."""

    metadata: SizedMetadata

    def size(self, gang: str) -> DeclaredSize:
        """What it says about the gang whose raw id is ``gang``."""
        raise NotImplementedError


class SizedKind(msgspec.Struct, frozen=True, kw_only=True):
    """A resource, and the Struct that reads it."""

    group: str
    resource: str
    kind: str
    type: type[SizedObject]


class _Spec(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    pass


def _counted(count: int | None, what: str, *, least: bool = False) -> DeclaredSize:
    if count is None or count <= 0:
        return DeclaredSize(unknown=f"it has no {what}")
    return DeclaredSize(count=count, least=least) if count <= MAX_SIZE else DeclaredSize(unknown=beyond(count))


def _added(counts: Iterable[int], what: str, *, least: bool = False) -> DeclaredSize:
    """Of several parts. One below zero would take members from the others."""
    parts = list(counts)
    return (
        DeclaredSize(unknown=f"{what} is below zero")
        if min(parts, default=0) < 0
        else _counted(sum(parts), what, least=least)
    )


# --- Kubernetes' own gang scheduling: `gang` has a minimum, `basic` schedules pod by pod


class _GangPolicy(_Spec, kw_only=True):
    min_count: int | None = None


class _Empty(_Spec, kw_only=True):
    pass


class _Policy(_Spec, kw_only=True):
    gang: _GangPolicy | None = None
    basic: _Empty | None = None

    def size(self, where: str) -> DeclaredSize:
        if self.gang is not None:
            return _counted(self.gang.min_count, f"{where}.gang.minCount", least=True)
        if self.basic is not None:
            return DeclaredSize(skip=f"{where} is the policy basic: its pods are not started together")
        return DeclaredSize(unknown=f"it has no {where}")


class _PodGroupSpec(_Spec, kw_only=True):
    scheduling_policy: _Policy = msgspec.field(default_factory=_Policy)


class PodGroup(SizedObject, kw_only=True):
    """scheduling.k8s.io PodGroup (from 1.36)."""

    spec: _PodGroupSpec = msgspec.field(default_factory=_PodGroupSpec)

    def size(self, gang: str) -> DeclaredSize:
        return self.spec.scheduling_policy.size("spec.schedulingPolicy")


class _WorkloadGroup(_Spec, kw_only=True):
    name: str = ""
    policy: _Policy = msgspec.field(default_factory=_Policy)


class _WorkloadSpec(_Spec, kw_only=True):
    pod_groups: _Few[_WorkloadGroup] = []


class Workload(SizedObject, kw_only=True):
    """scheduling.k8s.io Workload (1.35); the gang's id is `workload/podGroup[/replica]`."""

    spec: _WorkloadSpec = msgspec.field(default_factory=_WorkloadSpec)

    def size(self, gang: str) -> DeclaredSize:
        wanted = gang.split("/")[1] if "/" in gang else ""
        for group in self.spec.pod_groups:
            if group.name == wanted:
                return group.policy.size(f"spec.podGroups[{wanted}].policy")
        return DeclaredSize(unknown=f"it has no pod group {wanted!r}")


# --- schedulers


class _MinMember(_Spec, kw_only=True):
    min_member: int | None = None


class MinMemberPodGroup(SizedObject, kw_only=True):
    """The PodGroups of Volcano, of the scheduler-plugins (coscheduling) and of KAI."""

    spec: _MinMember = msgspec.field(default_factory=_MinMember)

    def size(self, gang: str) -> DeclaredSize:
        return _counted(self.spec.min_member, "spec.minMember", least=True)


class _PodSet(_Spec, kw_only=True):
    count: int = 0


class _PodSets(_Spec, kw_only=True):
    pod_sets: _Few[_PodSet] = []


class _Assigned(_Spec, kw_only=True):
    count: int | None = None


class _Admission(_Spec, kw_only=True):
    pod_set_assignments: _Few[_Assigned] = []


class _KueueStatus(_Spec, kw_only=True):
    admission: _Admission | None = None


class KueueWorkload(SizedObject, kw_only=True):
    """kueue.x-k8s.io Workload: all its pod sets start together, once it is admitted; with fewer pods, where it was admitted in part."""

    spec: _PodSets = msgspec.field(default_factory=_PodSets)
    status: _KueueStatus = msgspec.field(default_factory=_KueueStatus)

    def size(self, gang: str) -> DeclaredSize:
        admission = self.status.admission
        assigned = [one.count for one in admission.pod_set_assignments] if admission is not None else []
        if assigned and None not in assigned:
            return _added((one or 0 for one in assigned), "status.admission.podSetAssignments[].count")
        return _added((one.count for one in self.spec.pod_sets), "spec.podSets[].count")


class _GroveGroup(_Spec, kw_only=True):
    min_replicas: int = 0


class _PodGangSpec(_Spec, kw_only=True):
    podgroups: _Few[_GroveGroup] = []


class PodGang(SizedObject, kw_only=True):
    """scheduler.grove.io PodGang."""

    spec: _PodGangSpec = msgspec.field(default_factory=_PodGangSpec)

    def size(self, gang: str) -> DeclaredSize:
        return _added((one.min_replicas for one in self.spec.podgroups), "spec.podgroups[].minReplicas", least=True)


# --- workload controllers


class _JobSpec(_Spec, kw_only=True):
    parallelism: int | None = None
    completions: int | None = None

    @property
    def at_once(self) -> int:
        """How many of its pods exist at the same time, when it begins (the API server's default for both is 1)."""
        parallelism = self.parallelism if self.parallelism is not None else 1
        return min(parallelism, self.completions) if self.completions is not None else parallelism


class Job(SizedObject, kw_only=True):
    """batch Job, Indexed."""

    spec: _JobSpec = msgspec.field(default_factory=_JobSpec)

    def size(self, gang: str) -> DeclaredSize:
        return _counted(self.spec.at_once, "spec.parallelism")


class _JobTemplate(_Spec, kw_only=True):
    spec: _JobSpec = msgspec.field(default_factory=_JobSpec)


class _ReplicatedJob(_Spec, kw_only=True):
    group_name: str = "default"
    replicas: int = 1
    template: _JobTemplate = msgspec.field(default_factory=_JobTemplate)
    depends_on: _Few[_Empty] = []


class _StartupPolicy(_Spec, kw_only=True):
    startup_policy_order: str = ""


class _JobSetSpec(_Spec, kw_only=True):
    replicated_jobs: _Few[_ReplicatedJob] = []
    startup_policy: _StartupPolicy | None = None


class JobSet(SizedObject, kw_only=True):
    """jobset.x-k8s.io JobSet; the gang's id is its name, or `name/group` for a group of its jobs."""

    spec: _JobSetSpec = msgspec.field(default_factory=_JobSetSpec)

    def size(self, gang: str) -> DeclaredSize:
        group = gang.split("/")[1] if "/" in gang else ""
        jobs = [job for job in self.spec.replicated_jobs if not group or job.group_name == group]
        policy = self.spec.startup_policy
        if len(jobs) > 1 and policy is not None and policy.startup_policy_order == "InOrder":
            return DeclaredSize(skip=f"its startupPolicy is InOrder: {START_ORDER}")
        if any(job.depends_on for job in jobs):
            return DeclaredSize(skip=f"some of its jobs depend on others: {START_ORDER}")
        if any(job.replicas < 0 for job in jobs):
            return DeclaredSize(unknown="spec.replicatedJobs[].replicas is below zero")
        return _added((job.replicas * job.template.spec.at_once for job in jobs), "replicated job with pods")


class _LeaderWorkerTemplate(_Spec, kw_only=True):
    size: int = 1


class _LeaderWorkerSetSpec(_Spec, kw_only=True):
    startup_policy: str = "LeaderCreated"
    leader_worker_template: _LeaderWorkerTemplate = msgspec.field(default_factory=_LeaderWorkerTemplate)


class LeaderWorkerSet(SizedObject, kw_only=True):
    """leaderworkerset.x-k8s.io LeaderWorkerSet; one gang is one group of it."""

    spec: _LeaderWorkerSetSpec = msgspec.field(default_factory=_LeaderWorkerSetSpec)

    def size(self, gang: str) -> DeclaredSize:
        if self.spec.startup_policy == "LeaderReady":
            return DeclaredSize(skip=f"its startupPolicy is LeaderReady: {START_ORDER}")
        return _counted(self.spec.leader_worker_template.size, "spec.leaderWorkerTemplate.size")


class _Replicas(_Spec, kw_only=True):
    replicas: int = 1


class _TrainingJobSpec(_Spec, kw_only=True):
    """One of the maps, by the kind of job."""

    pytorch_replica_specs: _Roles[_Replicas] = {}
    mpi_replica_specs: _Roles[_Replicas] = {}
    tf_replica_specs: _Roles[_Replicas] = {}
    xgb_replica_specs: _Roles[_Replicas] = {}
    paddle_replica_specs: _Roles[_Replicas] = {}
    jax_replica_specs: _Roles[_Replicas] = {}


class TrainingJob(SizedObject, kw_only=True):
    """kubeflow.org PyTorchJob, MPIJob, TFJob, XGBoostJob, PaddleJob, JAXJob."""

    spec: _TrainingJobSpec = msgspec.field(default_factory=_TrainingJobSpec)

    def size(self, gang: str) -> DeclaredSize:
        maps = [getattr(self.spec, name) for name in self.spec.__struct_fields__]
        # An MPI launcher starts when its workers run: it is no part of what is tested (nor is it stamped as one).
        roles = [(role.lower(), one.replicas) for specs in maps for role, one in specs.items()]
        return _added((count for role, count in roles if role not in {"launcher", "evaluator"}), "replica specs")


class _Trainer(_Spec, kw_only=True):
    num_nodes: int | None = None


class _TrainJobSpec(_Spec, kw_only=True):
    trainer: _Trainer = msgspec.field(default_factory=_Trainer)


class TrainJob(SizedObject, kw_only=True):
    """trainer.kubeflow.org TrainJob; without numNodes its runtime decides, and the pods say it (PET_NNODES)."""

    spec: _TrainJobSpec = msgspec.field(default_factory=_TrainJobSpec)

    def size(self, gang: str) -> DeclaredSize:
        return _counted(self.spec.trainer.num_nodes, "spec.trainer.numNodes")


# --- what only the configuration knows


class _Labelled(SizedMetadata, kw_only=True):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


def sized_by(expression: Expression) -> type[SizedObject]:
    """Objects whose size ``expression`` says; of them nothing but that is kept."""

    class Configured(SizedObject, kw_only=True):
        metadata: _Labelled
        spec: Any = None
        status: Any = None
        declared: DeclaredSize = DeclaredSize()

        def __post_init__(self) -> None:
            about = {"labels": self.metadata.labels, "annotations": self.metadata.annotations}
            try:
                self.declared = _counted(
                    expression.value({"metadata": about, "spec": self.spec, "status": self.status}), "pods", least=True
                )
            except NoNumber as error:
                self.declared = DeclaredSize(unknown=str(error))
            self.spec = self.status = None
            self.metadata.labels, self.metadata.annotations = {}, {}

        def size(self, gang: str) -> DeclaredSize:
            return self.declared

    return Configured
