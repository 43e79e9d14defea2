"""Kinds of other operators on a real control plane: pods are made here as theirs make them, and
each status is written as they write it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from lab import Lab, appwrapper, condition
from leading import leads
from preflight_appwrapper.api.names import LABEL
from preflight_testing.workload_kinds import WORKLOADS

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

LAST: dict[str, Any] = {
    "failureGracePeriodDuration": "0s",
    "retryLimit": "0",
    "successTTLDuration": "300s",
}
TEMPLATE = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x"}]}}
RAY = {
    "headGroupSpec": {"template": TEMPLATE},
    "workerGroupSpecs": [{"groupName": "g", "replicas": 1, "template": TEMPLATE}],
}


def said(type_: str) -> dict[str, Any]:
    return {
        "conditions": [{"type": type_, "status": "True", "reason": "Told", "message": "by a test"}]
    }


@dataclass
class Case:
    """``templates``: paths below ``spec`` at which pods are described, with how many each makes;
    ``declared``: Kueue does not know the kind.
    """

    group: str
    kind: str
    plural: str
    spec: dict[str, Any]
    templates: dict[str, int]
    failed: dict[str, Any] | None
    finished: dict[str, Any] | None
    declared: bool = False
    flaps: dict[str, Any] = field(default_factory=dict)

    def wrapper(self, name: str) -> dict[str, Any]:
        template = {
            "apiVersion": self.group,
            "kind": self.kind,
            "metadata": {"name": name},
            "spec": self.spec,
        }
        component: dict[str, Any] = {"template": template}
        if self.declared:
            sets = [
                {"path": f"template.spec.{path}", "replicas": n}
                for path, n in self.templates.items()
            ]
            component["podSets"] = sets
        return appwrapper(component, name=name, **LAST)


def replicas(**counts: int) -> dict[str, Any]:
    return {name: {"replicas": count, "template": TEMPLATE} for name, count in counts.items()}


CASES = [
    Case(
        "kubeflow.org/v1", "PyTorchJob", "pytorchjobs",
        {"pytorchReplicaSpecs": replicas(Master=1, Worker=2)},
        {"pytorchReplicaSpecs.Master.template": 1, "pytorchReplicaSpecs.Worker.template": 2},
        said("Failed"), said("Succeeded"),
    ),
    Case(
        "kubeflow.org/v1", "MPIJob", "mpijobs",
        {"mpiReplicaSpecs": replicas(Launcher=1, Worker=2)},
        {"mpiReplicaSpecs.Launcher.template": 1, "mpiReplicaSpecs.Worker.template": 2},
        said("Failed"), said("Succeeded"), declared=True,
    ),
    Case(
        "jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets",
        {"replicatedJobs": [{"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 1, "template": TEMPLATE}}}]},
        {"replicatedJobs[0].template.spec.template": 2},
        said("Failed"), said("Completed"),
    ),
    Case(
        "ray.io/v1", "RayJob", "rayjobs",
        {"entrypoint": "x", "rayClusterSpec": RAY},
        {"rayClusterSpec.headGroupSpec.template": 1, "rayClusterSpec.workerGroupSpecs[0].template": 1},
        {"jobDeploymentStatus": "Failed"}, {"jobDeploymentStatus": "Complete"}, flaps={"jobStatus": "FAILED"},
    ),
    Case(
        "ray.io/v1", "RayCluster", "rayclusters", RAY,
        {"headGroupSpec.template": 1, "workerGroupSpecs[0].template": 1},
        None, None, flaps={"state": "failed"},
    ),
    Case(
        "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets",
        {"replicas": 1, "leaderWorkerTemplate": {"size": 3, "leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE}},
        {"leaderWorkerTemplate.leaderTemplate": 1, "leaderWorkerTemplate.workerTemplate": 2},
        None, None, declared=True,
    ),
]  # fmt: skip


@pytest.fixture
def kinds(lab: Lab) -> Lab:
    for one in WORKLOADS:
        lab.server.define(one)
    return lab


def at(raw: Any, path: str) -> Any:
    for part in path.replace("[", ".[").split("."):
        raw = raw[int(part[1:-1])] if part.startswith("[") else raw[part]
    return raw


async def made_pods(lab: Lab, case: Case, name: str) -> list[dict[str, Any]]:
    """The pods of a component, as its operator makes them from its templates; they run."""
    found = await lab.get(lab.path(case.group, case.plural, name))
    assert found is not None
    owner = {
        "apiVersion": case.group,
        "kind": case.kind,
        "name": name,
        "uid": found["metadata"]["uid"],
    }
    count = 0
    for path, each in case.templates.items():
        template = at(found["spec"], path)
        assert template["metadata"]["labels"][LABEL] == name
        for _ in range(each):
            metadata = {
                **template["metadata"],
                "name": f"{name}-{count}",
                "ownerReferences": [{**owner, "controller": True}],
            }
            body = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata,
                "spec": template["spec"],
            }
            await lab.client.create(lab.path("", "pods"), body)
            count += 1
    await lab.condition("PodsReady", "True", name)
    return [one for one in lab.pods() if one["metadata"]["labels"][LABEL] == name]


async def tell(lab: Lab, case: Case, name: str, status: dict[str, Any]) -> None:
    await lab.client.merge_patch(
        lab.path(case.group, case.plural, name) + "/status", {"status": status}
    )


@pytest.mark.parametrize("case", CASES, ids=lambda one: one.kind)
async def test_a_kind_is_judged_by_its_own_status_and_by_its_pods(kinds: Lab, case: Case) -> None:
    lab = kinds
    async with leads(lab.target, lab.namespace):
        for name in ("bad", "good"):
            await lab.client.create(lab.wrappers(), case.wrapper(name))
            await lab.phase("Running", name)
        bad, good = await made_pods(lab, case, "bad"), await made_pods(lab, case, "good")
        if case.flaps:
            await tell(lab, case, "good", case.flaps)
        if case.failed:
            await tell(lab, case, "bad", case.failed)
        else:
            await lab.ends(bad[0], code=1)
        found = await lab.phase("Failed", "bad")
        reason = "FailedComponent" if case.failed else "FoundFailedPods"
        assert condition(found, "Unhealthy")["reason"] == reason
        assert (await lab.wrapper("good"))["status"]["phase"] == "Running", (
            "what only flaps is not a failure"
        )
        for pod in good:
            await lab.ends(pod, code=0)
        if case.finished:
            await tell(lab, case, "good", case.finished)
        found = await lab.phase("Succeeded", "good")
        assert "resettingCount" not in found["status"]
