"""Jobs and CronJobs. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from .core import TEMPLATE
from .labels import JOB_INDEX, JOB_NAME
from .model import Object, PodMarks, WorkloadKind, map_of
from .sizes import DeclaredSize, Section, SizedObject, counted

__all__ = ["CRON_JOB", "JOB", "Job", "JobSpec", "job_marks"]


def _of_job(item: Object, name: str, _: str) -> PodMarks:
    return job_marks(map_of(item.get("spec")), name, "NonIndexed")


def _of_cron_job(item: Object, name: str, _: str) -> PodMarks:
    template = map_of(map_of(item.get("spec")).get("jobTemplate"))
    return job_marks(map_of(template.get("spec")), f"{name}-1", "NonIndexed")


def job_marks(spec: Object, name: str, mode: str) -> PodMarks:
    """Of the pods of a Job called ``name``; ``mode``: its completionMode where it names none."""
    index = {JOB_INDEX: "0"} if (spec.get("completionMode") or mode) == "Indexed" else {}
    return PodMarks({JOB_NAME: name, **index}, index, "Job")


class JobSpec(Section, kw_only=True):
    """What of a Job says how many pods it has."""

    parallelism: int | None = None
    completions: int | None = None

    @property
    def at_once(self) -> int:
        """How many of its pods exist at the same time, when it begins (the API server's default for
        both is 1).
        """
        parallelism = self.parallelism if self.parallelism is not None else 1
        return min(parallelism, self.completions) if self.completions is not None else parallelism


class Job(SizedObject, kw_only=True):
    """batch Job, Indexed."""

    spec: JobSpec = msgspec.field(default_factory=JobSpec)

    def size(self, gang: str) -> DeclaredSize:
        """How many pods of ``gang`` start together, by this object."""
        return counted(self.spec.at_once, "spec.parallelism")


JOB: Final = WorkloadKind("Job", "batch", ("v1",), "jobs", (TEMPLATE,), _of_job)
CRON_JOB: Final = WorkloadKind(
    "CronJob",
    "batch",
    ("v1",),
    "cronjobs",
    (("spec", "jobTemplate", "spec", "template"),),
    _of_cron_job,
)
