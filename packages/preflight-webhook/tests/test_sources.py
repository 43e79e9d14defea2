"""One row a source: a pod as that system creates it, and the gang that is read from it."""

from __future__ import annotations

import json
from typing import Any, get_args, get_type_hints

import pytest
import yaml
from preflight_proto.gang_source import BUILT_IN as SOURCES
from preflight_webhook.config.config import Config, ConfigError, GangDiscovery, parse
from preflight_webhook.core.admit import decide
from preflight_webhook.core.decision import Decision

ALL = "[kubeflow, lws, jobset, grove, kueueWorkload, job]"

VOLCANO = """
metadata:
  labels: {volcano.sh/job-name: llm, volcano.sh/job-namespace: ml, volcano.sh/queue-name: default, volcano.sh/task-index: "1", volcano.sh/task-spec: worker}
  annotations: {scheduling.k8s.io/group-name: llm-7a1b0e4c-2f6d-4a8e-9d55-0f5e1c9b7a11, volcano.sh/template-uid: llm-worker, volcano.sh/job-version: "0"}
  ownerReferences: [{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, name: llm, uid: 7a1b0e4c-2f6d-4a8e-9d55-0f5e1c9b7a11, controller: true}]
spec: {schedulerName: volcano}
"""
LWS = """
metadata:
  name: vllm-0-1
  labels:
    leaderworkerset.sigs.k8s.io/name: vllm
    leaderworkerset.sigs.k8s.io/group-index: "0"
    leaderworkerset.sigs.k8s.io/group-key: 689ce1b51c7ae1e9bd1dd4ad4b1d2b07
    leaderworkerset.sigs.k8s.io/worker-index: "1"
    leaderworkerset.sigs.k8s.io/template-revision-hash: 5c5fcdfb44
    apps.kubernetes.io/pod-index: "1"
    statefulset.kubernetes.io/pod-name: vllm-0-1
  annotations: {leaderworkerset.sigs.k8s.io/size: "4", leaderworkerset.sigs.k8s.io/leader-name: vllm-0}
  ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: vllm-0, uid: 5d0c5a3e-6c0b-4f2b-8c43-8f3ad1c8b8f1, controller: true}]
"""
JOBSET = """
metadata:
  name: llm-node-0-1-x7k2p
  labels: &keys
    jobset.sigs.k8s.io/jobset-name: llm
    jobset.sigs.k8s.io/jobset-uid: 0b0c5e4e-6d9c-4f41-9df5-6a7f8f2a0d11
    jobset.sigs.k8s.io/replicatedjob-name: node
    jobset.sigs.k8s.io/replicatedjob-replicas: "1"
    jobset.sigs.k8s.io/global-replicas: "1"
    jobset.sigs.k8s.io/job-index: "0"
    jobset.sigs.k8s.io/job-global-index: "0"
    jobset.sigs.k8s.io/restart-attempt: "0"
    batch.kubernetes.io/job-name: llm-node-0
    batch.kubernetes.io/job-completion-index: "1"
  annotations: *keys
  ownerReferences: [{apiVersion: batch/v1, kind: Job, name: llm-node-0, uid: 1f8a7c55-3cf8-4a61-a3a7-2f3d8d2a5b77, controller: true}]
"""
INDEXED_JOB = """
metadata:
  labels: {batch.kubernetes.io/job-name: sweep, batch.kubernetes.io/controller-uid: 3e1b, batch.kubernetes.io/job-completion-index: "3"}
  annotations: {batch.kubernetes.io/job-completion-index: "3"}
  ownerReferences: [{apiVersion: batch/v1, kind: Job, name: sweep, uid: 3e1b5a3e-6c0b-4f2b-8c43-8f3ad1c8b8f1, controller: true}]
"""
PYTORCH = """
metadata:
  labels:
    training.kubeflow.org/job-name: bert
    training.kubeflow.org/operator-name: pytorchjob-controller
    training.kubeflow.org/replica-type: worker
    training.kubeflow.org/replica-index: "0"
  ownerReferences: [{apiVersion: kubeflow.org/v1, kind: PyTorchJob, name: bert, uid: 9d2e5a3e-6c0b-4f2b-8c43-8f3ad1c8b8f1, controller: true}]
env: [{name: PET_NPROC_PER_NODE, value: auto}, {name: PET_NNODES, value: "3"}, {name: RANK, value: "1"}]
"""
OWNED = """
metadata: {ownerReferences: [{apiVersion: ray.io/v1, kind: RayCluster, name: r, uid: 44c1ad3e-6c0b-4f2b-8c43-8f3ad1c8b8f1, controller: true}]}
spec: {schedulerName: kai-scheduler}
"""


def with_scheduler(text: str, name: str = "kai-scheduler") -> str:
    return f"{text}\nspec: {{schedulerName: {name}}}\n"


def admitted_by_kueue(text: str) -> str:
    """As Kueue leaves the pods of a job that it has started."""
    return (
        text.replace("labels:\n", "labels:\n    kueue.x-k8s.io/podset: main\n", 1)
        .replace("labels: &keys\n", "labels: &keys\n    kueue.x-k8s.io/podset: main\n", 1)
        .replace("labels: {", "labels: {kueue.x-k8s.io/podset: main, ", 1)
    )


ROWS: dict[str, tuple[str, str, tuple[str, str, str | None, int | None]]] = {
    "native 1.36": (
        "spec: {schedulingGroup: {podGroupName: llm-workers}}", "",
        ("llm-workers", "schedulingGroup", "llm-workers", None),
    ),
    "native 1.35": (
        "spec: {workloadRef: {name: llm, podGroup: workers}}", "", ("llm/workers", "workloadRef", "llm", None),
    ),
    "native 1.35, a replica": (
        'spec: {workloadRef: {name: llm, podGroup: workers, podGroupReplicaKey: "3"}}', "",
        ("llm/workers/3", "workloadRef", "llm", None),
    ),
    "volcano job": (
        VOLCANO, "",
        ("llm-7a1b0e4c-2f6d-4a8e-9d55-0f5e1c9b7a11", "volcano", "llm-7a1b0e4c-2f6d-4a8e-9d55-0f5e1c9b7a11", None),
    ),
    "volcano, its other key": (
        "metadata: {annotations: {scheduling.volcano.sh/group-name: pg}}", "", ("pg", "volcano", "pg", None),
    ),
    "volcano, the key of ADR-026": (
        "metadata: {annotations: {volcano.sh/pod-group: pg}}", "method: volcano", ("pg", "volcano", "pg", None),
    ),
    "lws on volcano": (
        LWS.replace("annotations: {", "annotations: {scheduling.k8s.io/group-name: vllm-0-5c5fcdfb44, "), "",
        ("vllm-0-5c5fcdfb44", "volcano", "vllm-0-5c5fcdfb44", None),
    ),
    "coscheduling": (
        "metadata: {labels: {scheduling.x-k8s.io/pod-group: nginx}}", "", ("nginx", "coscheduling", "nginx", None),
    ),
    "kai, already grouped": (
        with_scheduler("metadata: {annotations: {pod-group-name: pg-llm-44c1}, labels: {kai.scheduler/queue: team}}"), "",
        ("pg-llm-44c1", "kai", "pg-llm-44c1", None),
    ),
    "kai, provisional": (OWNED, "", ("44c1ad3e-6c0b-4f2b-8c43-8f3ad1c8b8f1", "owner", None, None)),
    "kai, a pytorch job": (with_scheduler(PYTORCH), "", ("bert", "kubeflow", "bert", 3)),
    "kai, a job set": (with_scheduler(JOBSET), "", ("llm", "jobset", "llm", None)),
    "kai, an lws": (with_scheduler(LWS), "", ("vllm/0", "lws", "vllm", 4)),
    "another scheduler that is listed": (
        OWNED.replace("kai-scheduler", "mine"), "ownerSchedulers: [mine]",
        ("44c1ad3e-6c0b-4f2b-8c43-8f3ad1c8b8f1", "owner", None, None),
    ),
    "osmo": (
        with_scheduler("metadata: {labels: {osmo.group_uuid: 367ab8cf5e84465f8d1eec018dc6432c, osmo.retry_id: '0'}}"), "",
        ("367ab8cf5e84465f8d1eec018dc6432c", "osmo", "367ab8cf5e84465f8d1eec018dc6432c", None),
    ),
    "kueue pod group": (
        "metadata: {labels: {kueue.x-k8s.io/queue-name: gpus, kueue.x-k8s.io/pod-group-name: g}, annotations: {kueue.x-k8s.io/pod-group-total-count: '4'}}",
        "", ("g", "kueue", "g", 4),
    ),
    "kueue pod group, named by an annotation": (
        "metadata: {labels: {kueue.x-k8s.io/pod-group-name: old}, annotations: {kueue.x-k8s.io/pod-group-name: g, kueue.x-k8s.io/pod-group-total-count: '4'}}",
        "", ("g", "kueue", "g", 4),
    ),
    "kueue, the key of ADR-026": (
        "metadata: {labels: {kueue.x-k8s.io/workload-name: job-llm-9c1f}}", "method: kueue",
        ("job-llm-9c1f", "kueueWorkload", "job-llm-9c1f", None),
    ),
    "kueue job under topology-aware scheduling": (
        "metadata: {labels: {kueue.x-k8s.io/podset: main}, annotations: {kueue.x-k8s.io/workload: job-llm-9c1f}}", "method: kueue",
        ("job-llm-9c1f", "kueueWorkload", "job-llm-9c1f", None),
    ),
    "kueue job set under topology-aware scheduling": (
        admitted_by_kueue(JOBSET).replace("annotations: *keys", "annotations: {kueue.x-k8s.io/workload: jobset-llm-9c1f}"),
        "method: kueue", ("llm", "jobset", "llm", None),
    ),
    "kueue job, opted in": (
        "metadata: {labels: {kueue.x-k8s.io/podset: main}, annotations: {kueue.x-k8s.io/workload: job-llm-9c1f}}",
        f"optIn: {ALL}", ("job-llm-9c1f", "kueueWorkload", "job-llm-9c1f", None),
    ),
    "configured labels": (
        "metadata: {labels: {team/job: llm, team/pods: '16'}}", "labels: {gangIdLabel: team/job, gangSizeLabel: team/pods}",
        ("llm", "labels", None, 16),
    ),
    "job set": (JOBSET, f"optIn: {ALL}", ("llm", "jobset", "llm", None)),
    "job set, a group of it": (
        JOBSET.replace("labels: &keys", "labels: &keys\n    jobset.sigs.k8s.io/group-name: training"),
        "optIn: [jobset]", ("llm/training", "jobset", "llm", None),
    ),
    "lws": (LWS, "optIn: [lws]", ("vllm/0", "lws", "vllm", 4)),
    "indexed job": (INDEXED_JOB, f"optIn: {ALL}", ("sweep", "job", "sweep", None)),
    "kubeflow v1": (PYTORCH, f"optIn: {ALL}", ("bert", "kubeflow", "bert", 3)),
    "kubeflow v1, elastic": (
        PYTORCH.replace('value: "3"', 'value: "2:4"'), f"optIn: {ALL}", ("bert", "kubeflow", "bert", None),
    ),
    "kubeflow v2": (
        JOBSET + 'env: [{name: PET_NNODES, value: "2"}, {name: PET_MASTER_PORT, value: "29500"}]\n', f"optIn: {ALL}",
        ("llm", "kubeflow", "llm", 2),
    ),
    "a job set of torchruns, which tell their own nodes and not those of the job set": (
        admitted_by_kueue(JOBSET.replace("name: node", "name: generator")) + 'env: [{name: PET_NNODES, value: "2"}]\n', "",
        ("llm", "jobset", "llm", None),
    ),
    "grove": (
        "metadata: {labels: {grove.io/podgang: disagg-0, grove.io/podclique: disagg-0-decode, grove.io/podclique-pod-index: '1'}}",
        "optIn: [grove]", ("disagg-0", "grove", "disagg-0", None),
    ),
    "indexed job that kueue admitted": (admitted_by_kueue(INDEXED_JOB), "", ("sweep", "job", "sweep", None)),
    "job set that kueue admitted": (admitted_by_kueue(JOBSET), "method: kueue", ("llm", "jobset", "llm", None)),
    "lws of kueue, which gates its pods": (
        LWS.replace("annotations: {", "annotations: {kueue.x-k8s.io/pod-suspending-parent: leaderworkerset.x-k8s.io/leaderworkerset, "),
        "", ("vllm/0", "lws", "vllm", 4),
    ),
    "kubeflow that kueue admitted": (admitted_by_kueue(PYTORCH), "", ("bert", "kubeflow", "bert", 3)),
}  # fmt: skip

SINGLE: dict[str, tuple[str, str]] = {
    "job set, not opted in": (JOBSET, ""),
    "lws, not opted in": (LWS, ""),
    "indexed job, not opted in": (INDEXED_JOB, ""),
    "kubeflow, not opted in": (PYTORCH, ""),
    "a job whose pods know nothing of each other": (
        "metadata: {labels: {batch.kubernetes.io/job-name: sweep}}",
        f"optIn: {ALL}",
    ),
    "a job that kueue admitted, whose pods know nothing of each other": (
        "metadata: {labels: {kueue.x-k8s.io/podset: main, batch.kubernetes.io/job-name: sweep}}",
        "",
    ),
    "a job that kueue admitted, and another method": (
        admitted_by_kueue(INDEXED_JOB),
        "method: workloadRef",
    ),
    "another method than the pod's": (VOLCANO, "method: coscheduling"),
    "an owner of a scheduler that is not listed": (
        OWNED.replace("kai-scheduler", "default-scheduler"),
        "",
    ),
    "an owner that is not the pod's maker": (
        OWNED.replace("controller: true", "controller: false"),
        "",
    ),
    **{
        f"siblings of a {kind} under kai": (OWNED.replace("RayCluster", kind), "")
        for kind in ("ReplicaSet", "DaemonSet", "StatefulSet", "Job", "RunaiJob", "Workflow")
    },
}


def config(discovery: str) -> Config:
    return parse(
        "checks: [{name: dcgm-diag, image: d}, {name: nccl-allreduce, image: a}]\nskipNcclWithoutNetwork: false\n"
        f"gangDiscovery: {{{discovery}}}"
    )


def pod_of(text: str) -> dict[str, Any]:
    given = yaml.safe_load(text)
    container = {
        "name": "c",
        "image": "i",
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
        "env": given.get("env"),
    }
    return {
        "metadata": given.get("metadata") or {},
        "spec": {**(given.get("spec") or {}), "containers": [container]},
    }


def decision_on(text: str, discovery: str) -> Decision:
    return decide(json.dumps(pod_of(text)).encode(), "ml", config(discovery))


@pytest.mark.parametrize(("text", "discovery", "expected"), ROWS.values(), ids=ROWS)
def test_the_gang_is_read_from_the_pod(
    text: str, discovery: str, expected: tuple[str, str, str | None, int | None]
) -> None:
    decision = decision_on(text, discovery)
    assert decision.stamp is not None
    stamp = decision.stamp
    assert (stamp.id, stamp.source, stamp.object, stamp.size) == expected
    assert (stamp.takes_part, decision.warnings) == (True, [])


@pytest.mark.parametrize(("text", "discovery"), SINGLE.values(), ids=SINGLE)
def test_a_pod_that_nothing_binds_to_others_is_no_member(text: str, discovery: str) -> None:
    decision = decision_on(text, discovery)
    assert (decision.stamp, [s.reason for s in decision.skipped]) == (None, ["no-gang"])


def test_every_source_has_a_row() -> None:
    assert {expected[1] for _, _, expected in ROWS.values()} == set(SOURCES)


def test_every_word_of_the_configuration_leads_somewhere() -> None:
    hints = get_type_hints(GangDiscovery)
    for method in get_args(hints["method"]):
        decision_on(VOLCANO, f"method: {method}")
    for word in get_args(get_args(hints["opt_in"])[0]):
        assert word in SOURCES


def test_the_native_field_comes_before_everything_else() -> None:
    both = yaml.safe_load(VOLCANO)
    both["spec"]["schedulingGroup"] = {"podGroupName": "native"}
    decision = decision_on(json.dumps(both), "")
    assert decision.stamp is not None
    assert decision.stamp.source == "schedulingGroup"


@pytest.mark.parametrize("role", ["job-role: launcher", "replica-type: Evaluator"])
@pytest.mark.parametrize("discovery", ["optIn: [kubeflow, job, jobset]", ""])
def test_a_pod_that_a_kubeflow_job_s_size_does_not_count_is_no_member(
    role: str, discovery: str
) -> None:
    text = PYTORCH.replace("replica-type: worker", role)
    assert "replica-type: worker" not in text
    decision = decision_on(with_scheduler(text), discovery)
    [skip] = decision.skipped
    assert (decision.stamp, skip.reason) == (None, "no-gang")


STATEFUL = """
metadata:
  labels: {app.kubernetes.io/gang-id: llm, apps.kubernetes.io/pod-index: "0"}
  ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: llm, uid: 5d0c5a3e-6c0b-4f2b-8c43-8f3ad1c8b8f1, controller: true}]
"""
LAUNCHER = PYTORCH.replace("replica-type: worker", "job-role: launcher").replace("bert", "hpl")


@pytest.mark.parametrize(
    ("text", "discovery", "says"),
    [
        (STATEFUL, "", "StatefulSet"),
        (LAUNCHER.replace("metadata:", "metadata:\n  annotations: {scheduling.k8s.io/group-name: pg}"), "", "MPI launcher"),
    ],
    ids=["a stateful set's pods", "an mpi launcher of volcano"],
)  # fmt: skip
def test_members_that_start_in_order_are_stamped_without_a_gang_wide_check(
    text: str, discovery: str, says: str
) -> None:
    decision = decision_on(text, discovery)
    [skip] = decision.skipped
    assert (decision.result, decision.checks, skip.check, skip.reason) == (
        "injected",
        ["dcgm-diag"],
        "nccl-allreduce",
        "start-order",
    )
    assert says in skip.message
    assert decision.stamp is not None
    assert not decision.stamp.takes_part


@pytest.mark.parametrize(
    ("text", "discovery"),
    [
        (STATEFUL, "parallelStatefulSets: true"),
        (STATEFUL + "spec: {schedulingGroup: {podGroupName: llm}}", ""),
        (LWS, "labels: {gangIdLabel: leaderworkerset.sigs.k8s.io/group-key}"),
    ],
    ids=["declared parallel", "scheduled together", "an lws, which starts its workers together"],
)
def test_pods_of_a_stateful_set_that_start_together_take_part(text: str, discovery: str) -> None:
    decision = decision_on(text, discovery)
    assert decision.stamp is not None
    assert decision.stamp.takes_part


@pytest.mark.parametrize("env", ["[{name: PET_NNODES, value: null}]", "[5]", "{}"])
def test_an_environment_that_is_none_names_no_size(env: str) -> None:
    decision = decision_on(PYTORCH[: PYTORCH.index("env:")] + f"env: {env}", "optIn: [kubeflow]")
    assert decision.stamp is not None
    assert decision.stamp.size is None


OURS = "{name: ours, group: example.com, resource: teams, kind: Team, size: spec.size, podLabel: example.com/team}"
BY_ANNOTATION = OURS.replace("podLabel", "podAnnotation").replace("ours", "theirs")


@pytest.mark.parametrize(
    ("sources", "metadata", "expected"),
    [
        (OURS, "labels: {example.com/team: llm}", ("llm", "ours", "llm")),
        (BY_ANNOTATION, "annotations: {example.com/team: llm}", ("llm", "theirs", "llm")),
        (f"{BY_ANNOTATION}, {OURS}", "labels: {example.com/team: llm}", ("llm", "ours", "llm")),
        (
            OURS,
            "labels: {example.com/team: llm, scheduling.x-k8s.io/pod-group: other}",
            ("llm", "ours", "llm"),
        ),
        (
            OURS,
            "labels: {scheduling.x-k8s.io/pod-group: other}",
            ("other", "coscheduling", "other"),
        ),
    ],
)
@pytest.mark.parametrize("method", ["auto", "coscheduling"])
def test_a_configured_source_is_asked_first_by_its_label_or_annotation(
    sources: str, metadata: str, expected: tuple[str, str, str], method: str
) -> None:
    decision = decision_on(f"metadata: {{{metadata}}}", f"method: {method}, sources: [{sources}]")
    assert decision.stamp is not None
    assert (decision.stamp.id, decision.stamp.source, decision.stamp.object) == expected
    assert (decision.stamp.size, decision.stamp.takes_part) == (None, True)


@pytest.mark.parametrize(
    ("sources", "problem"),
    [
        (
            OURS.replace("name: ours", "name: labels"),
            "gangDiscovery.sources[0].name: labels is built in",
        ),
        (f"{OURS}, {OURS}", "gangDiscovery.sources[1].name: ours is taken by another source"),
        (
            OURS.replace(", podLabel: example.com/team", ""),
            "gangDiscovery.sources[0]: has neither podLabel nor",
        ),
        (
            OURS.replace("}", ", podAnnotation: a/b}"),
            "gangDiscovery.sources[0]: has both podLabel and podAnnotation",
        ),
        (
            OURS.replace("Team", "team"),
            'gangDiscovery.sources[0].kind: must match ^[A-Z][A-Za-z0-9]*$; found the string "team"',
        ),
    ],
)
def test_a_source_that_cannot_be_used_is_one_sentence(sources: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(f"sources: [{sources}]")
    [found] = caught.value.problems
    assert found.startswith(problem)
    assert found.endswith(".")
