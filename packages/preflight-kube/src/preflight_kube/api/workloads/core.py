"""Pods, and the kinds of the group apps. Pure."""

from __future__ import annotations

from typing import Final

from preflight_kube.api.workloads.model import Keys, Object, Path, PodMarks, WorkloadKind, replicas

__all__ = ["KINDS", "TEMPLATE"]

TEMPLATE: Final[Path] = ("spec", "template")


def _of_deployment(_: Object, __: str, ___: str) -> PodMarks:
    return PodMarks(owner="ReplicaSet")


def _pods(item: Object, _: Keys) -> int:
    return replicas(item, "spec", "replicas")


KINDS: Final = (
    WorkloadKind("Pod", "", ("v1",), "pods", ((),)),
    WorkloadKind(
        "Deployment", "apps", ("v1",), "deployments", (TEMPLATE,), _of_deployment, pods=_pods
    ),
    WorkloadKind("ReplicaSet", "apps", ("v1",), "replicasets", (TEMPLATE,), pods=_pods),
    WorkloadKind("StatefulSet", "apps", ("v1",), "statefulsets", (TEMPLATE,), pods=_pods),
    WorkloadKind("DaemonSet", "apps", ("v1",), "daemonsets", (TEMPLATE,)),
)
