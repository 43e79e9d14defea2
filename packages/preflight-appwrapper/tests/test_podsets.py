"""Pod sets that follow from a kind equal those that Kueue finds, and a path leads to a pod template
or is refused with a sentence.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from player import job
from preflight_appwrapper.api.names import PREFIX
from preflight_appwrapper.core.podsets import PodSetError, inferred, kueue_knows, pod_template

TEMPLATE: dict[str, Any] = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
INDEX = PREFIX + "tas-pod-index-label"


def of(api: str, kind: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def jobs(**more: Any) -> dict[str, Any]:
    return {
        "name": "w",
        "template": {"spec": {"template": TEMPLATE, **more.pop("job", {})}},
        **more,
    }


OF_A_JOB = {"spec.template": 1}
SET, TORCH, RAY = (
    ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    ("kubeflow.org/v1", "PyTorchJob"),
    ("ray.io/v1", "RayCluster"),
)
WORKERS, LWS = (
    {"template": TEMPLATE, "replicas": 2},
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
)


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (of("v1", "Pod", **TEMPLATE["spec"]), {"": 1}),
        (of("v1", "Service"), {}),
        (of("apps/v1", "Deployment", template=TEMPLATE), OF_A_JOB),
        (of("apps/v1", "StatefulSet", template=TEMPLATE, replicas=3), {"spec.template": 3}),
        (of("batch/v1", "Job", template=TEMPLATE), OF_A_JOB),
        (of("batch/v1", "Job", template=TEMPLATE, parallelism=4), {"spec.template": 4}),
        (of("batch/v1", "Job", template=TEMPLATE, parallelism=4, completions=2), {"spec.template": 2}),
        (of("batch/v1", "Job", template=TEMPLATE, completions=9), OF_A_JOB),
        (
            of(*SET, replicatedJobs=[jobs(), jobs(replicas=2, job={"parallelism": 3})]),
            {f"spec.replicatedJobs[{i}].template.spec.template": count for i, count in enumerate((1, 6))},
        ),
        (
            of(*TORCH, pytorchReplicaSpecs={"Worker": {"replicas": 3, "template": TEMPLATE}, "Master": {"template": TEMPLATE}}),
            {"spec.pytorchReplicaSpecs.Master.template": 1, "spec.pytorchReplicaSpecs.Worker.template": 3},
        ),
        (
            of(*RAY, headGroupSpec={"template": TEMPLATE}, workerGroupSpecs=[WORKERS, {"template": TEMPLATE}]),
            {"spec.headGroupSpec.template": 1, "spec.workerGroupSpecs[0].template": 2, "spec.workerGroupSpecs[1].template": 1},
        ),
        (
            of("ray.io/v1", "RayJob", rayClusterSpec={"headGroupSpec": {"template": TEMPLATE}}),
            {"spec.rayClusterSpec.headGroupSpec.template": 1},
        ),
        (
            of(*LWS, replicas=2, leaderWorkerTemplate={"size": 4, "leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE}),
            {"spec.leaderWorkerTemplate.leaderTemplate": 2, "spec.leaderWorkerTemplate.workerTemplate": 6},
        ),
        (
            of(*LWS, replicas=2, leaderWorkerTemplate={"size": 4, "workerTemplate": TEMPLATE}),
            {"spec.leaderWorkerTemplate.workerTemplate": 8},
        ),
        (of("example.com/v1", "Train", template=TEMPLATE), {}),
        (of("batch/v2", "Job", template=TEMPLATE), {}),
    ],
)  # fmt: skip
def test_pod_sets_follow_from_the_kind(template: dict[str, Any], wanted: dict[str, int]) -> None:
    """``wanted``: in this order, by the path below ``template``."""
    found = [(one.path, one.count) for one in inferred(template)]
    assert found == [(f"template.{path}".rstrip("."), count) for path, count in wanted.items()]


def test_the_annotations_of_topology_aware_scheduling_are_kueues() -> None:
    found = inferred(of("jobset.x-k8s.io/v1alpha2", "JobSet", replicatedJobs=[jobs(replicas=2)]))[
        0
    ].annotations
    assert found == {
        INDEX: "batch.kubernetes.io/job-completion-index",
        PREFIX + "tas-sub-group-index-label": "jobset.sigs.k8s.io/job-index",
        PREFIX + "tas-sub-group-count": "2",
    }
    pytorch = of(
        "kubeflow.org/v1", "PyTorchJob", pytorchReplicaSpecs={"Worker": {"template": TEMPLATE}}
    )
    assert inferred(pytorch)[0].annotations == {INDEX: "training.kubeflow.org/replica-index"}
    assert not inferred(of("apps/v1", "Deployment", template=TEMPLATE))[0].annotations


def test_kueue_does_not_know_a_leader_worker_set() -> None:
    assert kueue_knows(job())
    assert not kueue_knows(of("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"))


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("spec.template", "is not a path"),
        ("template.spec.x[0", "is not a path"),
        ("template..spec", "is not a path"),
        ("template.", "is not a path"),
        ("", "is not a path"),
        ("template.spec.nothing", 'has no field "nothing"'),
        ("template.spec[0]", "is not a list"),
        ("template.spec.template.spec.containers[0]", "leads to no pod template"),
        ("template.spec.template.spec.containers[1]", "has 1 items"),
        ("template.spec", "leads to no pod template"),
        ("template", "leads to no pod template"),
        ("template." + "x" * 2000, "is not a path"),
        ("template[" + "9" * 5000 + "]", "is not a path"),
    ],
)
def test_a_path_that_leads_to_no_pod_template_says_why(path: str, why: str) -> None:
    with pytest.raises(PodSetError) as caught:
        pod_template(job(), path)
    assert why in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("replicas", ["3", 1.5, True, [], {}])
def test_replicas_that_are_no_whole_number_are_refused(replicas: object) -> None:
    with pytest.raises(PodSetError, match=r"template\.spec\.replicas is not a whole number"):
        inferred(of("apps/v1", "Deployment", template=TEMPLATE, replicas=replicas))


@given(st.text(max_size=40) | st.from_regex(r"template(\.[a-z]+|\[[0-9]+\]){0,4}", fullmatch=True))
def test_any_path_leads_to_a_pod_template_or_is_refused(path: str) -> None:
    try:
        assert pod_template(job(), path)["spec"]["containers"]
    except PodSetError as error:
        assert str(error)
