"""Kubernetes' own: pods, the kinds of the group apps, Jobs and CronJobs. Pure."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from preflight_kube.api.workloads.labels import JOB_INDEX, JOB_NAME
from preflight_kube.api.workloads.model import (
    Keys,
    Object,
    Path,
    PodMarks,
    WorkloadKind,
    map_of,
    replicas,
    whole,
)
from preflight_kube.api.workloads.sizes import DeclaredSize, Section, SizedObject, counted

TEMPLATE: Final[Path] = ("spec", "template")


def _of_deployment(_: Object, __: str, ___: str) -> PodMarks:
    return PodMarks(owner="ReplicaSet")


def _replicas(item: Object, _: Keys) -> int:
    return replicas(item, "spec", "replicas")


KINDS: Final = (
    WorkloadKind("Pod", "", ("v1",), "pods", ((),)),
    WorkloadKind(
        "Deployment", "apps", ("v1",), "deployments", (TEMPLATE,), _of_deployment, pods=_replicas
    ),
    WorkloadKind("ReplicaSet", "apps", ("v1",), "replicasets", (TEMPLATE,), pods=_replicas),
    WorkloadKind("StatefulSet", "apps", ("v1",), "statefulsets", (TEMPLATE,), pods=_replicas),
    WorkloadKind("DaemonSet", "apps", ("v1",), "daemonsets", (TEMPLATE,)),
)


def _of_job(item: Object, name: str, _: str) -> PodMarks:
    return job_marks(map_of(item.get("spec")), name, "NonIndexed")


def _of_cron_job(item: Object, name: str, _: str) -> PodMarks:
    template = map_of(map_of(item.get("spec")).get("jobTemplate"))
    return job_marks(map_of(template.get("spec")), f"{name}-1", "NonIndexed")


def job_marks(spec: Object, name: str, mode: str) -> PodMarks:
    """Of the pods of a Job called ``name``; ``mode``: its completionMode where it names none."""
    index = {JOB_INDEX: "0"} if (spec.get("completionMode") or mode) == "Indexed" else {}
    return PodMarks({JOB_NAME: name, **index}, index, "Job")


def at_once(parallelism: object, completions: object) -> int:
    """How many pods of a Job exist at the same time, when it begins; what is not a whole number
    counts as not given (the API server's default for ``parallelism`` is 1).
    """
    pods = whole(parallelism, 1)
    return min(pods, whole(completions, pods))


def _pods(item: Object, _: Keys) -> int:
    spec = map_of(item.get("spec"))
    return at_once(spec.get("parallelism"), spec.get("completions"))


class JobSpec(Section, kw_only=True):
    """What of a Job says how many pods it has."""

    parallelism: int | None = None
    completions: int | None = None

    @property
    def at_once(self) -> int:
        """As :func:`at_once` has it."""
        return at_once(self.parallelism, self.completions)


_SPANS: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?(?:,|$)").findall
"""The spans of a text such as 1,3-5."""


class _JobStatus(Section, kw_only=True):
    succeeded: int = 0
    failed_indexes: str = ""

    @property
    def over(self) -> int:
        """How many indexes get no pod any more."""
        spans = ((int(first), int(last or first)) for first, last in _SPANS(self.failed_indexes))
        return self.succeeded + sum(last - first + 1 for first, last in spans)


class Job(SizedObject, kw_only=True):
    """batch Job, Indexed: fewer pods than at first where less indexes than that are left."""

    spec: JobSpec = msgspec.field(default_factory=JobSpec)
    status: _JobStatus = msgspec.field(default_factory=_JobStatus)

    def size(self, gang: str) -> DeclaredSize:
        """How many pods of ``gang`` start together, by this object."""
        spec, over = self.spec, self.status.over
        if spec.completions is None or not 0 < over < spec.completions:
            return counted(spec.at_once, "spec.parallelism")
        return counted(at_once(spec.parallelism, spec.completions - over), "spec.parallelism")


JOB: Final = WorkloadKind("Job", "batch", ("v1",), "jobs", (TEMPLATE,), _of_job, pods=_pods)
CRON_JOB: Final = WorkloadKind(
    "CronJob",
    "batch",
    ("v1",),
    "cronjobs",
    (("spec", "jobTemplate", "spec", "template"),),
    _of_cron_job,
)
