"""Grove's PodCliqueSets and PodGangs. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from preflight_kube.api.workloads.labels import GROVE_CLIQUE, GROVE_GANG
from preflight_kube.api.workloads.model import Object, PodMarks, WorkloadKind
from preflight_kube.api.workloads.sizes import DeclaredSize, Few, Section, SizedObject, added

GROUP: Final = "grove.io"


def _of_grove(_: Object, name: str, part: str) -> PodMarks:
    return PodMarks({GROVE_GANG: f"{name}-0", GROVE_CLIQUE: f"{name}-0-{part}"}, {}, "PodClique")


class _GroveGroup(Section, kw_only=True):
    min_replicas: int = 0


class _PodGangSpec(Section, kw_only=True):
    podgroups: Few[_GroveGroup] = msgspec.field(default_factory=list)


class PodGang(SizedObject, kw_only=True):
    """scheduler.grove.io PodGang."""

    spec: _PodGangSpec = msgspec.field(default_factory=_PodGangSpec)

    def size(self, gang: str) -> DeclaredSize:
        """How many pods of ``gang`` start together, by this object."""
        return added(
            (group.min_replicas for group in self.spec.podgroups),
            "spec.podgroups[].minReplicas",
            least=True,
        )


POD_CLIQUE_SET: Final = WorkloadKind(
    "PodCliqueSet",
    GROUP,
    ("v1alpha1",),
    "podcliquesets",
    (("spec", "template", "cliques", "*"),),
    _of_grove,
)
POD_GANG: Final = WorkloadKind("PodGang", "scheduler.grove.io", ("v1alpha1",), "podgangs")
