"""Kueue's Workloads. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from preflight_kube.api.workloads.model import WorkloadKind
from preflight_kube.api.workloads.sizes import DeclaredSize, Few, Section, SizedObject, added

__all__ = ["KUEUE_WORKLOAD_KIND", "KueueWorkload"]


class _PodSet(Section, kw_only=True):
    count: int = 0


class _PodSets(Section, kw_only=True):
    pod_sets: Few[_PodSet] = msgspec.field(default_factory=list)


class _Assigned(Section, kw_only=True):
    count: int | None = None


class _Admission(Section, kw_only=True):
    pod_set_assignments: Few[_Assigned] = msgspec.field(default_factory=list)


class _KueueStatus(Section, kw_only=True):
    admission: _Admission | None = None


class KueueWorkload(SizedObject, kw_only=True):
    """kueue.x-k8s.io Workload: all its pod sets start together, once it is admitted; with fewer
    pods, where it was admitted in part.
    """

    spec: _PodSets = msgspec.field(default_factory=_PodSets)
    status: _KueueStatus = msgspec.field(default_factory=_KueueStatus)

    def size(self, gang: str) -> DeclaredSize:
        """How many pods of ``gang`` start together, by this object."""
        admission = self.status.admission
        assigned = (
            [one.count for one in admission.pod_set_assignments] if admission is not None else []
        )
        if assigned and None not in assigned:
            return added(
                (one or 0 for one in assigned), "status.admission.podSetAssignments[].count"
            )
        return added((one.count for one in self.spec.pod_sets), "spec.podSets[].count")


KUEUE_WORKLOAD_KIND: Final = WorkloadKind(
    "Workload", "kueue.x-k8s.io", ("v1beta2", "v1beta1"), "workloads"
)
