"""JobSets. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from preflight_kube.api.workloads.batch import JobSpec, at_once, job_marks
from preflight_kube.api.workloads.labels import JOBSET
from preflight_kube.api.workloads.model import (
    Keys,
    Object,
    PodMarks,
    WorkloadKind,
    at,
    map_of,
    maps,
    whole,
)
from preflight_kube.api.workloads.sizes import (
    START_ORDER,
    DeclaredSize,
    Few,
    Section,
    SizedObject,
    added,
)

_DEFAULT: Final = "default"
"""The group of a replicated job that names none."""


def _of_jobset(item: Object, name: str, part: str) -> PodMarks:
    jobs = maps(map_of(item.get("spec")).get("replicatedJobs"))
    job: Object = next((job for job in jobs if job.get("name") == part), {})
    inner = job_marks(
        map_of(map_of(job.get("template")).get("spec")), f"{name}-{part}-0", "Indexed"
    )
    own = {
        "jobset-name": name,
        "replicatedjob-name": part,
        "group-name": str(job.get("groupName") or _DEFAULT),
    }
    marks = {f"{JOBSET}{key}": value for key, value in own.items()}
    return PodMarks({**inner.labels, **marks}, {**inner.annotations, **marks}, "Job")


def _pods(item: Object, keys: Keys) -> int:
    """``keys``: spec, replicatedJobs, which, template, spec, template."""
    job = map_of(at(item, keys[:-1]))
    times = whole(at(item, (*keys[:-3], "replicas")), 1)
    return times * at_once(job.get("parallelism"), job.get("completions"))


class _JobTemplate(Section, kw_only=True):
    spec: JobSpec = msgspec.field(default_factory=JobSpec)


class _ReplicatedJob(Section, kw_only=True):
    group_name: str = _DEFAULT
    replicas: int = 1
    template: _JobTemplate = msgspec.field(default_factory=_JobTemplate)
    depends_on: Few[Section] = msgspec.field(default_factory=list)


class _StartupPolicy(Section, kw_only=True):
    startup_policy_order: str = ""


class _JobSetSpec(Section, kw_only=True):
    replicated_jobs: Few[_ReplicatedJob] = msgspec.field(default_factory=list)
    startup_policy: _StartupPolicy | None = None


class JobSet(SizedObject, kw_only=True):
    """jobset.x-k8s.io JobSet; the gang's id is `name/group` for a group of its jobs,
    and its name for those that are in no other.
    """

    spec: _JobSetSpec = msgspec.field(default_factory=_JobSetSpec)

    def size(self, gang: str) -> DeclaredSize:
        """How many pods of ``gang`` start together, by this object."""
        group = gang.partition("/")[2] or _DEFAULT
        jobs = [job for job in self.spec.replicated_jobs if (job.group_name or _DEFAULT) == group]
        policy = self.spec.startup_policy
        if len(jobs) > 1 and policy is not None and policy.startup_policy_order == "InOrder":
            return DeclaredSize(skip=f"its startupPolicy is InOrder: {START_ORDER}")
        if any(job.depends_on for job in jobs):
            return DeclaredSize(skip=f"some of its jobs depend on others: {START_ORDER}")
        if any(job.replicas < 0 for job in jobs):
            return DeclaredSize(unknown="spec.replicatedJobs[].replicas is below zero")
        return added(
            (job.replicas * job.template.spec.at_once for job in jobs), "replicated job with pods"
        )


KIND: Final = WorkloadKind(
    "JobSet",
    "jobset.x-k8s.io",
    ("v1alpha2",),
    "jobsets",
    (("spec", "replicatedJobs", "*", "template", "spec", "template"),),
    _of_jobset,
    pods=_pods,
)
