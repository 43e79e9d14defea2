"""Gangs as schedulers and queues know them: Kubernetes' own, PodGroups with a least number of
members, Kueue's Workloads. Pure.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from preflight_kube.api.workloads.model import WorkloadKind
from preflight_kube.api.workloads.sizes import (
    DeclaredSize,
    Few,
    Section,
    SizedMetadata,
    SizedObject,
    added,
    counted,
)


class _GangPolicy(Section, kw_only=True):
    min_count: int | None = None


class _Policy(Section, kw_only=True):
    gang: _GangPolicy | None = None
    basic: Section | None = None

    def size(self, where: str) -> DeclaredSize:
        if self.gang is not None:
            return counted(self.gang.min_count, f"{where}.gang.minCount", least=True)
        if self.basic is not None:
            return DeclaredSize(
                skip=f"{where} is the policy basic: its pods are not started together"
            )
        return DeclaredSize(unknown=f"it has no {where}")


class _PodGroupSpec(Section, kw_only=True):
    scheduling_policy: _Policy = msgspec.field(default_factory=_Policy)


class PodGroup(SizedObject, kw_only=True):
    """scheduling.k8s.io PodGroup (from 1.36)."""

    spec: _PodGroupSpec = msgspec.field(default_factory=_PodGroupSpec)

    def size(self, gang: str) -> DeclaredSize:
        """How many pods of ``gang`` start together, by this object."""
        return self.spec.scheduling_policy.size("spec.schedulingPolicy")


class _WorkloadGroup(Section, kw_only=True):
    name: str = ""
    policy: _Policy = msgspec.field(default_factory=_Policy)


class _WorkloadSpec(Section, kw_only=True):
    pod_groups: Few[_WorkloadGroup] = msgspec.field(default_factory=list)


class Workload(SizedObject, kw_only=True):
    """scheduling.k8s.io Workload (1.35); the gang's id is `workload/podGroup[/replica]`."""

    spec: _WorkloadSpec = msgspec.field(default_factory=_WorkloadSpec)

    def size(self, gang: str) -> DeclaredSize:
        """How many pods of ``gang`` start together, by this object."""
        wanted = gang.split("/")[1] if "/" in gang else ""
        for group in self.spec.pod_groups:
            if group.name == wanted:
                return group.policy.size(f"spec.podGroups[{wanted}].policy")
        return DeclaredSize(unknown=f"it has no pod group {wanted!r}")


class _MinMember(Section, kw_only=True):
    min_member: int | None = None


class MinMemberPodGroup(SizedObject, kw_only=True):
    """The PodGroups of Volcano and of the scheduler-plugins (coscheduling)."""

    spec: _MinMember = msgspec.field(default_factory=_MinMember)

    def size(self, gang: str) -> DeclaredSize:
        """How many pods of ``gang`` start together, by this object."""
        return counted(self.spec.min_member, "spec.minMember", least=True)


class _Minimum(Section, kw_only=True):
    """So many pods, or so many of the groups below it (unset: all)."""

    min_member: int | None = None
    min_sub_group: int | None = None


class _SubGroup(_Minimum, kw_only=True):
    name: str = ""
    parent: str | None = None


class _KaiSpec(_Minimum, kw_only=True):
    sub_groups: Annotated[list[_SubGroup], msgspec.Meta(max_length=4096)] = msgspec.field(
        default_factory=list
    )


class KaiPodGroup(SizedObject, kw_only=True):
    """KAI's PodGroup: a number of pods, or a tree of groups."""

    spec: _KaiSpec = msgspec.field(default_factory=_KaiSpec)

    def size(self, gang: str) -> DeclaredSize:
        """How many pods of ``gang`` start together, by this object."""
        least = self._least()
        if least == 0:
            return DeclaredSize(skip="its least number of pods is 0: they are not started together")
        return counted(least, "least number of pods", least=True)

    def _least(self) -> int:
        """The pods of the groups that need the fewest, where not all must be there. No group counts
        twice, whatever its parents.
        """
        below: dict[str | None, list[_SubGroup]] = {}
        for group in self.spec.sub_groups:
            below.setdefault(group.parent, []).append(group)
        tree: list[tuple[_Minimum, str | None, int]] = [(self.spec, None, 0)]
        for i, (of, name, _) in enumerate(tree):  # which grows
            if of.min_member is None:
                tree += [(group, group.name, i) for group in below.pop(name, ())]
        needs: list[list[int]] = [[] for _ in tree]
        least = 0
        for i in reversed(range(len(tree))):
            of, _, parent = tree[i]
            some = slice(None) if of.min_sub_group is None else slice(max(of.min_sub_group, 0))
            least = sum(sorted(needs[i])[some]) if needs[i] else 1
            least = least if of.min_member is None else of.min_member
            needs[parent].append(least)
        return least


_SUBMITTER: Final = "submitter"
"""The pod set that Kueue makes of a RayJob's submitter."""


class _Owner(Section, kw_only=True):
    kind: str = ""


class _KueueMetadata(SizedMetadata, kw_only=True):
    owner_references: Few[_Owner] = msgspec.field(default_factory=list)


class _PodSet(Section, kw_only=True):
    name: str = ""
    count: int = 0


class _PodSets(Section, kw_only=True):
    pod_sets: Few[_PodSet] = msgspec.field(default_factory=list)


class _Assigned(Section, kw_only=True):
    name: str = ""
    count: int | None = None


class _Admission(Section, kw_only=True):
    pod_set_assignments: Few[_Assigned] = msgspec.field(default_factory=list)


class _KueueStatus(Section, kw_only=True):
    admission: _Admission | None = None


class KueueWorkload(SizedObject, kw_only=True):
    """kueue.x-k8s.io Workload: all its pod sets start together, once it is admitted; with fewer
    pods, where it was admitted in part. A RayJob's submitter is made once its cluster is ready.
    """

    metadata: _KueueMetadata
    spec: _PodSets = msgspec.field(default_factory=_PodSets)
    status: _KueueStatus = msgspec.field(default_factory=_KueueStatus)

    def size(self, gang: str) -> DeclaredSize:
        """How many pods of ``gang`` start together, by this object."""
        ray = any(owner.kind == "RayJob" for owner in self.metadata.owner_references)
        later = _SUBMITTER if ray else None
        admission = self.status.admission
        assigned = admission.pod_set_assignments if admission is not None else []
        counts = [assignment.count for assignment in assigned if assignment.name != later]
        if counts and None not in counts:
            return added(
                (count or 0 for count in counts), "status.admission.podSetAssignments[].count"
            )
        return added(
            (pod_set.count for pod_set in self.spec.pod_sets if pod_set.name != later),
            "spec.podSets[].count",
        )


POD_GROUP: Final = WorkloadKind("PodGroup", "scheduling.k8s.io", ("v1alpha2",), "podgroups")
WORKLOAD: Final = WorkloadKind("Workload", "scheduling.k8s.io", ("v1alpha1",), "workloads")
VOLCANO: Final = WorkloadKind("PodGroup", "scheduling.volcano.sh", ("v1beta1",), "podgroups")
COSCHEDULING: Final = WorkloadKind("PodGroup", "scheduling.x-k8s.io", ("v1alpha1",), "podgroups")
KAI: Final = WorkloadKind("PodGroup", "scheduling.run.ai", ("v2alpha2",), "podgroups")
KUEUE_WORKLOAD_KIND: Final = WorkloadKind(
    "Workload", "kueue.x-k8s.io", ("v1beta2", "v1beta1"), "workloads"
)
