"""Pods, and the kinds of the group apps. Pure."""

from __future__ import annotations

from typing import Final

from .model import Object, Path, PodMarks, WorkloadKind

__all__ = ["KINDS", "TEMPLATE"]

TEMPLATE: Final[Path] = ("spec", "template")


def _of_deployment(_: Object, __: str, ___: str) -> PodMarks:
    return PodMarks(owner="ReplicaSet")


KINDS: Final = (
    WorkloadKind("Pod", "", ("v1",), "pods"),
    WorkloadKind("Deployment", "apps", ("v1",), "deployments", (TEMPLATE,), _of_deployment),
    WorkloadKind("ReplicaSet", "apps", ("v1",), "replicasets", (TEMPLATE,)),
    WorkloadKind("StatefulSet", "apps", ("v1",), "statefulsets", (TEMPLATE,)),
    WorkloadKind("DaemonSet", "apps", ("v1",), "daemonsets", (TEMPLATE,)),
)
